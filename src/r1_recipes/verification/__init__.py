r"""Decide whether an answer is mathematically equal to the reference answer, in bounded time.

The trainer's process reads the answers and compares texts and numbers. math-verify compares the
rest, in processes that are killed when they hang. Importing this module does not import torch.
"""

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass

from r1_recipes.verification import pool, reading, trees
from r1_recipes.verification.expressions import Undecided
from r1_recipes.verification.reading import MAX_ANSWER_CHARS, Refusal, final_answer

__all__ = ["Refusal", "Verdict", "final_answer", "grade", "judge", "start"]

CACHE_SIZE = 16_384  # verdicts remembered: several steps' worth of completions, a few MB


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is right (``None``: nothing can be compared), and why it is not."""

    right: bool | None
    refusal: Refusal | None = None


_VERDICTS = {
    True: Verdict(True),
    False: Verdict(False, Refusal.DIFFERENT),
    None: Verdict(False, Refusal.SLOW),
}


def judge(
    golds: Sequence[str | None],
    answers: Sequence[str | None],
    locale: str = "en",
    questions: Sequence[str] | None = None,
) -> list[Verdict]:
    r"""Compare each answer with its reference answer. No text makes this function raise.

    An answer is right if it is the same text or if math-verify finds it equal: ``1080.00`` equals
    ``1,080``, and ``50%`` equals 50 and 0.5.

    Args:
        golds: The reference answers: plain, LaTeX, words, or solutions with boxes, ``####`` or
            "answer is".
        answers: The answers; ``None`` where a completion has none.
        locale: How numbers are written: ``1.250,5`` is 1250.5 in ``"de"``.
        questions: The questions. An answer that repeats an operation of its question is wrong. The
            order of a list counts where the question asks for an order.
    """
    questions = questions or [""] * len(golds)
    found = [
        _read(
            gold or "",
            answer and answer[: MAX_ANSWER_CHARS + 1],  # keeps the cache small
            locale,
            reading.asks_for_order(question),
        )
        for gold, answer, question in zip(golds, answers, questions, strict=True)
    ]
    tasks = dict.fromkeys(task for task in found if isinstance(task, tuple))
    decided = pool.run([*tasks]) if tasks else {}
    verdicts = [_VERDICTS[decided[task]] if isinstance(task, tuple) else task for task in found]
    for row, question in enumerate(questions):
        if verdicts[row].right and reading.is_copied(answers[row], golds[row], question):
            verdicts[row] = Verdict(False, Refusal.COPIED)
    return verdicts


@functools.lru_cache(CACHE_SIZE)
def _read(gold: str, answer: str | None, locale: str, ordered: bool) -> Verdict | pool.Task:
    """Return the verdict, or the task for the workers where only math-verify can decide."""
    reference = reading.read_gold(gold, locale)
    if reference is None:
        return Verdict(None, Refusal.GOLD)
    if answer is None or len(answer) > MAX_ANSWER_CHARS:
        return Verdict(False, Refusal.TOO_LONG if answer else Refusal.NO_ANSWER)
    read: bool | str = ""
    try:
        read = reading.read_answer(answer, reference, locale)
        if isinstance(read, bool):
            return _VERDICTS[read]
        return _VERDICTS[trees.same(trees.build(reference.mathematics), trees.build(read), ordered)]
    except reading.Refused as refused:
        return Verdict(False, refused.args[0])
    except Undecided:
        return reference.mathematics, str(read), ordered
    except (ArithmeticError, LookupError, RecursionError, ValueError):
        return Verdict(False, Refusal.UNREADABLE)


def grade(golds: Sequence[str | None], answers: Sequence[str | None]) -> list[bool | None]:
    """Return whether each answer is right, ``None`` where :func:`judge` cannot decide."""
    return [verdict.right for verdict in judge(golds, answers)]


def start() -> None:
    """Start the workers, which import math-verify in the background."""
    pool.workers_of(os.getpid())
