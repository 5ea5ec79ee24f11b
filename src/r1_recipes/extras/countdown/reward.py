"""The reward of the Countdown puzzle, after TinyZero and GRPO-Zero."""

from typing import Any

from r1_recipes.common.messages import completion_texts
from r1_recipes.extras.countdown.puzzle import check, read_puzzle
from r1_recipes.prompts import ResponseFormat, between
from r1_recipes.rewards.answers import parsed_answer
from r1_recipes.rewards.types import THINK_ANSWER, Column, Log, Values, ignore


def countdown(
    completions: Column,
    nums: Column,
    target: Column,
    log_extra: Log = ignore,
    *,
    fmt: ResponseFormat = THINK_ANSWER,
    countdown_format_score: float = 0.1,
    countdown_answer_anywhere: bool = False,
    **columns: Any,
) -> Values:
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
    texts = completion_texts(completions)
    answers = [parsed_answer(fmt, text) or "" for text in texts]
    if countdown_answer_anywhere and fmt.answer_tags:
        answers = [between(fmt.full_text(text), *fmt.answer_tags)[1].strip() for text in texts]
    log_extra("countdown_answer", answers)
    scores: Values = []
    for answer, puzzle in zip(answers, map(read_puzzle, nums, target), strict=True):
        score = countdown_format_score if answer else 0.0
        solved = puzzle is not None and check(answer, *puzzle)
        scores.append(None if puzzle is None else 1.0 if solved else score)
    return scores
