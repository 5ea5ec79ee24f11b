r"""Is an answer mathematically equal to the gold? Decided by math-verify, bounded in time and memory, in worker processes.

Three steps, each for what the one before leaves open: :mod:`~r1_recipes.verification.reading` reduces an answer to one candidate or to
none (a hedge, a chain or a list of guesses is not an answer); :mod:`~r1_recipes.verification.numbers` compares numbers; the rest goes to
processes that are killed when they hang (:mod:`~r1_recipes.verification.pool`): ``\boxed{9^{9^{9^{9}}}}`` keeps a C function busy that
no signal handler and no thread can interrupt, and math-verify's own timeout is a SIGALRM handler, which works on the main thread only.
Every verdict is remembered. This imports neither torch nor transformers.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence

from r1_recipes.verification.pool import STATS, Pool, Task, VerificationStats
from r1_recipes.verification.reading import MAX_ANSWER_CHARS, final_answer, read_answer, read_gold, settle
from r1_recipes.verification.scorers import register_scorer, scorer_of

__all__ = ["STATS", "VerificationStats", "close", "final_answer", "grade", "register_scorer", "score"]

CACHE_SIZE = 16_384
"""Verdicts remembered: several steps' worth of completions, a few MB."""

Pair = tuple[str, str | None]
"""A gold and an answer."""

_lock = threading.Lock()
_pool: Pool | None = None
_verdicts: dict[Pair, bool | None] = {}


def grade(golds: Sequence[str | None], answers: Sequence[str | None]) -> list[bool | None]:
    r"""Compare each answer with its gold; never raise because of a text.

    Args:
        golds: plain (``1,080``), LaTeX (``\frac{3}{4}``, ``\text{(C)}``), or a solution text that ends in ``\boxed{…}`` or ``#### …``.
        answers: final answers (:func:`final_answer` takes them from whole texts); ``None``: there is none.

    Returns:
        ``None``: the gold is not mathematics, whatever the answer. ``True``: equal as math-verify decides (``1080.00`` is ``1,080``;
        ``50%`` is 50 and 0.5; decimals agree to six places). ``False``: anything else, also an answer that took too long.

    Raises:
        RuntimeError: workers cannot be started here (math-verify is not installed, no processes left).
    """
    rows: list[Pair | None] = [None if gold is None else (gold, answer) for gold, answer in zip(golds, answers, strict=True)]
    pairs = [pair for pair in rows if pair is not None]
    with _judging():
        verdicts = {pair: _verdicts[pair] for pair in pairs if pair in _verdicts}
        new = [pair for pair in dict.fromkeys(pairs) if pair not in verdicts]
        STATS.cache_hits += len(pairs) - len(new)
        tasks: dict[Pair, Task] = {}
        for pair in new:
            gold = read_gold(pair[0])
            if gold is None:
                verdicts[pair] = None
                continue
            sides = None if pair[1] is None else read_answer(pair[1], gold)
            verdicts[pair] = settle(gold, sides)
            if verdicts[pair] is None:
                tasks[pair] = ("r1_recipes.verification.worker:judge", gold.text, sides and tuple(sides))
        verdicts.update(zip(tasks, _ask(list(tasks.values())), strict=True))
        # A longer answer is refused as fast as it is looked up.
        _verdicts.update({pair: verdicts[pair] for pair in new if len(pair[1] or "") <= MAX_ANSWER_CHARS})
        for pair in list(_verdicts)[:-CACHE_SIZE]:
            del _verdicts[pair]
    return [None if pair is None else verdicts[pair] for pair in rows]


def score(scorers: Sequence[str], answers: Sequence[str | None]) -> list[bool]:
    """Judge each answer by its task's own checker, under the same limits as :func:`grade`; partial credit is ``False``.

    Args:
        scorers: JSON ``{"countdown": {"numbers": […], "target": n}}`` or ``{"reasoning_gym": task name, "entry": the problem's entry}``, or
            another key of :func:`register_scorer`.
        answers: final answers; ``None``: there is none.

    Raises:
        ValueError: a scorer is wrong: a fault of the data.
        RuntimeError: workers cannot be started, or reasoning-gym is not installed.
    """
    with _judging():
        judged = [scorer_of(spec)(spec, answer) for spec, answer in zip(scorers, answers, strict=True)]
        asked = iter(_ask([verdict for verdict in judged if not isinstance(verdict, bool)]))
    return [bool(verdict if isinstance(verdict, bool) else next(asked)) for verdict in judged]


@contextlib.contextmanager
def _judging() -> Iterator[None]:
    """One batch at a time, its time on the clock."""
    started = time.perf_counter()
    with _lock:
        try:
            yield
        finally:
            STATS.seconds += time.perf_counter() - started


def _ask(tasks: Sequence[Task]) -> list[bool | None]:
    """Have the workers judge these tasks, each distinct one once."""
    global _pool
    if not tasks:
        return []
    _pool = _pool or Pool()
    distinct = sorted(set(tasks), key=lambda task: task[1])  # Those of one gold side by side: a worker reads a gold once.
    STATS.cache_hits += len(tasks) - len(distinct)
    verdicts: dict[Task, bool | None] = {}
    for task, reply in zip(distinct, _pool.run(distinct), strict=True):
        if isinstance(reply, str):
            raise (RuntimeError if reply.startswith("ModuleNotFoundError") else ValueError)(reply)
        verdicts[task] = reply
    return [verdicts[task] for task in tasks]


def close() -> None:
    """Stop the workers; the next call starts new ones. Runs by itself at exit."""
    global _pool
    pool, _pool = _pool, None
    if pool is not None:
        pool.close()


def _forget_parents_pool() -> None:
    # After a fork the pipes belong to the parent: two processes reading one would take each other's replies.
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


atexit.register(close)
os.register_at_fork(after_in_child=_forget_parents_pool)
