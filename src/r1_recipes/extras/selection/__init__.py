"""Rejection sampling: which completions become a data set (the key ``keep``), near-duplicates,
held-out problems.
"""

PLUGIN = {
    "part": {
        "selection": "r1_recipes.extras.selection.write",
    },
}
