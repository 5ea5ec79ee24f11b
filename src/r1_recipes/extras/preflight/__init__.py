"""What a run would do, before it starts: would it learn, would it fit? Plays an agent's episodes
where the extra ``agents`` is there.
"""

PLUGIN = {
    "command": {
        "preflight": ("r1_recipes.extras.preflight", "what a run would do, before it starts"),
    },
}
