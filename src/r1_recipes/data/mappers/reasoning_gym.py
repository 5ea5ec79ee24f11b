"""Tasks of reasoning-gym."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from r1_recipes.data.mappers.base import Mapper, SkipRow, optional_text, register_mapper, required_text
from r1_recipes.verification.scorers import check_task


@register_mapper("reasoning_gym")
@dataclass(frozen=True)
class ReasoningGym(Mapper):
    """A task of reasoning-gym: ``question``, ``answer``, ``metadata``; the task's own scorer judges (column ``scorer``).

    Rows of a task whose scorer is not used (see :mod:`r1_recipes.verification.scorers`) are left out.
    """

    columns = ("question", "answer", "metadata")
    examples = (
        {
            "question": "State the final answer to the following arithmetic problem: 4 + 3 =",
            "answer": "7",
            "metadata": '{"source_dataset": "chain_sum", "source_index": 0, "expression": "4 + 3"}',
        },
        {
            "question": "State the final answer to the following arithmetic problem: 9 - 5 + 2 =",
            "answer": "6",
            "metadata": '{"source_dataset": "chain_sum", "source_index": 1, "expression": "9 - 5 + 2"}',
        },
    )

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
        gold = optional_text(row, "answer")
        entry = {"question": required_text(row, "question"), "answer": row.get("answer"), "metadata": metadata}
        return {
            "question": entry["question"],
            "solution": gold,
            "scorer": json.dumps({"reasoning_gym": task, "entry": entry}, default=str),
        }


@register_mapper("arithmetic")
@dataclass(frozen=True)
class Arithmetic(Mapper):
    """reasoning-gym's chain_sum and basic_arithmetic (+, -, * without brackets), with reasoning written out: a cold start needs no teacher.

    Attributes:
        worked_share: share of rows (0..1, by row, the same every time) whose reasoning works the expression out, one operation a line.
            The others estimate to the nearest ten and answer that, as a hasty teacher would; they are usually wrong. A cold start on
            such a mixture shows the shape of an answer and leaves it to GRPO to find out that working it out pays.
    """

    worked_share: float = 1.0
    examples = ReasoningGym.examples

    def missing(self, columns: Collection[str]) -> list[str]:
        return [column for column in ReasoningGym.columns if column not in columns]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        mapped = ReasoningGym()(row)
        metadata = json.loads(row["metadata"])
        expression = metadata["expression"]
        # Steps of the golden ratio: any run of rows holds close to this share of worked ones.
        if (metadata["source_index"] * 0.6180339887) % 1.0 < self.worked_share:
            return {**mapped, "reasoning": "\n".join(_operations(expression))}
        estimate = str(round(int(mapped["solution"]), -1))
        return {**mapped, "reasoning": f"{expression} is about {estimate}", "answer": estimate}


def _operations(expression: str) -> list[str]:
    """One line an operation, products first, then from the left."""
    terms = expression.split()
    lines = []
    while len(terms) > 1:
        at = next((index for index in range(1, len(terms), 2) if terms[index] == "*"), 1)
        left, sign, right = int(terms[at - 1]), terms[at], int(terms[at + 1])
        if sign not in ("+", "-", "*"):
            raise SkipRow(f"operation {sign!r} is not written out")
        result = left + right if sign == "+" else left - right if sign == "-" else left * right
        lines.append(f"{left} {sign} {right} = {result}")
        terms[at - 1 : at + 2] = [str(result)]
    return lines
