"""Tasks of reasoning-gym."""

import json
import operator
from dataclasses import dataclass
from typing import Any

from r1_recipes.data.mappers.base import Mapper, SkipRow, optional_text, register_mapper, required_text
from r1_recipes.verification.scorers import check_task

_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


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
    """reasoning-gym's chain_sum and basic_arithmetic (+, -, * without brackets), with reasoning written out: a cold start needs no teacher.

    Attributes:
        worked_share: share of rows (0..1, by row, the same every time) whose reasoning works the expression out, one operation per line.
            The others answer an estimate, usually wrong: a cold start on both shows the shape of an answer, and GRPO finds out what pays.
    """

    worked_share: float = 1.0

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        mapped = super().__call__(row)
        metadata = json.loads(mapped["scorer"])["entry"]["metadata"]
        expression = metadata["expression"]
        # Steps of the golden ratio: any run of rows holds close to this share of worked ones.
        if (metadata["source_index"] * 0.6180339887) % 1.0 < self.worked_share:
            return {**mapped, "reasoning": "\n".join(_steps(expression))}
        estimate = str(round(int(mapped["solution"]), -1))
        return {**mapped, "reasoning": f"{expression} is about {estimate}", "answer": estimate}


def _steps(expression: str) -> list[str]:
    """One line an operation, products first, then from the left."""
    terms = expression.split()
    lines = []
    while len(terms) > 1:
        at = terms.index("*") if "*" in terms else 1
        left, sign, right = int(terms[at - 1]), terms[at], int(terms[at + 1])
        if sign not in _OPERATIONS:
            raise SkipRow(f"operation {sign!r} is not written out")
        result = _OPERATIONS[sign](left, right)
        lines.append(f"{left} {sign} {right} = {result}")
        terms[at - 1 : at + 2] = [str(result)]
    return lines
