"""Map programming problems with test cases."""

from typing import Any

from r1_recipes.data.mappers.base import MappedRow, SkipRow, register_mapper, text


@register_mapper("verifiable_code", "problem_statement|problem", "verification_info")
def verifiable_code(row: dict[str, Any], prompt_column: str = "problem_statement") -> MappedRow:
    """Map open-r1/verifiable-coding-problems-python: a problem and ``verification_info``.

    ``verification_info`` has the language and the test cases, for a reward that runs code. The
    decontaminated variants have the column ``problem`` instead of ``problem_statement``.
    ``solution`` is the reference program, if there is one.
    """
    info = row.get("verification_info")
    if not isinstance(info, dict) or not info.get("test_cases"):
        raise SkipRow("column 'verification_info' has no test_cases")
    return {
        "question": text(row, prompt_column if prompt_column in row else "problem"),
        "solution": text(row, "gold_standard_solution", needed=False),
        "verification_info": info,
    }
