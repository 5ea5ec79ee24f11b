"""Rewards of TinyZero's tasks: the Countdown puzzle, and products and sums whose answer is one whole number."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.rewards.accuracy import parsed_answers, require_solution
from r1_recipes.rewards.registry import AnswerReward, register_reward
from r1_recipes.tasks.countdown import MAX_ANSWER_CHARS, Puzzle, Verdict, check, read_puzzle, scorer_puzzle


@register_reward("countdown")
@dataclass(frozen=True)
class CountdownReward(AnswerReward):
    """1.0 where the answer makes the target of every number exactly once, ``countdown_format_score`` for any other answer, 0.0 for none.

    Range: {0, ``countdown_format_score``, 1}; 0 for ``countdown_format_score`` makes it 0 or 1. ``None`` for a row without a puzzle. What
    is right is :func:`r1_recipes.tasks.countdown.check`'s to say; the answer is all that stands in the format's answer block, over as many lines
    as it takes.

    A row's puzzle is read from the column ``scorer`` (the mappers ``countdown`` and ``verl`` write it), else from ``nums`` or ``numbers``
    with ``target``, else from veRL's ``reward_model``. Sends ``countdown_verdict`` (right, wrong, malformed, no answer) to the
    completions table, and to the metrics ``countdown/success`` and ``countdown/malformed`` (shares of the rows that it judges).

    Source: TinyZero (1.0, 0.1 and 0), which reads the last block of a completion's last line; and, with ``countdown_format_score: 0``
    beside ``format_partial`` at weight 0.1, GRPO-Zero, which reads the first block. Here blocks that differ are no answer.
    """

    countdown_format_score: float = 0.1

    def __call__(
        self,
        completions: Sequence[Any],
        scorer: Sequence[str | None] | None = None,
        nums: Sequence[Any] | None = None,
        numbers: Sequence[Any] | None = None,
        target: Sequence[Any] | None = None,
        reward_model: Sequence[Any] | None = None,
        log_extra: Callable[[str, list], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        given = nums if nums is not None else numbers
        if scorer is None and (given is None or target is None) and reward_model is None:
            found = sorted(key for key, value in columns.items() if isinstance(value, list | tuple))
            raise RecipeError(
                f"reward {self.name!r} needs the puzzles: a column 'scorer' (mapper: countdown, or verl), 'nums' and 'target', or veRL's "
                f"'reward_model'; the dataset's columns here are: {', '.join(found) or 'none'}"
            )
        puzzles = [_puzzle(row, scorer, given, target, reward_model) for row in range(len(completions))]
        answers = parsed_answers(self.response_format, completions)
        verdicts = [
            None if puzzle is None else "no answer" if answer is None else check(answer, puzzle.numbers, puzzle.target)
            for puzzle, answer in zip(puzzles, answers, strict=True)
        ]
        golds = [puzzle and f"{puzzle.target} of {', '.join(map(str, puzzle.numbers))}" for puzzle in puzzles]
        self.log_answers(log_extra, answers, golds)
        if log_extra is not None:
            log_extra("countdown_verdict", ["" if verdict is None else str(verdict) for verdict in verdicts])
        if log_metric is not None:
            # One value a row: batches with more puzzles weigh more in the logged mean.
            for verdict in verdicts:
                if verdict is not None:
                    log_metric("countdown/success", float(verdict == Verdict.RIGHT))
                    log_metric("countdown/malformed", float(verdict == Verdict.MALFORMED))
        scores = {None: None, "no answer": 0.0, Verdict.RIGHT: 1.0}
        return [scores.get(verdict, self.countdown_format_score) for verdict in verdicts]


def _puzzle(
    row: int,
    scorer: Sequence[str | None] | None,
    numbers: Sequence[Any] | None,
    target: Sequence[Any] | None,
    reward_model: Sequence[Any] | None,
) -> Puzzle | None:
    """The puzzle of one row of a batch; ``None`` where the row is another task's."""
    if scorer is not None and scorer[row]:
        return scorer_puzzle(scorer[row])
    if numbers is not None and target is not None and numbers[row] is not None:
        return read_puzzle(numbers[row], target[row])
    rule = reward_model[row] if reward_model is not None else None
    truth = rule.get("ground_truth") if isinstance(rule, dict) else None
    return read_puzzle(truth.get("numbers"), truth.get("target")) if isinstance(truth, dict) else None


_WHOLE = re.compile(r"[-+]?[0-9]+")


@register_reward("multiply")
@dataclass(frozen=True)
class MultiplyReward(AnswerReward):
    """1.0 where the answer is the whole number in the column ``solution``, ``multiply_format_score`` for another whole number, else 0.0.

    Range: {0, ``multiply_format_score``, 1}. ``None`` where the gold is no whole number, or the row has a ``scorer`` of its own. The answer
    must be the number alone, in the digits 0 to 9; a word, a separator or a decimal point beside it is no answer, as in the source.

    Source: TinyZero's ``multiply`` and ``arithmetic`` tasks.
    """

    multiply_format_score: float = 0.1

    def __call__(
        self,
        completions: Sequence[Any],
        solution: Sequence[Any] | None = None,
        scorer: Sequence[str | None] | None = None,
        log_extra: Callable[[str, list], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        require_solution(self.name, solution, columns)
        answers = parsed_answers(self.response_format, completions)
        self.log_answers(log_extra, answers, solution)
        others = scorer if scorer is not None else [None] * len(answers)
        return [
            None if other else self._score(_whole_number(str(gold)), answer)
            for gold, answer, other in zip(solution, answers, others, strict=True)
        ]

    def _score(self, gold: int | None, answer: str | None) -> float | None:
        if gold is None:
            return None
        number = None if answer is None else _whole_number(answer)
        if number is None:
            return 0.0
        return 1.0 if number == gold else self.multiply_format_score


def _whole_number(text: str) -> int | None:
    text = text.strip()
    return int(text) if len(text) <= MAX_ANSWER_CHARS and _WHOLE.fullmatch(text) else None
