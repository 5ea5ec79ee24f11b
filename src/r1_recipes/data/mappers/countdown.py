"""Countdown puzzles."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.data.mappers.base import Mapper, SkipRow, optional_text, register_mapper
from r1_recipes.tasks.countdown import Verdict, check, read_puzzle, search, steps

_COUNTDOWN_TEMPLATES = {
    "en": "Make {target} out of the numbers {numbers}. Use each of them exactly once, with +, -, *, / and brackets as needed. "
    "Answer with the expression alone.",
    "zh": "请用 {numbers} 中的每个数各一次，借助 +、-、*、/ 和括号，算出 {target}。答案只写算式。",
}


@register_mapper("countdown")
@dataclass(frozen=True)
class Countdown(Mapper):
    """Jiayi-Pan/Countdown-Tasks-3to4 and the source ``countdown:``: ``nums``, ``target`` and, in the latter, a solution, ``expression``.

    The row's ``scorer`` judges by :func:`r1_recipes.tasks.countdown.check`; ``task`` is ``countdown``. Where there is a solution, it is an SFT
    target's answer, and the reasoning is made from it.

    Attributes:
        template: the question, with ``{numbers}`` (filled in as ``[7, 4, 3]``) and ``{target}``; ``None``: a wording of ours.
        language: of that wording: ``en`` or ``zh``.
        reasoning: ``steps``: the solution's operations, one a line, as if it had been known; ``search``: tries, wrong ones rejected, up to
            the solution (:func:`r1_recipes.tasks.countdown.search`), which a model can carry over to puzzles that it has not seen. A search of
            three numbers may take a hundred lines, of four many more.
        worked_share: share of rows (0..1, by row, the same every time) with that reasoning. The others guess an
            expression of the numbers and answer that, as a hasty teacher would; it is usually wrong. See :class:`Arithmetic`.

    Raises:
        RecipeError: the template lacks a slot, or there is no such language or reasoning.
    """

    template: str | None = None
    language: str = "en"
    reasoning: str = "steps"
    worked_share: float = 1.0
    columns = ("nums", "target")
    hub = (("Jiayi-Pan/Countdown-Tasks-3to4", None),)
    optional = ("expression",)
    examples = (
        {"target": 31, "nums": [7, 4, 3], "expression": "7 * 4 + 3"},
        {"target": 24, "nums": [8, 2, 4], "expression": "(8 - 2) * 4"},
        {"target": 98, "nums": [44, 19, 35]},
    )

    def __post_init__(self) -> None:
        if self.language not in _COUNTDOWN_TEMPLATES:
            raise RecipeError("mapper_config: " + unknown_name("language", self.language, _COUNTDOWN_TEMPLATES))
        if self.reasoning not in ("steps", "search"):
            raise RecipeError("mapper_config: " + unknown_name("reasoning", self.reasoning, ("steps", "search")))
        if self.template is not None and not all(slot in self.template for slot in ("{numbers}", "{target}")):
            raise RecipeError(f"mapper_config: template: needs {{numbers}} and {{target}} where they go; found {self.template!r}")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        puzzle = read_puzzle(row.get("nums"), row.get("target"))
        if puzzle is None:
            raise SkipRow("columns 'nums' and 'target' hold no whole numbers from 0 and a whole target")
        numbers, expression = list(puzzle.numbers), optional_text(row, "expression")
        question = self.template or _COUNTDOWN_TEMPLATES[self.language]
        question = question.replace("{numbers}", str(numbers)).replace("{target}", str(puzzle.target))
        mapped = {"question": question, "solution": expression, "scorer": puzzle.scorer, "task": "countdown"}
        if not expression:
            return mapped
        if check(expression, *puzzle) is not Verdict.RIGHT:
            raise SkipRow("column 'expression' does not make the target out of 'nums'")
        drawn = zlib.crc32(mapped["scorer"].encode())
        if drawn < self.worked_share * 2**32:
            if self.reasoning == "steps":
                return {**mapped, "reasoning": "\n".join(steps(expression))}
            found = search(*puzzle)
            if found is None:
                raise SkipRow("no steps in whole numbers from 0 make the target")
            return {**mapped, "reasoning": "\n".join(found[0]), "answer": found[1]}
        guess = str(numbers[0])
        for position, number in enumerate(numbers[1:]):
            guess += f" {'+-*'[(drawn >> 4 * position) % 3]} {number}"
        return {**mapped, "reasoning": f"Perhaps {guess} is {puzzle.target}.", "answer": guess}
