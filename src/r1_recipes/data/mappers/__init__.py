"""One mapper per dataset family: a source row -> question, solution and, if the source has one, worked reasoning or a whole response.

Importing this registers the families' mappers.
"""

from r1_recipes.data.mappers import columns, maths  # noqa: F401
from r1_recipes.data.mappers.base import MAPPERS, Mapper, SkipRow, get_mapper, register_mapper
from r1_recipes.data.mappers.chats import Conversations, read_conversation, read_turns

__all__ = ["MAPPERS", "Conversations", "Mapper", "SkipRow", "get_mapper", "read_conversation", "read_turns", "register_mapper"]
