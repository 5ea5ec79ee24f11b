"""Programming problems with test cases."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from r1_recipes.data.mappers.base import Mapper, SkipRow, optional_text, register_mapper, required_text


@register_mapper("verifiable_code")
@dataclass(frozen=True)
class VerifiableCode(Mapper):
    """open-r1/verifiable-coding-problems-python: statement and ``verification_info`` (language, test cases), for a reward that runs code.

    The decontaminated variants call the statement ``problem``. ``solution`` is the reference program, where there is one.
    """

    columns = ("problem_statement", "verification_info")
    optional = ("gold_standard_solution", "metadata", "task_type", "problem_id", "in_source_id", "source")
    hub = (("open-r1/verifiable-coding-problems-python", None),)
    examples = tuple(
        {
            "source": "demo",
            "task_type": "verifiable_code",
            "in_source_id": str(index),
            "problem_statement": statement,
            "gold_standard_solution": f"```python\n{program}\n```",
            "problem_id": f"p{index}",
            "metadata": {"difficulty": "EASY", "memory_limit": None, "memory_limit_bytes": None, "problem_url": None, "time_limit": None},
            "verification_info": {
                "language": "python",
                "test_cases": [{"fn_name": None, "input": given, "output": wanted, "type": "stdin_stdout"} for given, wanted in cases],
            },
        }
        for index, (statement, program, cases) in enumerate(
            (
                ("Read n and print 2n.", "print(2 * int(input()))", (("4\n", "8\n"), ("-1\n", "-2\n"))),
                ("Read a line and print it backwards.", "print(input()[::-1])", (("abc\n", "cba\n"),)),
            )
        )
    )

    def missing(self, columns: Collection[str]) -> list[str]:
        absent = [] if {"problem_statement", "problem"} & set(columns) else ["problem_statement (or problem)"]
        return absent if "verification_info" in columns else [*absent, "verification_info"]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        info = row.get("verification_info")
        if not isinstance(info, dict) or not info.get("test_cases"):
            raise SkipRow("column 'verification_info' has no test_cases")
        statement = "problem_statement" if "problem_statement" in row else "problem"
        return {
            "question": required_text(row, statement),
            "solution": optional_text(row, "gold_standard_solution"),
            "verification_info": info,
        }
