"""Rewards of TinyZero's tasks: the Countdown puzzle, and products and sums whose answer is one whole number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.messages import completion_texts
from r1_recipes.rewards.accuracy import parsed_answer
from r1_recipes.rewards.registry import AnswerReward, Column, Log, Values, ignore, register_reward
from r1_recipes.tasks.countdown import MAX_ANSWER_CHARS, Puzzle, Verdict, check, read_puzzle, scorer_puzzle

_COLUMNS = ("scorer", "nums", "numbers", "target", "reward_model")
_WHOLE = re.compile(r"[-+]?[0-9]+")


@register_reward("countdown")
@dataclass(frozen=True)
class CountdownReward(AnswerReward):
    """1.0 if the answer makes the target of every number exactly once, ``countdown_format_score`` for any other answer, 0.0 for none.

    Range: {0, ``countdown_format_score``, 1}. ``None`` for a row without a puzzle. :func:`r1_recipes.tasks.countdown.check` decides; the
    answer is all that stands in the format's answer block.

    A row's puzzle is read from the column ``scorer`` (the mappers ``countdown`` and ``verl`` write it), else from ``nums`` or ``numbers``
    with ``target``, else from veRL's ``reward_model``. Sends ``countdown_verdict`` (right, wrong, malformed, no answer) to the
    completions table, and to the metrics ``countdown/success`` and ``countdown/malformed`` (shares of the rows that it judges).

    Source: TinyZero (1.0, 0.1 and 0), which reads the last block of a completion's last line; and, with ``countdown_format_score: 0``
    beside ``format_partial`` at weight 0.1, GRPO-Zero, which reads the first block. Here blocks that differ are no answer.
    """

    countdown_format_score: float = 0.1

    def answer(self, text: str) -> str | None:
        return parsed_answer(self.response_format, text)

    def __call__(self, completions: Column, *, log_extra: Log = ignore, log_metric: Log = ignore, **columns: Any) -> Values:
        held = {key: columns[key] for key in _COLUMNS if columns.get(key) is not None}
        if not ({"scorer", "reward_model"} & held.keys() or ("target" in held and len(held) > 1)):
            needed = "the puzzles: a column 'scorer' (mapper: countdown, or verl), 'nums' and 'target', or veRL's 'reward_model'"
            raise self.missing(needed, columns)
        puzzles = [_puzzle(dict(zip(held, row, strict=True))) for row in zip(*held.values(), strict=True)]
        answers = [self.answer(text) for text in completion_texts(completions)]
        verdicts = [
            None if puzzle is None else "no answer" if answer is None else check(answer, puzzle.numbers, puzzle.target)
            for puzzle, answer in zip(puzzles, answers, strict=True)
        ]
        golds = [puzzle and f"{puzzle.target} of {', '.join(map(str, puzzle.numbers))}" for puzzle in puzzles]
        self.log_answers(log_extra, answers, golds)
        log_extra("countdown_verdict", ["" if verdict is None else str(verdict) for verdict in verdicts])
        # One value per row: batches with more puzzles weigh more in the logged mean.
        for verdict in filter(None, verdicts):
            log_metric("countdown/success", float(verdict == Verdict.RIGHT))
            log_metric("countdown/malformed", float(verdict == Verdict.MALFORMED))
        scores = {None: None, "no answer": 0.0, Verdict.RIGHT: 1.0}
        return [scores.get(verdict, self.countdown_format_score) for verdict in verdicts]


def _puzzle(row: Mapping[str, Any]) -> Puzzle | None:
    if row.get("scorer"):
        return scorer_puzzle(row["scorer"])
    numbers = row.get("nums", row.get("numbers"))
    if numbers is not None and row.get("target") is not None:
        return read_puzzle(numbers, row["target"])
    rule = row.get("reward_model")
    truth = rule.get("ground_truth") if isinstance(rule, dict) else None
    return read_puzzle(truth.get("numbers"), truth.get("target")) if isinstance(truth, dict) else None


@register_reward("multiply")
@dataclass(frozen=True)
class MultiplyReward(AnswerReward):
    """1.0 if the answer is the whole number in the column ``solution``, ``multiply_format_score`` for another whole number, else 0.0.

    Range: {0, ``multiply_format_score``, 1}. ``None`` if the gold is no whole number, or the row has a ``scorer`` of its own. The answer
    must be the number alone, in the digits 0 to 9; a word, a separator or a decimal point beside it is no answer, as in the source.

    Source: TinyZero's ``multiply`` and ``arithmetic`` tasks.
    """

    multiply_format_score: float = 0.1

    def __call__(self, completions: Column, *, scorer: Sequence[str | None] | None = None, **columns: Any) -> Values:
        scores = super().__call__(completions, **columns)
        return scores if scorer is None else [None if other else score for other, score in zip(scorer, scores, strict=True)]

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
