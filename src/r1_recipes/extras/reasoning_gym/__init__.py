"""Tasks that reasoning-gym draws and judges; the mapper ``arithmetic`` writes steps out with the
extra ``countdown``.
"""

PLUGIN = {
    "mapper": {
        "reasoning_gym": "r1_recipes.extras.reasoning_gym.mapper:ReasoningGym",
        "arithmetic": "r1_recipes.extras.reasoning_gym.arithmetic:Arithmetic",
    },
    "scorer": {
        "reasoning_gym": "r1_recipes.extras.reasoning_gym.scorer:score",
    },
    "dataset": {
        "reasoning_gym": "r1_recipes.extras.reasoning_gym.rows:reasoning_gym_rows",
    },
}
