"""Turn a source row into a question, a reference answer and, if present, reasoning or a response.

Each family of datasets has a mapper. Importing this package registers these mappers.
"""

from r1_recipes.data.mappers import columns, maths  # noqa: F401
from r1_recipes.data.mappers.base import MAPPERS, Mapper, SkipRow, get_mapper, register_mapper
from r1_recipes.data.mappers.chats import conversation_mapper

__all__ = ["MAPPERS", "Mapper", "SkipRow", "conversation_mapper", "get_mapper", "register_mapper"]
