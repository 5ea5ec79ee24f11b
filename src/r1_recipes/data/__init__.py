"""Load rows and turn them into conversations that the trainers take.

Importing this imports no torch.
"""

from typing import Any

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


def __getattr__(name: str) -> Any:
    if name == "Mapper":
        raise ImportError(
            "a mapper is a function since 0.3, no class. Fix: def NAME(row, key=default): return "
            "{'question': row['…'], 'solution': row['…']}"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
