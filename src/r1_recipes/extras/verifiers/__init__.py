"""Environments of the package verifiers by name: their rows, and the reward of a completion.

They are a source of rows and a reward, not a class in TRL's environment format, because TRL passes
no completion to ``get_reward``.
"""

PLUGIN = {
    "reward": {
        "verifiers": "r1_recipes.extras.verifiers.reward:VerifiersReward",
    },
    "mapper": {
        "verifiers": "r1_recipes.extras.verifiers.mapper:Verifiers",
    },
    "dataset": {
        "verifiers": "r1_recipes.extras.verifiers.rows:verifiers_rows",
    },
}
