"""Write the report page of a run."""

PLUGIN = {
    "command": {
        "report": ("r1_recipes.extras.report", "write the report page of a run"),
    },
    "part": {
        "report": "r1_recipes.extras.report.page",
    },
}
