"""Turn a source row into a question, a reference answer and, if present, reasoning or a response.

Each family of datasets has a mapper. Importing this package registers these mappers.
"""

# Of two mappers that know as many columns, "auto" takes the first: generate keeps the columns of
# GSM8K beside its own, and NuminaMath has messages beside its problems.
from r1_recipes.data.mappers import columns, maths, chats  # noqa: F401, I001
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
