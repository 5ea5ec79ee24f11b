"""Read a recipe file and command-line overrides into typed arguments.

The command line wins over the file.
"""

from r1_recipes.recipe.load import load_recipe
from r1_recipes.recipe.types import Recipe

__all__ = ["Recipe", "load_recipe"]
