"""What this package's own ``generate`` writes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from r1_recipes.data.mappers.base import Mapper, optional_text, register_mapper, required_text
from r1_recipes.prompts import FORMATS


@register_mapper("generated")
@dataclass(frozen=True)
class Generated(Mapper):
    """What ``r1_recipes.generate`` writes: ``question``, ``response`` (not in prompt-only data), ``solution``, ``pass_rate`` and more.

    ``scorer`` and ``task`` go on to the rewards; ``pass_rate``, ``tokens`` and ``scores`` are there for people and filters.

    Attributes:
        well_formed: the response must be one reasoning block and one answer in the recipe's response format.
    """

    well_formed: bool = True
    columns = ("question", "pass_rate")
    optional = ("response", "solution", "scorer", "task", "tokens", "scores")
    # A generation recipe writes responses in its own format, whichever that is.
    examples = tuple(
        {
            "question": f"What is {number}+{number}?",
            "response": fmt.render(f"{number} and {number} is {2 * number}.", str(2 * number)),
            "solution": str(2 * number),
            "pass_rate": 0.5,
            "tokens": 20,
            "scores": {"accuracy": 1.0, "format": 1.0},
        }
        for number, fmt in enumerate(FORMATS.values(), start=2)
    )

    def missing(self, columns: Collection[str]) -> list[str]:
        return [] if "question" in columns else ["question"]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        mapped = {"question": required_text(row, "question"), "solution": optional_text(row, "solution"), "well_formed": self.well_formed}
        if "response" in row:
            mapped["response"] = row["response"] if isinstance(row["response"], str) else ""
        return mapped | {column: optional_text(row, column) for column in ("scorer", "task") if column in row}
