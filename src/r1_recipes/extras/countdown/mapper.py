"""Map Countdown puzzles to questions, with reasoning for SFT."""

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
    """Jiayi-Pan/Countdown-Tasks-3to4 and the source ``countdown:``: ``nums`` and ``target``.

    The source ``countdown:`` also has a solution, ``expression``. The reasoning for SFT is
    ``steps``, the operations of the solution, one per line, or ``search``, all tries up to the
    solution. A search of three numbers has about a hundred lines, one of four many more.
    """

    template: str = (
        "Make {target} out of the numbers {numbers}. Use each of them exactly once, with +, "
        "-, *, / and brackets as needed. "
        "Answer with the expression alone."
    )
    array: bool = False  # Write the numbers as NumPy prints an array: [44 19  5].
    reasoning: str = "steps"
    # The share of rows with this reasoning, always the same rows. The others answer with a guess,
    # which is usually wrong.
    worked_share: float = 1.0
    columns = ("nums", "target")

    def __post_init__(self) -> None:
        check_choice("reasoning", self.reasoning, ("steps", "search"))
        check_template(self.template, "{numbers}", "{target}")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        if (puzzle := read_puzzle(row.get("nums"), row.get("target"))) is None:
            raise SkipRow(
                "columns 'nums' and 'target' must hold whole numbers, with 'nums' 0 or more"
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
            raise SkipRow("column 'expression' does not make the target from 'nums'")
        checksum = zlib.crc32(puzzle.scorer.encode())
        if checksum >= self.worked_share * 2**32:
            guess = _guess(list(puzzle.numbers), checksum)
            return {**mapped, "reasoning": f"Perhaps {guess} is {puzzle.target}.", "answer": guess}
        if self.reasoning == "steps":
            return {**mapped, "reasoning": "\n".join(steps(expression))}
        searched = search(*puzzle)
        if searched is None:
            raise SkipRow("no steps in whole numbers from 0 make the target")
        return {**mapped, "reasoning": "\n".join(searched[0]), "answer": searched[1]}

    def _question(self, numbers: list[int], target: int) -> str:
        text = str(numbers)
        if self.array:  # As NumPy prints it.
            width = len(str(max(numbers)))
            text = f"[{' '.join(f'{number:{width}}' for number in numbers)}]"
        return self.template.replace("{numbers}", text).replace("{target}", str(target))


def _guess(numbers: list[int], checksum: int) -> str:
    """Join the numbers with operators, which the checksum of the row selects."""
    guess = str(numbers[0])
    for position, number in enumerate(numbers[1:]):
        guess += f" {'+-*'[(checksum >> 4 * position) % 3]} {number}"
    return guess
