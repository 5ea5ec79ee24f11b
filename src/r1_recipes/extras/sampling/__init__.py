"""Which prompts are trained on, and when: dynamic sampling and a curriculum. Both are trainers
that ``grpo`` builds where a recipe has their key.
"""

PLUGIN = {
    "part": {
        "sampling": "r1_recipes.extras.sampling.keys",
        "dynamic_sampling": "r1_recipes.extras.sampling.dynamic",
        "curriculum": "r1_recipes.extras.sampling.curriculum",
    }
}
