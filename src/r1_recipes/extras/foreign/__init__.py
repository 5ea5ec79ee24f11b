"""Read YAML files of open-r1, alignment-handbook and older TRL as recipes."""

PLUGIN = {
    "part": {
        "foreign": "r1_recipes.extras.foreign.translate",
    },
}
