r"""Decide whether an answer is mathematically equal to the reference answer, in bounded time.

The trainer's process reads the answers, rejects some of them, and compares numbers. Worker
processes compare the rest with math-verify. They are killed when they hang:
``\boxed{9^{9^{9^{9}}}}`` keeps a C function busy that no signal handler and no thread can
interrupt. Importing this module does not import torch.
"""

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from r1_recipes.verification.gold import read_gold
from r1_recipes.verification.lexicon import Refusal
from r1_recipes.verification.locate import MAX_ANSWER_CHARS, final_answer
from r1_recipes.verification.numbers import PRECISION
from r1_recipes.verification.pool import STATS, Lost, Pool, Task
from r1_recipes.verification.question import asks_for_order, is_copied
from r1_recipes.verification.reading import read_answer, settle
from r1_recipes.verification.scorers import register_scorer, scorer_of

__all__ = [
    "STATS",
    "Refusal",
    "Verdict",
    "close",
    "final_answer",
    "grade",
    "judge",
    "register_scorer",
    "score",
    "start",
]

CACHE_SIZE = 16_384  # verdicts remembered: several steps' worth of completions, a few MB


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is right, and why it is not.

    Attributes:
        right: ``None`` if the reference answer cannot be compared with, or other answers of the
            batch used up the time.
        refusal: Why the answer is not right, or ``None``.
    """

    right: bool | None
    refusal: Refusal | None = None


# Reference answer, answer, locale, precision, whether the order of a list counts.
_Key = tuple[str, str | None, str, int, bool]

_lock = threading.Lock()
_pool: Pool | None = None
_verdicts: dict[_Key, Verdict] = {}


def judge(
    golds: Sequence[str | None],
    answers: Sequence[str | None],
    locale: str = "en",
    precision: int = PRECISION,
    questions: Sequence[str] | None = None,
) -> list[Verdict]:
    r"""Compare each answer with its reference answer. No text makes this function raise.

    An answer is right if it is the same text or if math-verify finds it equal: ``1080.00`` equals
    ``1,080``, and ``50%`` equals 50 and 0.5.

    Args:
        golds: The reference answers. Each is plain (``1,080``), LaTeX (``\frac{3}{4}``,
            ``\text{(C)}``), words (``No solution``), or a solution with ``\boxed{…}`` or ``####
            …``. Several boxes are a list.
        answers: The answers; ``None`` where a completion has none. :func:`final_answer` takes
            answers from whole texts.
        locale: How numbers are written: ``1.250,5`` is 1250.5 in ``"de"``.
        precision: The number of places that decimals are compared by. Places count from the first
            digit of a reference answer below 0.001.
        questions: The questions, one per answer. An answer that repeats an operation of its
            question is wrong, unless the reference answer is the same text. The order of a list
            counts where the question asks for an order.

    Returns:
        One verdict per answer.

    Raises:
        TypeError: A text was passed instead of a list.
        RuntimeError: Workers cannot be started: math-verify is not installed, or no processes are
            left.
    """
    for name, texts in (("golds", golds), ("answers", answers), ("questions", questions)):
        if isinstance(texts, str):  # each character would be judged as an answer
            raise TypeError(
                f"{name}: must be a list of texts, one per answer, got {texts!r}. Fix: "
                f"judge([gold], [answer])"
            )
    if questions is None:
        questions = [""] * len(golds)
    keys = [
        (gold or "", answer, locale, precision, asks_for_order(question, gold or ""))
        for gold, answer, question in zip(golds, answers, questions, strict=True)
    ]
    with _judging():
        verdicts = {key: _verdicts[key] for key in keys if key in _verdicts}
        new = [key for key in dict.fromkeys(keys) if key not in verdicts]
        STATS.cache_hits += len(keys) - len(new)
        compared = _compare(new)
        verdicts |= compared
        _remember(compared)
    judged = []
    for key, question in zip(keys, questions, strict=True):
        verdict = verdicts[key]
        if verdict.right and question:
            gold = read_gold(key[0], locale, key[4])
            if is_copied(key[1] or "", gold, question):
                verdict = Verdict(False, Refusal.COPIED)
        judged.append(verdict)
    return judged


def _compare(pairs: list[_Key]) -> dict[_Key, Verdict]:
    """Read each pair, and let the workers compare the pairs that reading does not decide."""
    verdicts: dict[_Key, Verdict] = {}
    tasks: dict[_Key, Task] = {}
    refusals = {}
    for pair in pairs:
        reference, response, locale, precision, ordered = pair
        gold = read_gold(reference, locale, ordered)
        if gold is None:
            verdicts[pair] = Verdict(None, Refusal.GOLD)
            continue
        if response is None:
            verdicts[pair] = Verdict(False, Refusal.NO_ANSWER)
            continue
        answer = read_answer(response, gold, locale)
        right = settle(gold, answer, precision)
        if right is not None:
            refusal = None if right else answer.refusal or Refusal.DIFFERENT
            verdicts[pair] = Verdict(right, refusal)
            continue
        refusals[pair] = answer.refusal
        tasks[pair] = (
            "r1_recipes.verification.compare:judge",
            gold.text,
            gold.raw,
            answer.sides,
            answer.rounded,
            answer.raw,
            precision,
            answer.ordered,
            answer.pairs,
        )
    if tasks:
        replies = _ask(list(tasks.values()))
        for pair, reply in zip(tasks, replies, strict=True):
            verdicts[pair] = _verdict(reply, refusals[pair])
    return verdicts


def _remember(verdicts: dict[_Key, Verdict]) -> None:
    """Keep the latest verdicts.

    Long answers are not kept, because they are rejected as fast as they are looked up. Answers that
    ran out of the batch's time are not kept, so that they are judged when they come again.
    """
    for pair, verdict in verdicts.items():
        if len(pair[1] or "") <= MAX_ANSWER_CHARS and verdict.refusal is not Refusal.HURRIED:
            _verdicts[pair] = verdict
    while len(_verdicts) > CACHE_SIZE:
        del _verdicts[next(iter(_verdicts))]


def grade(golds: Sequence[str | None], answers: Sequence[str | None]) -> list[bool | None]:
    """Return whether each answer is right, as :func:`judge` decides.

    Args:
        golds: The reference answers.
        answers: The answers; ``None`` where a completion has none.

    Returns:
        ``True``, ``False``, or ``None`` where :func:`judge` cannot decide.
    """
    return [verdict.right for verdict in judge(golds, answers)]


def score(scorers: Sequence[str], answers: Sequence[str | None]) -> list[bool | None]:
    """Judge each answer with the checker of its task, within the limits of :func:`grade`.

    Args:
        scorers: JSON texts: ``{"countdown": {"numbers": […], "target": n}}``.
        answers: The answers; ``None`` where a completion has none.

    Returns:
        ``True``, ``False`` (also for partial credit), or ``None`` where time ran out.

    Raises:
        ValueError: A scorer is not valid. Its row of the data has to be corrected.
        RuntimeError: Workers cannot be started.
    """
    with _judging():
        results = [
            scorer_of(spec)(spec, answer) for spec, answer in zip(scorers, answers, strict=True)
        ]
        tasks = [result for result in results if not isinstance(result, bool)]
        replies = iter(_ask(tasks))
    verdicts = []
    for result in results:
        reply = result if isinstance(result, bool) else next(replies)
        verdicts.append(_verdict(reply).right)
    return verdicts


def _verdict(reply: bool | Lost, refusal: Refusal | None = None) -> Verdict:
    """Return the verdict of a reply. ``refusal`` says why the answer is wrong, if that is known."""
    if reply is Lost.HURRIED:
        return Verdict(None, Refusal.HURRIED)
    if reply is Lost.SLOW:
        return Verdict(False, refusal or Refusal.SLOW)
    return Verdict(reply, None if reply else refusal or Refusal.DIFFERENT)


@contextlib.contextmanager
def _judging() -> Iterator[None]:
    """Let one batch run at a time, and add its time to ``STATS.seconds``."""
    started = time.perf_counter()
    with _lock:
        try:
            yield
        finally:
            STATS.seconds += time.perf_counter() - started


def _ask(tasks: Sequence[Task]) -> list[bool | Lost]:
    """Let the workers judge these tasks. Equal tasks are judged once."""
    global _pool
    if not tasks:
        return []
    _pool = _pool or Pool()
    # Tasks with one reference answer are adjacent, so that a worker parses it once.
    distinct = sorted(set(tasks), key=str)
    STATS.cache_hits += len(tasks) - len(distinct)
    verdicts = {}
    for task, reply in zip(distinct, _pool.run(distinct), strict=True):
        if isinstance(reply, str):
            missing = reply.startswith("ModuleNotFoundError")
            raise RuntimeError(reply) if missing else ValueError(reply)
        verdicts[task] = reply
    return [verdicts[task] for task in tasks]


def start() -> None:
    """Start the process that workers come from.

    The process imports math-verify in the background, so the first batch does not wait.
    """
    global _pool
    with _lock:
        _pool = _pool or Pool()


def close() -> None:
    """Stop the workers. The next call starts new ones. This runs by itself at exit."""
    global _pool
    pool = _pool
    _pool = None
    if pool is not None:
        pool.close()


def _forget_parents_pool() -> None:
    # After a fork the pipes belong to the parent. If two processes read from the same pipe, each
    # takes replies meant for the other.
    global _lock, _pool
    _lock = threading.Lock()
    _pool = None


atexit.register(close)
os.register_at_fork(after_in_child=_forget_parents_pool)
