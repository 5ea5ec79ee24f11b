"""The reward of the Countdown puzzle, after TinyZero and GRPO-Zero."""

from typing import Any

from r1_recipes.common.messages import completion_texts
from r1_recipes.extras.countdown.puzzle import Puzzle, check, read_puzzle
from r1_recipes.prompts.formats import between
from r1_recipes.rewards.accuracy import parsed_answer
from r1_recipes.rewards.registry import AnswerReward, Column, Log, Values, ignore, register_reward


@register_reward("countdown")
class CountdownReward(AnswerReward):
    """Return 1.0 if the answer makes the target, using every number exactly once.

    Range: {0, ``countdown_format_score``, 1}. Any other answer scores ``countdown_format_score``,
    and a missing answer 0.0. Return ``None`` for a row without a puzzle in ``nums`` and ``target``,
    which the mappers ``countdown`` and ``verl`` write. The answer is the whole answer block of the
    response format.

    Source: TinyZero (1.0, 0.1 and 0), which reads the last block of the last line of a completion.
    Or GRPO-Zero, which reads the first block: set ``countdown_format_score: 0``, and
    ``format_partial`` with weight 0.1. Here, several different blocks are not an answer. With
    ``countdown_answer_anywhere``, the last block counts, as in these projects, even inside the
    reasoning or after a ``<think>`` that is never closed.
    """

    countdown_format_score: float = 0.1
    countdown_answer_anywhere: bool = False

    def __call__(
        self,
        completions: Column,
        *,
        nums: Column | None = None,
        target: Column | None = None,
        log_extra: Log = ignore,
        **columns: Any,
    ) -> Values:
        if nums is None or target is None:
            raise self.missing(
                "the puzzles: columns 'nums' and 'target' (mapper: countdown, or verl)", columns
            )
        puzzles = list(map(read_puzzle, nums, target))
        answers = [self._read(text) for text in completion_texts(completions)]
        self.log_answers(
            log_extra,
            answers,
            [
                puzzle and f"{puzzle.target} of {', '.join(map(str, puzzle.numbers))}"
                for puzzle in puzzles
            ],
        )
        return [
            puzzle and self._score_answer(puzzle, answer)
            for puzzle, answer in zip(puzzles, answers, strict=True)
        ]

    def _read(self, text: str) -> str | None:
        fmt = self.response_format
        if self.countdown_answer_anywhere and fmt.answer_tags:
            return between(fmt.full_text(text), *fmt.answer_tags)[1].strip() or None
        return parsed_answer(fmt, text)

    def _score_answer(self, puzzle: Puzzle, answer: str | None) -> float:
        return (
            0.0
            if answer is None
            else 1.0
            if check(answer, *puzzle)
            else self.countdown_format_score
        )
