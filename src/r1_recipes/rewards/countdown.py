"""Rewards of TinyZero's tasks: the Countdown puzzle, and products and sums whose answer is one whole number."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import completion_texts
from r1_recipes.rewards.accuracy import parsed_answer
from r1_recipes.rewards.registry import AnswerReward, Column, Log, Values, ignore, register_reward
from r1_recipes.tasks.countdown import MAX_ANSWER_CHARS, Puzzle, check, read_puzzle, scorer_puzzle

_WHOLE = re.compile(r"[-+]?[0-9]+")


@register_reward("countdown")
class CountdownReward(AnswerReward):
    """1.0 if the answer makes the target of every number exactly once, ``countdown_format_score`` for any other answer, 0.0 for none.

    Range: {0, ``countdown_format_score``, 1}. ``None`` for a row without a puzzle in its ``scorer`` (the mappers ``countdown`` and ``verl``
    write it), or else ``nums`` and ``target``. The answer is all that stands in the format's answer block.

    Source: TinyZero (1.0, 0.1 and 0), which reads the last block of a completion's last line; and, with ``countdown_format_score: 0``
    beside ``format_partial`` at weight 0.1, GRPO-Zero, which reads the first block. Here blocks that differ are no answer; with
    ``countdown_answer_anywhere`` the last block counts, inside the reasoning or behind a ``<think>`` that never closes, as it does there.
    """

    countdown_format_score: float = 0.1
    countdown_answer_anywhere: bool = False

    def __call__(self, completions: Column, *, scorer: Column | None = None, log_extra: Log = ignore, **columns: Any) -> Values:
        nothing = [None] * len(completions)
        nums, target = columns.get("nums", nothing), columns.get("target", nothing)
        if scorer is None and ("nums" not in columns or "target" not in columns):
            raise self.missing("the puzzles: a column 'scorer' (mapper: countdown, or verl), or 'nums' and 'target'", columns)
        rows = zip(scorer or nothing, nums, target, strict=True)
        try:
            puzzles = [scorer_puzzle(spec) if spec else read_puzzle(numbers, goal) for spec, numbers, goal in rows]
        except ValueError as error:
            raise RecipeError(f"reward {self.name!r}: column 'scorer': {error}") from error
        read = self.response_format.answer_anywhere if self.countdown_answer_anywhere else partial(parsed_answer, self.response_format)
        answers = [read(text) for text in completion_texts(completions)]
        self.log_answers(log_extra, answers, [puzzle and f"{puzzle.target} of {', '.join(map(str, puzzle.numbers))}" for puzzle in puzzles])
        return [puzzle and self._pay(puzzle, answer) for puzzle, answer in zip(puzzles, answers, strict=True)]

    def _pay(self, puzzle: Puzzle, answer: str | None) -> float:
        if answer is None:
            return 0.0
        return 1.0 if check(answer, *puzzle) else self.countdown_format_score


@register_reward("multiply")
class MultiplyReward(AnswerReward):
    """1.0 if the answer is the whole number in the column ``solution``, ``multiply_format_score`` for another whole number, else 0.0.

    Range: {0, ``multiply_format_score``, 1}. ``None`` if the gold is no whole number. The answer must be the number alone, in the digits
    0 to 9; a word, a separator or a decimal point beside it is no answer, as in the source.

    Source: TinyZero's ``multiply`` and ``arithmetic`` tasks.
    """

    multiply_format_score: float = 0.1

    def answer(self, text: str) -> str | None:
        return parsed_answer(self.response_format, text)

    def score(self, answer: str | None, gold: str) -> float | None:
        right, number = _whole_number(gold), _whole_number(answer or "")
        if right is None or number is None:
            return None if right is None else 0.0
        return 1.0 if number == right else self.multiply_format_score


def _whole_number(text: str) -> int | None:
    text = text.strip()
    return int(text) if len(text) <= MAX_ANSWER_CHARS and _WHOLE.fullmatch(text) else None
