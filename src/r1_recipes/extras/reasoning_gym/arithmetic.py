"""Map sums of reasoning-gym, with their steps as reasoning."""

import json
from typing import Any

from r1_recipes.data.mapped_row import MappedRow, ToolCall
from r1_recipes.data.mappers.base import SkipRow, register_mapper
from r1_recipes.extras.countdown.puzzle import steps
from r1_recipes.extras.reasoning_gym.mapper import ReasoningGym


@register_mapper("arithmetic")
class Arithmetic(ReasoningGym):
    """Rows of chain_sum and basic_arithmetic of reasoning-gym with reasoning, for a cold start.

    A share of the rows has the operations of the expression, one per line. The others answer with
    an estimate, which is usually wrong. A cold start on both teaches the format of an answer, and
    GRPO then learns which reasoning gets a reward.

    Attributes:
        worked_share: The share of rows with operations, always the same rows.
        tool: ``calculator`` makes these rows call the tool instead of writing the operations.
    """

    worked_share: float = 1.0
    tool: str | None = None

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        mapped = super().__call__(row)
        metadata = json.loads(mapped["scorer"])["entry"]["metadata"]
        expression = metadata["expression"]
        # With steps of the golden ratio, any range of rows has about this share of worked rows.
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
            raise SkipRow(f"{expression!r} has no steps: {error}") from error
