"""List the shipped recipes, and print one of them."""

PLUGIN = {
    "command": {
        "recipes": (
            "r1_recipes.extras.catalog.listing",
            "list the shipped recipes: all, or those with a word",
        ),
        "show": ("r1_recipes.extras.catalog.show", "print a shipped recipe, to copy or to read"),
    },
}
