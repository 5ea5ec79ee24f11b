"""Countdown puzzles."""

import zlib
from dataclasses import dataclass
from typing import Any

from r1_recipes.data.mappers.base import Mapper, SkipRow, check_choice, check_template, optional_text, register_mapper
from r1_recipes.tasks.countdown import check, read_puzzle, search, steps

_TEMPLATE = (
    "Make {target} out of the numbers {numbers}. Use each of them exactly once, with +, -, *, / and brackets as needed. "
    "Answer with the expression alone."
)


@register_mapper("countdown")
@dataclass(frozen=True)
class Countdown(Mapper):
    """Jiayi-Pan/Countdown-Tasks-3to4 and the source ``countdown:``: ``nums``, ``target`` and, in the latter, a solution, ``expression``.

    Attributes:
        template: the question, with ``{numbers}`` (filled in as ``[7, 4, 3]``) and ``{target}``.
        reasoning: of SFT's target. ``steps``: the solution's operations, one per line; ``search``: tries, wrong ones rejected, up to
            the solution, which a model can carry over to new puzzles: of three numbers some hundred lines, of four many more.
        worked_share: share of rows (0..1, the same ones every time) with that reasoning; the others answer a guess, usually wrong.
    """

    template: str = _TEMPLATE
    reasoning: str = "steps"
    worked_share: float = 1.0
    columns = ("nums", "target")

    def __post_init__(self) -> None:
        check_choice("reasoning", self.reasoning, ("steps", "search"))
        check_template(self.template, "{numbers}", "{target}")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        puzzle = read_puzzle(row.get("nums"), row.get("target"))
        if puzzle is None:
            raise SkipRow("columns 'nums' and 'target' hold no whole numbers from 0 and a whole target")
        numbers, expression = list(puzzle.numbers), optional_text(row, "expression")
        question = self.template.replace("{numbers}", str(numbers)).replace("{target}", str(puzzle.target))
        mapped = {"question": question, "solution": expression, "scorer": puzzle.scorer, "task": "countdown"}
        if not expression:
            return mapped
        if not check(expression, *puzzle):
            raise SkipRow("column 'expression' does not make the target out of 'nums'")
        drawn = zlib.crc32(puzzle.scorer.encode())
        if drawn >= self.worked_share * 2**32:
            guess = str(numbers[0])
            for position, number in enumerate(numbers[1:]):
                guess += f" {'+-*'[(drawn >> 4 * position) % 3]} {number}"
            return {**mapped, "reasoning": f"Perhaps {guess} is {puzzle.target}.", "answer": guess}
        if self.reasoning == "steps":
            return {**mapped, "reasoning": "\n".join(steps(expression))}
        found = search(*puzzle)
        if found is None:
            raise SkipRow("no steps in whole numbers from 0 make the target")
        return {**mapped, "reasoning": "\n".join(found[0]), "answer": found[1]}
