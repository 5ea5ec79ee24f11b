"""Turn a source row into a question, a reference answer and, if present, reasoning or a response.

Each family of datasets has a mapper. Importing this package registers these mappers.
"""

from r1_recipes.data.mappers import chats, columns, maths  # noqa: F401
from r1_recipes.data.mappers.base import (
    MAPPERS,
    MappedRow,
    Mapper,
    SkipRow,
    example_rows,
    get_mapper,
    register_mapper,
)

__all__ = [
    "MAPPERS",
    "MappedRow",
    "Mapper",
    "SkipRow",
    "example_rows",
    "get_mapper",
    "register_mapper",
]
