"""Tasks of reasoning-gym, which generates and scores them.

The mapper ``arithmetic`` needs the extra ``countdown`` to write steps.
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
