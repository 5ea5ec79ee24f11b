r"""Is an answer mathematically equal to the gold? Decided by math-verify, bounded in time and memory, in worker processes.

Three steps, each for what the one before leaves open: :mod:`~r1_recipes.verification.reading` reduces an answer to one candidate or to
none (a hedge, a chain or a list of guesses is not an answer); :mod:`~r1_recipes.verification.numbers` compares numbers; the rest goes to
processes that are killed when they hang (:mod:`~r1_recipes.verification.pool`): ``\boxed{9^{9^{9^{9}}}}`` keeps a C function busy that
no signal handler and no thread can interrupt, and math-verify's own timeout is a SIGALRM handler, which works on the main thread only.
Every verdict is remembered. docs/verification.md has the measurements.

This imports neither torch nor transformers, and nor do the workers.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterator, Sequence

from r1_recipes.verification.numbers import read_value
from r1_recipes.verification.pool import STATS, Pool, Task, VerificationStats
from r1_recipes.verification.reading import MAX_ANSWER_CHARS, Gold, final_answer, read_answer, read_gold
from r1_recipes.verification.scorers import Compare, Run, register_scorer, scorer_of

__all__ = ["STATS", "VerificationStats", "close", "final_answer", "grade", "register_scorer", "score"]

CACHE_SIZE = 16_384
"""Verdicts remembered: several steps' worth of completions, a few MB."""

Pair = tuple[str, str | None]
"""A gold, or a scorer column, and an answer."""


def grade(golds: Sequence[str | None], answers: Sequence[str | None], *, whole_text: bool = False) -> list[bool | None]:
    r"""Compare each answer with its gold.

    Args:
        golds: reference answers: plain (``1,080``), LaTeX (``\frac{3}{4}``, ``\text{(C)}``), or a solution text that ends in
            ``\boxed{…}`` or ``#### …``.
        answers: what the model gave as its final answer, aligned with ``golds``; ``None`` where it gave none.
        whole_text: each answer is a whole completion, from which :func:`final_answer` takes the answer first.

    Returns:
        One verdict each. ``None``: the gold is not mathematics, whatever the answer. ``False``: no answer, an answer that cannot be
        read as one value, a different one, or one that took too long. ``True``: equal as math-verify decides (``1080.00`` is
        ``1,080``; ``50%`` is 50 and 0.5; decimals agree to six places).

    Raises:
        ValueError: the two lists differ in length.
        RuntimeError: workers cannot be started here (math-verify is not installed, no processes left). Never because of a text.
    """
    if len(golds) != len(answers):
        raise ValueError(f"grade() got {len(golds)} golds for {len(answers)} answers")
    rows: dict[Pair, list[int]] = {}
    for index, (gold, answer) in enumerate(zip(golds, answers, strict=True)):
        if gold is not None:
            rows.setdefault((gold, final_answer(answer) if whole_text and answer is not None else answer), []).append(index)
    with _judging():
        verdicts = {pair: _verdicts[pair] for pair in rows if pair in _verdicts}
        STATS.cache_hits += sum(map(len, rows.values())) - len(rows) + len(verdicts)
        tasks: dict[Pair, Task] = {}
        for pair in [pair for pair in rows if pair not in verdicts]:
            read = read_gold(pair[0])
            if read is None:
                verdicts[pair] = None
                continue
            sides = None if pair[1] is None else read_answer(pair[1], read)
            verdicts[pair] = settle(read, sides)
            if verdicts[pair] is None:
                tasks[pair] = ("r1_recipes.verification.worker:judge", read.text, sides and tuple(sides))
        verdicts.update(zip(tasks, _ask(list(tasks.values())), strict=True))
        _remember(verdicts)
    found: list[bool | None] = [None] * len(golds)
    for pair, indices in rows.items():
        for index in indices:
            found[index] = verdicts[pair]
    return found


def settle(gold: Gold, sides: list[str] | None) -> bool | None:
    """Return the verdict if it needs no parser; ``None``: ask a worker."""
    if gold.words is not None:
        return sides == [gold.words]
    if gold.value is None:
        return None
    if sides is None:
        return False
    values = [read_value(side) for side in sides]
    equal = [None if value is None else gold.value.equals(value) for value in values]
    if False in equal:
        return False
    return None if None in equal else True


def score(scorers: Sequence[str], answers: Sequence[str | None]) -> list[bool]:
    """Judge each answer by its task's own checker, under the same limits as :func:`grade`.

    Args:
        scorers: JSON ``{"countdown": {"numbers": […], "target": n}}`` or ``{"reasoning_gym": task name, "entry": the problem's entry}``, or
            another key of :func:`register_scorer`.
        answers: final answers, aligned with ``scorers``; ``None`` where there is none.

    Returns:
        ``True`` where the answer is right. reasoning-gym's partial credit is ``False``.

    Raises:
        ValueError: the two lists differ in length, or a scorer is wrong: a fault of the data.
        RuntimeError: workers cannot be started, or reasoning-gym is not installed.
    """
    if len(scorers) != len(answers):
        raise ValueError(f"score() got {len(scorers)} scorers for {len(answers)} answers")
    with _judging():
        judged = [scorer_of(spec)(spec, answer) for spec, answer in zip(scorers, answers, strict=True)]
        ran = iter(_ask([verdict for verdict in judged if isinstance(verdict, Run)]))
    compared = [(verdict.gold, answer) for verdict, answer in zip(judged, answers, strict=True) if isinstance(verdict, Compare)]
    graded = iter(grade([gold for gold, _ in compared], [answer for _, answer in compared]))
    return [bool(next(ran) if isinstance(v, Run) else next(graded) if isinstance(v, Compare) else v) for v in judged]


_lock = threading.Lock()
_pool: Pool | None = None
_verdicts: dict[Pair, bool | None] = {}


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


def _remember(verdicts: dict[Pair, bool | None]) -> None:
    # A longer answer is refused as fast as it is looked up.
    _verdicts.update({pair: verdict for pair, verdict in verdicts.items() if len(pair[1] or "") <= MAX_ANSWER_CHARS})
    for pair in list(itertools.islice(_verdicts, max(0, len(_verdicts) - CACHE_SIZE))):
        del _verdicts[pair]


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
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_pool)
