"""Write a recipe for your data file. Uses helpers of the extra ``preflight``."""

PLUGIN = {
    "command": {
        "init": ("r1_recipes.extras.init", "read a data file, and write a recipe for it"),
    },
}
