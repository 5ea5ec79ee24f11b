"""Check a recipe before a run: can it learn, and does it fit?

The checks of tools and environments need the extra ``agents``.
"""

PLUGIN = {
    "command": {
        "preflight": (
            "r1_recipes.extras.preflight",
            "check a recipe before a run: can it learn, and does it fit?",
        ),
    },
}
