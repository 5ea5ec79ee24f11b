"""The reward of the Countdown puzzle, as TinyZero and GRPO-Zero pay it."""

from functools import partial
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import completion_texts
from r1_recipes.extras.countdown.puzzle import Puzzle, check, read_puzzle, scorer_puzzle
from r1_recipes.rewards.accuracy import parsed_answer
from r1_recipes.rewards.registry import AnswerReward, Column, Log, Values, ignore, register_reward


@register_reward("countdown")
class CountdownReward(AnswerReward):
    """1.0 if the answer makes the target of every number exactly once, ``countdown_format_score``
    for any other answer, 0.0 for none.

    Range: {0, ``countdown_format_score``, 1}. ``None`` for a row without a puzzle in its ``scorer``
    (the mappers ``countdown`` and ``verl`` write it), or else ``nums`` and ``target``. The answer
    is all that stands in the format's answer block.

    Source: TinyZero (1.0, 0.1 and 0), which reads the last block of a completion's last line; and,
    with ``countdown_format_score: 0`` beside ``format_partial`` at weight 0.1, GRPO-Zero, which
    reads the first block. Here blocks that differ are no answer; with ``countdown_answer_anywhere``
    the last block counts, inside the reasoning or behind a ``<think>`` that never closes, as it
    does there.
    """

    countdown_format_score: float = 0.1
    countdown_answer_anywhere: bool = False

    def __call__(
        self,
        completions: Column,
        *,
        scorer: Column | None = None,
        log_extra: Log = ignore,
        **columns: Any,
    ) -> Values:
        nothing = [None] * len(completions)
        nums, target = columns.get("nums", nothing), columns.get("target", nothing)
        if scorer is None and ("nums" not in columns or "target" not in columns):
            raise self.missing(
                "the puzzles: a column 'scorer' (mapper: countdown, or verl), or 'nums' and "
                "'target'",
                columns,
            )
        rows = zip(scorer or nothing, nums, target, strict=True)
        try:
            puzzles = [
                scorer_puzzle(spec) if spec else read_puzzle(numbers, goal)
                for spec, numbers, goal in rows
            ]
        except ValueError as error:
            raise RecipeError(f"reward {self.name!r}: column 'scorer': {error}") from error
        read = (
            self.response_format.answer_anywhere
            if self.countdown_answer_anywhere
            else partial(parsed_answer, self.response_format)
        )
        answers = [read(text) for text in completion_texts(completions)]
        self.log_answers(
            log_extra,
            answers,
            [
                puzzle and f"{puzzle.target} of {', '.join(map(str, puzzle.numbers))}"
                for puzzle in puzzles
            ],
        )
        return [
            puzzle and self._pay(puzzle, answer)
            for puzzle, answer in zip(puzzles, answers, strict=True)
        ]

    def _pay(self, puzzle: Puzzle, answer: str | None) -> float:
        return (
            0.0
            if answer is None
            else 1.0
            if check(answer, *puzzle)
            else self.countdown_format_score
        )
