"""Map programming problems with test cases."""

from typing import Any

from r1_recipes.data.mapped_row import MappedRow
from r1_recipes.data.mappers.base import (
    Mapper,
    SkipRow,
    optional_text,
    register_mapper,
    required_text,
)


@register_mapper("verifiable_code")
class VerifiableCode(Mapper):
    """Rows of open-r1/verifiable-coding-problems-python: a problem and ``verification_info``.

    The decontaminated variants have the column ``problem`` instead of ``problem_statement``.
    ``solution`` is the reference program, if there is one.
    """

    prompt_column: str = "problem_statement"
    columns = ("problem_statement", "verification_info")
    needs = (("problem_statement", "problem"), "verification_info")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        info = row.get("verification_info")
        if not isinstance(info, dict) or not info.get("test_cases"):
            raise SkipRow("column 'verification_info' has no test_cases")
        column = self.prompt_column if self.prompt_column in row else "problem"
        return {
            "question": required_text(row, column),
            "solution": optional_text(row, "gold_standard_solution"),
            "verification_info": info,
        }
