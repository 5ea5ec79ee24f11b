"""Rewards for programs, which run in a sandbox. The tool ``python`` needs the extra ``agents``."""

PLUGIN = {
    "reward": {
        "code": "r1_recipes.extras.code.reward:CodeReward",
        "binary_code": "r1_recipes.extras.code.reward:BinaryCodeReward",
        "code_format": "r1_recipes.extras.code.reward:CodeFormatReward",
    },
    "tool": {
        "python": "r1_recipes.extras.code.python_tool:python",
    },
    "mapper": {
        "verifiable_code": "r1_recipes.extras.code.mapper:VerifiableCode",
    },
}
