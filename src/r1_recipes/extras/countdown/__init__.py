"""Countdown puzzles: rows, mapper, checker and reward.

The tool ``calculator`` needs the extra ``agents``.
"""

PLUGIN = {
    "reward": {
        "countdown": "r1_recipes.extras.countdown.reward:CountdownReward",
    },
    "mapper": {
        "countdown": "r1_recipes.extras.countdown.mapper:Countdown",
    },
    "scorer": {
        "countdown": "r1_recipes.extras.countdown.puzzle:score",
    },
    "dataset": {
        "countdown": "r1_recipes.extras.countdown.rows:countdown_rows",
    },
    "tool": {
        "calculator": "r1_recipes.extras.countdown.calculator:calculator",
    },
    "part": {
        "countdown": "r1_recipes.extras.countdown.puzzle",
    },
}
