"""One mapper per dataset family: a source row -> question, solution and, if the source has one,
worked reasoning or a whole response.

Importing this registers the families' mappers.
"""

from r1_recipes.data.mappers import columns, maths  # noqa: F401
from r1_recipes.data.mappers.base import MAPPERS, Mapper, SkipRow, get_mapper, register_mapper
from r1_recipes.data.mappers.chats import conversation_mapper

__all__ = ["MAPPERS", "Mapper", "SkipRow", "conversation_mapper", "get_mapper", "register_mapper"]
