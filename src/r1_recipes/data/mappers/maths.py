"""Map mathematics problems with a reference answer."""

import re
from typing import Any

from r1_recipes.data.mappers.base import THOUSANDS, MappedRow, SkipRow, register_mapper, text
from r1_recipes.prompts.formats import boxes


@register_mapper("gsm8k", "question", "answer")
def gsm8k(row: dict[str, Any]) -> MappedRow:
    """Map openai/gsm8k: ``question``, and ``answer`` with steps and ``#### 72``.

    The ``<<…>>`` of the calculator are removed from the steps.
    """
    steps, mark, solution = text(row, "answer").rpartition("####")
    # "1,5" is a decimal in some notations, and "(1,2)" is a pair.
    solution = THOUSANDS.sub(lambda number: number[0].replace(",", ""), solution.strip())
    if not mark or not solution:
        raise SkipRow("no '#### NUMBER' in column 'answer'")
    return {
        "question": text(row, "question"),
        "solution": solution,
        "reasoning": re.sub(r"<<[^<>]*>>", "", steps).strip(),
    }


@register_mapper("math", "problem", "solution|answer")
def math(
    row: dict[str, Any],
    prompt_column: str = "problem",
    solution_column: str = "answer",
    reasoning_column: str = "solution",
) -> MappedRow:
    """Map MATH, MATH-500, AIME, NuminaMath and OpenR1-Math-220k: ``problem`` with ``answer``.

    Without ``answer``, the reference answer is the last box in ``solution``. The column of answers
    may hold a whole worked solution, too, with the reference answer in a box.
    """
    question = text(row, prompt_column)
    worked = text(row, reasoning_column, needed=False)
    answer = text(row, solution_column, needed=False)
    if answer.casefold() == "notfound":  # of NuminaMath-1.5
        answer = ""
    solution = next(filter(None, [*boxes(answer)[-1:], answer, *boxes(worked)[-1:]]), "")
    if solution.casefold() == "proof":
        raise SkipRow("a proof, which has no reference answer")
    if not solution:
        raise SkipRow(
            f"no reference answer in column {solution_column!r} and no \\boxed{{}} in "
            f"{reasoning_column!r}"
        )
    return {"question": question, "solution": solution, "reasoning": worked}
