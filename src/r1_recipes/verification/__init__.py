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
import hashlib
import json
import os
import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from r1_recipes.verification import gym  # noqa: F401 (registers its scorer)
from r1_recipes.verification.numbers import read_value
from r1_recipes.verification.pool import STATS, Pool, VerificationStats
from r1_recipes.verification.reading import MAX_ANSWER_CHARS, Gold, final_answer, read_answer, read_gold
from r1_recipes.verification.scorers import Compare, Run, register_scorer, scorer_of

__all__ = ["STATS", "VerificationStats", "close", "final_answer", "grade", "register_scorer", "score", "start"]

CACHE_SIZE = 16_384
"""Verdicts remembered: several steps' worth of completions, a few MB."""


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
    verdicts: list[bool | None] = [None] * len(golds)
    rows: dict[tuple[str, str | None], list[int]] = {}
    for index, (gold, answer) in enumerate(zip(golds, answers, strict=True)):
        if gold is not None:
            rows.setdefault((gold, final_answer(answer) if whole_text and answer is not None else answer), []).append(index)
    with _judging():
        tasks: dict[tuple[str, str | None], list] = {}
        for pair, indices in rows.items():
            STATS.cache_hits += len(indices) - 1
            if pair in _pairs:
                STATS.cache_hits += 1
                verdict = _pairs[pair]
            else:
                gold = read_gold(pair[0])
                if gold is None:
                    continue
                sides = None if pair[1] is None else read_answer(pair[1], gold)
                verdict = _settle(gold, sides)
                if verdict is None:
                    tasks[pair] = ["r1_recipes.verification.worker:judge", gold.text, sides]
                    continue
                _remember_pair(pair, verdict)
            for index in indices:
                verdicts[index] = verdict
        for pair, verdict in _ask(tasks).items():
            _remember_pair(pair, verdict)
            for index in rows[pair]:
                verdicts[index] = verdict
    return verdicts


def _settle(gold: Gold, sides: list[str] | None) -> bool | None:
    """The verdict where it needs no parser; ``None``: ask a worker."""
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
    verdicts = [False] * len(scorers)
    compared: dict[int, str] = {}
    tasks: dict[int, list] = {}
    with _judging():
        for index, (spec, answer) in enumerate(zip(scorers, answers, strict=True)):
            verdict = scorer_of(spec)(spec, answer)
            if isinstance(verdict, Compare):
                compared[index] = verdict.gold
            elif isinstance(verdict, Run):
                tasks[index] = [verdict.function, *verdict.arguments]
            else:
                verdicts[index] = verdict
        graded = grade(list(compared.values()), [answers[index] for index in compared])
        for index, verdict in [*zip(compared, graded, strict=True), *_ask(tasks).items()]:
            verdicts[index] = bool(verdict)
    return verdicts


_lock = threading.RLock()
_pool: Pool | None = None
_pairs: dict[tuple[str, str | None], bool | None] = {}  # by gold and answer as they stand
_verdicts: dict[bytes, bool | None] = {}  # by what a worker was asked, which several spellings share


@contextlib.contextmanager
def _judging() -> Iterator[None]:
    """One batch at a time, its time on the clock."""
    started = time.perf_counter()
    with _lock:
        try:
            yield
        finally:
            STATS.seconds += time.perf_counter() - started


def _ask(tasks: dict[Any, list]) -> dict[Any, bool | None]:
    """Verdicts of these tasks, each distinct one computed once in this process."""
    global _pool
    if not tasks:
        return {}
    digests = {key: hashlib.blake2b(json.dumps(task).encode(), digest_size=16).digest() for key, task in tasks.items()}
    known = {digest: _verdicts[digest] for digest in digests.values() if digest in _verdicts}
    unknown = {digest: tasks[key] for key, digest in digests.items() if digest not in known}
    STATS.cache_hits += len(tasks) - len(unknown)
    if unknown:
        _pool = _pool or Pool()
        # Those of one gold side by side: a worker reads a gold once.
        order = sorted(unknown, key=lambda digest: unknown[digest][1])
        for digest, reply in zip(order, _pool.run([unknown[digest] for digest in order]), strict=True):
            if isinstance(reply, str):
                raise (RuntimeError if reply.startswith("ModuleNotFoundError") else ValueError)(reply)
            known[digest] = reply
            _remember(_verdicts, digest, reply)
    return {key: known[digest] for key, digest in digests.items()}


def _remember_pair(pair: tuple[str, str | None], verdict: bool | None) -> None:
    if len(pair[1] or "") <= MAX_ANSWER_CHARS:  # A longer one is refused as fast as it is looked up.
        _remember(_pairs, pair, verdict)


def _remember(cache: dict, key: Hashable, verdict: bool | None) -> None:
    cache[key] = verdict
    if len(cache) > CACHE_SIZE:
        del cache[next(iter(cache))]


def start() -> None:
    """Begin to start the workers, and return at once: their second of importing then passes beside whatever comes next."""
    global _pool
    with _lock:
        _pool = _pool or Pool()


def close() -> None:
    """Stop the workers; the next call starts new ones. Runs by itself at exit."""
    global _pool
    pool, _pool = _pool, None
    if pool is not None:
        pool.close()


def _forget_parents_pool() -> None:
    # After a fork the pipes belong to the parent: two processes reading one would take each other's replies.
    global _lock, _pool
    _lock, _pool = threading.RLock(), None


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_pool)
