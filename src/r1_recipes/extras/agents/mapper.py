"""Map rows that an environment plays."""

from typing import Any

from r1_recipes.data.mapped_row import MappedRow
from r1_recipes.data.mappers.base import Mapper, optional_text, register_mapper, required_text


@register_mapper("environment")
class EnvironmentRow(Mapper):
    """A row for an environment: ``question``, and the columns that ``reset`` needs.

    The optional column ``environment`` names the environment that plays the row.
    """

    columns = ("question", "environment")
    needs = ("question",)

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        # A source column of this name is reserved, so map it. TRL selects the environment by it.
        mapped: MappedRow = {
            "question": required_text(row, "question"),
            "environment": optional_text(row, "environment"),
        }
        if "solution" in row:
            mapped["solution"] = optional_text(row, "solution")
        return mapped
