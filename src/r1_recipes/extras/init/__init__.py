"""A recipe for a file of one's own. Names its findings as the extra ``preflight`` does."""

PLUGIN = {
    "command": {
        "init": ("r1_recipes.extras.init", "look at a data file, and write a recipe for it"),
    },
}
