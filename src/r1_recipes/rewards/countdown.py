"""Rewards of TinyZero's tasks: the Countdown puzzle, and products and sums whose answer is one whole number."""

from __future__ import annotations

import re
from typing import Any

from r1_recipes.common.messages import completion_texts
from r1_recipes.rewards.accuracy import parsed_answer
from r1_recipes.rewards.registry import AnswerReward, Column, Log, Values, ignore, register_reward
from r1_recipes.tasks.countdown import MAX_ANSWER_CHARS, Verdict, check, read_puzzle, scorer_puzzle

_WHOLE = re.compile(r"[-+]?[0-9]+")


@register_reward("countdown")
class CountdownReward(AnswerReward):
    """1.0 if the answer makes the target of every number exactly once, ``countdown_format_score`` for any other answer, 0.0 for none.

    Range: {0, ``countdown_format_score``, 1}. The puzzle is read from the column ``scorer`` (the mappers ``countdown`` and ``verl`` write
    it), else from ``nums`` and ``target``; ``None`` for a row without one. Sends ``countdown_verdict`` to the completions table.

    Source: TinyZero (1.0, 0.1 and 0), which reads the last block of a completion's last line; and, with ``countdown_format_score: 0``
    beside ``format_partial`` at weight 0.1, GRPO-Zero, which reads the first block. Here blocks that differ are no answer.
    """

    countdown_format_score: float = 0.1

    def __call__(
        self,
        completions: Column,
        *,
        scorer: Column | None = None,
        nums: Column | None = None,
        target: Column | None = None,
        log_extra: Log = ignore,
        **columns: Any,
    ) -> Values:
        if scorer is None and (nums is None or target is None):
            raise self.missing("the puzzles: a column 'scorer' (mapper: countdown, or verl), or 'nums' and 'target'", columns)
        blank = [None] * len(completions)
        rows = zip(scorer or blank, nums or blank, target or blank, strict=True)
        puzzles = [scorer_puzzle(spec) if spec else read_puzzle(numbers, goal) for spec, numbers, goal in rows]
        answers = [parsed_answer(self.response_format, text) for text in completion_texts(completions)]
        verdicts = [
            None if puzzle is None else "no answer" if answer is None else check(answer, puzzle.numbers, puzzle.target)
            for puzzle, answer in zip(puzzles, answers, strict=True)
        ]
        golds = [puzzle and f"{puzzle.target} of {', '.join(map(str, puzzle.numbers))}" for puzzle in puzzles]
        self.log_answers(log_extra, answers, golds)
        log_extra("countdown_verdict", ["" if verdict is None else str(verdict) for verdict in verdicts])
        scores = {None: None, "no answer": 0.0, Verdict.RIGHT: 1.0}
        return [scores.get(verdict, self.countdown_format_score) for verdict in verdicts]


@register_reward("multiply")
class MultiplyReward(AnswerReward):
    """1.0 if the answer is the whole number in the column ``solution``, ``multiply_format_score`` for another whole number, else 0.0.

    Range: {0, ``multiply_format_score``, 1}. ``None`` if the gold is no whole number, or the row has a ``scorer`` of its own. A word, a
    separator or a decimal point beside the digits is no answer. Source: TinyZero's ``multiply`` and ``arithmetic`` tasks.
    """

    multiply_format_score: float = 0.1

    def __call__(self, completions: Column, *, scorer: Column | None = None, **columns: Any) -> Values:
        scores = super().__call__(completions, **columns)
        return scores if scorer is None else [None if other else score for other, score in zip(scorer, scores, strict=True)]

    def answer(self, text: str) -> str | None:
        return parsed_answer(self.response_format, text)

    def score(self, answer: str | None, gold: str) -> float | None:
        right, number = _whole_number(gold), _whole_number(answer or "")
        if right is None:
            return None
        return 0.0 if number is None else 1.0 if number == right else self.multiply_format_score


def _whole_number(text: str) -> int | None:
    text = text.strip()
    return int(text) if len(text) <= MAX_ANSWER_CHARS and _WHOLE.fullmatch(text) else None
