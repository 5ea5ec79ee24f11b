"""Map rows that an environment plays."""

from typing import Any

from r1_recipes.data.mappers.base import MappedRow, register_mapper, text


@register_mapper("environment", "question", "environment")
def environment_row(row: dict[str, Any]) -> MappedRow:
    """Map a row for an environment: ``question``, and the columns that ``reset`` needs.

    The column ``environment`` names the environment that plays the row. TRL selects it by that.
    """
    mapped = {
        "question": text(row, "question"),
        "environment": text(row, "environment", needed=False),
    }
    return mapped | ({"solution": text(row, "solution", needed=False)} if "solution" in row else {})
