"""Sums of reasoning-gym with their steps written out."""

import json
from typing import Any

from r1_recipes.data.mapped_row import MappedRow, ToolCall
from r1_recipes.data.mappers.base import SkipRow, register_mapper
from r1_recipes.extras.countdown.puzzle import steps
from r1_recipes.extras.reasoning_gym.mapper import ReasoningGym


@register_mapper("arithmetic")
class Arithmetic(ReasoningGym):
    """reasoning-gym's chain_sum and basic_arithmetic, with reasoning written out: a cold start
    needs no teacher.

    A share of the rows work the expression out, one operation per line. The others answer an
    estimate, usually wrong: a cold start on both shows the shape of an answer, and GRPO finds out
    what pays.
    """

    worked_share: float = 1.0  # the same rows every time
    tool: str | None = (
        None  # ``calculator``: rows that work it out call it instead of writing the operations
    )

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        mapped = super().__call__(row)
        metadata = json.loads(mapped["scorer"])["entry"]["metadata"]
        expression = metadata["expression"]
        # Steps of the golden ratio: any run of rows holds close to this share of worked ones.
        if (metadata["source_index"] * 0.6180339887) % 1.0 >= self.worked_share:
            estimate = str(round(int(mapped["solution"]), -1))
            return {**mapped, "reasoning": f"{expression} is about {estimate}", "answer": estimate}
        if self.tool:
            call: ToolCall = {
                "name": self.tool,
                "arguments": {"expression": expression},
                "result": mapped["solution"],
            }
            return {
                **mapped,
                "reasoning": f"The {self.tool} says {mapped['solution']}.",
                "calls": [call],
            }
        try:
            return {**mapped, "reasoning": "\n".join(steps(expression))}
        except ValueError as error:
            raise SkipRow(f"{expression!r} is not written out: {error}") from error
