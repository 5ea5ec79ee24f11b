"""Map Countdown puzzles to questions, with reasoning for SFT."""

import json
import zlib
from typing import Any

from r1_recipes.common.errors import require
from r1_recipes.data.mappers.base import MappedRow, SkipRow, register_mapper, text
from r1_recipes.extras.countdown.puzzle import check, read_puzzle, search, steps

_TEMPLATE = (
    "Make {target} out of the numbers {numbers}. Use each of them exactly once, with +, -, *, / "
    "and brackets as needed. Answer with the expression alone."
)


@register_mapper("countdown", "nums", "target")
def countdown(
    row: dict[str, Any],
    template: str = _TEMPLATE,
    array: bool = False,
    reasoning: str = "steps",
    worked_share: float = 1.0,
) -> MappedRow:
    """Map Jiayi-Pan/Countdown-Tasks-3to4 and the source ``countdown:``: ``nums`` and ``target``.

    The source ``countdown:`` also has a solution, ``expression``.

    Args:
        row: The row.
        template: The question.
        array: Write the numbers as NumPy prints an array: [44 19  5].
        reasoning: The reasoning for SFT: ``steps``, the operations of the solution, one per line,
            or ``search``, all tries up to the solution. A search of three numbers has about a
            hundred lines, one of four many more.
        worked_share: The share of rows with this reasoning, always the same rows. The others answer
            with a guess, which is usually wrong.
    """
    require(
        "{numbers}" in template and "{target}" in template,
        "mapper_config: template",
        "a text with {numbers} and {target}",
        template,
    )
    allowed = ("steps", "search")
    require(reasoning in allowed, "mapper_config: reasoning", f"one of {allowed}", reasoning)
    puzzle = read_puzzle(row.get("nums"), row.get("target"))
    if puzzle is None:
        raise SkipRow("columns 'nums' and 'target' must hold whole numbers, with 'nums' 0 or more")
    numbers = list(puzzle.numbers)
    width = len(str(max(numbers)))
    listed = f"[{' '.join(f'{number:{width}}' for number in numbers)}]" if array else str(numbers)
    question = template.replace("{numbers}", listed).replace("{target}", str(puzzle.target))
    expression = text(row, "expression", needed=False)
    mapped = {
        "question": question,
        "solution": expression,
        "nums": numbers,
        "target": puzzle.target,
        "task": "countdown",
    }
    if not expression:
        return mapped
    if not check(expression, *puzzle):
        raise SkipRow("column 'expression' does not make the target from 'nums'")
    return {**mapped, **_worked(puzzle, expression, reasoning, worked_share)}


def _worked(puzzle: Any, expression: str, reasoning: str, worked_share: float) -> MappedRow:
    """Return the reasoning for SFT, and the answer that goes with it."""
    drawn = {"countdown": {"numbers": puzzle.numbers, "target": puzzle.target}}
    checksum = zlib.crc32(json.dumps(drawn).encode())  # the same rows in every version
    if checksum >= worked_share * 2**32:
        guess = _guess(list(puzzle.numbers), checksum)
        return {"reasoning": f"Perhaps {guess} is {puzzle.target}.", "answer": guess}
    if reasoning == "steps":
        return {"reasoning": "\n".join(steps(expression)), "answer": expression}
    searched = search(*puzzle)
    if searched is None:
        raise SkipRow("no steps in whole numbers from 0 make the target")
    return {"reasoning": "\n".join(searched[0]), "answer": searched[1]}


def _guess(numbers: list[int], checksum: int) -> str:
    """Join the numbers with operators, which the checksum of the row selects."""
    guess = str(numbers[0])
    for position, number in enumerate(numbers[1:]):
        guess += f" {'+-*'[(checksum >> 4 * position) % 3]} {number}"
    return guess
