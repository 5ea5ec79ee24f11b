"""A Countdown puzzle as a question, with reasoning for SFT."""

import zlib
from typing import Any

from r1_recipes.data.mapped_row import MappedRow
from r1_recipes.data.mappers.base import (
    Mapper,
    SkipRow,
    check_choice,
    check_template,
    optional_text,
    register_mapper,
)
from r1_recipes.extras.countdown.puzzle import check, read_puzzle, search, steps


@register_mapper("countdown")
class Countdown(Mapper):
    """Jiayi-Pan/Countdown-Tasks-3to4 and the source ``countdown:``: ``nums``, ``target`` and, in
    the latter, a solution, ``expression``.

    SFT's reasoning is ``steps``, the solution's operations, one per line, or ``search``: tries,
    wrong ones rejected, up to the solution (of three numbers some hundred lines, of four many
    more).
    """

    template: str = (
        "Make {target} out of the numbers {numbers}. Use each of them exactly once, with +, "
        "-, *, / and brackets as needed. "
        "Answer with the expression alone."
    )
    array: bool = False  # ask for the numbers as NumPy prints an array: [44 19  5]
    reasoning: str = "steps"
    # Of rows, the same ones every time, with that reasoning; the others answer a guess, usually
    # wrong
    worked_share: float = 1.0
    columns = ("nums", "target")

    def __post_init__(self) -> None:
        check_choice("reasoning", self.reasoning, ("steps", "search"))
        check_template(self.template, "{numbers}", "{target}")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        if (puzzle := read_puzzle(row.get("nums"), row.get("target"))) is None:
            raise SkipRow(
                "columns 'nums' and 'target' hold no whole numbers from 0 and a whole target"
            )
        expression = optional_text(row, "expression")
        mapped: MappedRow = {
            "question": self._question(list(puzzle.numbers), puzzle.target),
            "solution": expression,
            "scorer": puzzle.scorer,
            "task": "countdown",
        }
        if not expression:
            return mapped
        if not check(expression, *puzzle):
            raise SkipRow("column 'expression' does not make the target out of 'nums'")
        drawn = zlib.crc32(puzzle.scorer.encode())
        if drawn >= self.worked_share * 2**32:
            guess = _guess(list(puzzle.numbers), drawn)
            return {**mapped, "reasoning": f"Perhaps {guess} is {puzzle.target}.", "answer": guess}
        if self.reasoning == "steps":
            return {**mapped, "reasoning": "\n".join(steps(expression))}
        searched = search(*puzzle)
        if searched is None:
            raise SkipRow("no steps in whole numbers from 0 make the target")
        return {**mapped, "reasoning": "\n".join(searched[0]), "answer": searched[1]}

    def _question(self, numbers: list[int], target: int) -> str:
        listed = str(numbers)
        if self.array:  # as NumPy prints it
            width = len(str(max(numbers)))
            listed = f"[{' '.join(f'{number:{width}}' for number in numbers)}]"
        return self.template.replace("{numbers}", listed).replace("{target}", str(target))


def _guess(numbers: list[int], drawn: int) -> str:
    """Join the numbers by operators that a row's checksum draws."""
    guess = str(numbers[0])
    for position, number in enumerate(numbers[1:]):
        guess += f" {'+-*'[(drawn >> 4 * position) % 3]} {number}"
    return guess
