"""Load rows and turn them into conversations that the trainers take.

Importing this imports no torch.
"""

from r1_recipes.data.load import LoadReport, load_dataset
from r1_recipes.data.mappers import MAPPERS, SkipRow, get_mapper, register_mapper
from r1_recipes.data.sources import load_rows

__all__ = [
    "MAPPERS",
    "LoadReport",
    "SkipRow",
    "get_mapper",
    "load_dataset",
    "load_rows",
    "register_mapper",
]
