"""Map the rows of an environment of verifiers."""

import json
from typing import Any

from r1_recipes.data.mapped_row import MappedRow
from r1_recipes.data.mappers.base import Mapper, register_mapper, required_text
from r1_recipes.data.mappers.chats import read_messages


@register_mapper("verifiers")
class Verifiers(Mapper):
    """Rows of ``dataset_name: verifiers:NAME``, for the reward ``verifiers``.

    The prompt is the environment's. A system prompt of the recipe replaces that of the prompt.
    """

    columns = ("verifiers",)

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        spec = required_text(row, "verifiers")
        source = json.loads(spec)["row"]
        messages = read_messages(source["prompt"], "prompt", "user")
        answer = source.get("answer")
        return {
            "question": messages[-1]["content"],
            "messages": messages,
            "solution": answer if isinstance(answer, str) else "",
            "verifiers": spec,
        }
