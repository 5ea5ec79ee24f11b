"""Tasks of reasoning-gym."""

import json
from dataclasses import dataclass
from typing import Any

from r1_recipes.data.mappers.base import Mapper, SkipRow, optional_text, register_mapper, required_text
from r1_recipes.tasks.countdown import steps
from r1_recipes.verification.scorers import check_task


@register_mapper("reasoning_gym")
class ReasoningGym(Mapper):
    """A task of reasoning-gym: ``question``, ``answer``, ``metadata``; the task's own scorer judges (column ``scorer``)."""

    columns = ("question", "answer", "metadata")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        metadata = row.get("metadata")
        try:
            metadata = metadata if isinstance(metadata, dict) else json.loads(required_text(row, "metadata"))
            task = metadata["source_dataset"]
            check_task(task)
        except (TypeError, KeyError, json.JSONDecodeError, RecursionError) as error:
            raise SkipRow("column 'metadata' is not reasoning-gym's: JSON with source_dataset, the name of a task") from error
        except ValueError as error:
            raise SkipRow(str(error)) from error
        entry = {"question": required_text(row, "question"), "answer": row.get("answer"), "metadata": metadata}
        scorer = json.dumps({"reasoning_gym": task, "entry": entry}, default=str)
        return {"question": entry["question"], "solution": optional_text(row, "answer"), "scorer": scorer}


@register_mapper("arithmetic")
@dataclass(frozen=True)
class Arithmetic(ReasoningGym):
    """reasoning-gym's chain_sum and basic_arithmetic, with reasoning written out: a cold start needs no teacher.

    Attributes:
        worked_share: share of rows (0..1, the same ones every time) whose reasoning works the expression out, one operation per line.
            The others answer an estimate, usually wrong: a cold start on both shows the shape of an answer, and GRPO finds out what pays.
    """

    worked_share: float = 1.0

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        mapped = super().__call__(row)
        metadata = json.loads(mapped["scorer"])["entry"]["metadata"]
        expression = metadata["expression"]
        # Steps of the golden ratio: any run of rows holds close to this share of worked ones.
        if (metadata["source_index"] * 0.6180339887) % 1.0 >= self.worked_share:
            estimate = str(round(int(mapped["solution"]), -1))
            return {**mapped, "reasoning": f"{expression} is about {estimate}", "answer": estimate}
        try:
            return {**mapped, "reasoning": "\n".join(steps(expression))}
        except ValueError as error:
            raise SkipRow(f"{expression!r} is not written out: {error}") from error
