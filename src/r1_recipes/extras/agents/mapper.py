"""A row that an environment plays."""

from typing import Any

from r1_recipes.data.mappers.base import Mapper, optional_text, register_mapper, required_text


@register_mapper("environment")
class EnvironmentRow(Mapper):
    """A row for an environment: ``question``, ``environment`` (which one plays it), and whatever its ``reset`` takes."""

    columns = ("question", "environment")
    needs = ("question",)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        # Source columns of this name do not go on by themselves; TRL routes by it.
        gold = {"solution": optional_text(row, "solution")} if "solution" in row else {}
        return {"question": required_text(row, "question"), "environment": optional_text(row, "environment"), **gold}
