"""A run as one page."""

PLUGIN = {
    "command": {
        "report": ("r1_recipes.extras.report", "a run as one page"),
    },
    "part": {
        "report": "r1_recipes.extras.report.page",
    },
}
