"""The trainer's side of the workers: hand tasks out, replace workers that die, keep a batch within its budget of time.

A batch is judged in two passes. In the first, every task has ``QUICK_SECONDS`` of its worker's processor time, a hundred times what an
ordinary one takes. The kernel ends a worker that needs more; the task is put aside, and the tasks behind it go to another worker. In the
second pass, what is left of the batch's budget is shared out among the tasks put aside. So eight answers that hang cost what one does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

TASK_SECONDS = 5.0
"""Limit of one task in its worker's processor time, so that a busy machine makes no honest answer late. Times the number of workers, the
budget of a batch for all tasks that take longer than ``QUICK_SECONDS``."""

QUICK_SECONDS = 0.5
"""Limit in the first pass."""

HURRIED_SECONDS = 0.05
"""Limit in the first pass once half of the budget is spent; ordinary tasks take a tenth of it."""

BUSY_FACTOR = 10.0
"""Wall-clock limit of one task, in units of its limit: ends a worker that sleeps or is starved."""

START_SECONDS = 120.0
"""Limit for the fork server to import sympy: about a second, but many ranks may start on one cold network disk."""

MAX_STARTS = 5
"""Fork servers that may be killed one after the other before the batch fails."""

KEPT_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME")
"""Variables passed to the processes that read hostile texts; no key and no token is one."""

MAX_WORKERS = 8
WINDOW, _LOW = 32, 2
"""Tasks that a worker may have waiting, and how few before it is given more, so that it never waits for the trainer."""


@dataclass
class VerificationStats:
    """What verification has cost this process so far; every field only grows.

    Attributes:
        comparisons: verdicts asked of a worker.
        cache_hits: verdicts that were already known, or were shared within a batch.
        timeouts: comparisons that ran out of time or memory, or took their worker down; each counts as a wrong answer.
        restarts: workers started in place of one that was killed or died.
        seconds: wall-clock time inside ``grade`` and ``score``, worker start-up included.
    """

    comparisons: int = 0
    cache_hits: int = 0
    timeouts: int = 0
    restarts: int = 0
    seconds: float = 0.0

    def copy(self) -> VerificationStats:
        """Return the present values, to take a difference from later."""
        return dataclasses.replace(self)


STATS = VerificationStats()


def worker_count() -> int:
    """Return this rank's share of the cores; the trainer itself waits while the workers judge."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(1, min(MAX_WORKERS, cores // ranks))


class Pool:
    """The fork server and the workers of this process; the server imports in the background."""

    def __init__(self, size: int | None = None) -> None:
        self.size = size or worker_count()
        self.workers: list[_Worker] = []
        self.fork_server = _ForkServer()
        self._preloaded: set[str] = set()

    def run(self, tasks: Sequence[list]) -> list[Any]:
        """Return a reply for each task, in order; ``False`` for one that ran out of time.

        Args:
            tasks: ``["module:function", *arguments]`` each. Those that share a gold should stand together.

        Raises:
            RuntimeError: workers cannot be started.
        """
        modules = {task[0].partition(":")[0] for task in tasks}
        if not modules <= self._preloaded:
            self._preloaded |= modules
            self.fork_server.request("preload", *self._preloaded)
            self.stop_workers()
        try:
            return _Batch(self, tasks).run()
        except BaseException:  # Ctrl-C too: what a worker still computes must not answer the next batch.
            self.stop_workers()
            raise

    def start_worker(self) -> _Worker:
        """Start a worker; replace the fork server if something killed it.

        Raises:
            RuntimeError: the worker cannot be started.
        """
        for start in range(MAX_STARTS):
            try:
                if start:
                    STATS.restarts += 1
                    self.fork_server.end()
                    self.fork_server = _ForkServer()
                    self.fork_server.request("preload", *self._preloaded)
                worker = self.fork_server.fork()
                break
            except (OSError, EOFError) as error:
                problem = error
        else:
            raise RuntimeError(f"a verification worker could not start, {MAX_STARTS} times in a row: {problem}")
        self.workers.append(worker)
        return worker

    def remove(self, worker: _Worker) -> None:
        """Kill a worker, dead or alive."""
        self.workers.remove(worker)
        worker.connection.close()
        self.fork_server.request("kill", worker.pid)

    def stop_workers(self) -> None:
        """Kill every worker; the next batch starts others."""
        for worker in list(self.workers):
            self.remove(worker)

    def close(self) -> None:
        """Stop the workers and the fork server."""
        self.stop_workers()
        self.fork_server.end()


class _ForkServer:
    """The process that workers are forked from, see :func:`r1_recipes.verification.worker.fork_server`."""

    def __init__(self) -> None:
        # The parent's own path, since it may have been set up in code, and the folder of this package.
        path = [*(entry for entry in sys.path if entry), str(Path(__file__).resolve().parents[2])]
        self._control, theirs = Pipe()
        code = f"from r1_recipes.verification.worker import fork_server; fork_server({theirs.fileno()}, {os.getpid()})"
        fixed = {"PYTHONPATH": os.pathsep.join(path), "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        # The child inherits the blocked signals, so that none ends it before it could ignore one.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ} | fixed,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)

    def fork(self) -> _Worker:
        """Start a worker.

        Raises:
            RuntimeError: math-verify cannot be imported there.
            OSError, EOFError: the fork server has ended.
        """
        ours, theirs = Pipe()
        try:
            with theirs:
                self._control.send_bytes(b'["fork"]')
                send_handle(self._control, theirs.fileno(), self.process.pid)
            if not self._control.poll(START_SECONDS):
                raise RuntimeError(f"a verification worker could not start: importing math-verify took more than {START_SECONDS:g} s")
            pid = json.loads(self._control.recv_bytes())
            if isinstance(pid, str):
                raise RuntimeError(f"a verification worker could not start: {pid}")
            return _Worker(pid, ours)
        except BaseException:
            ours.close()
            raise

    def request(self, *words: str | int) -> None:
        with contextlib.suppress(OSError):
            self._control.send_bytes(json.dumps(words).encode())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._control.close()


@dataclass(eq=False)
class _Worker:
    """One forked process and the tasks it has been given."""

    pid: int
    connection: Connection
    given: deque[int] = dataclasses.field(default_factory=deque)
    limit: float = 0.0

    def give(self, indices: Sequence[int], tasks: Sequence[list], limit: float) -> None:
        self.limit = limit
        self.given.extend(indices)
        with contextlib.suppress(OSError):  # If it has died, reading its replies shows it.
            for index in indices:
                self.connection.send_bytes(json.dumps([limit, limit * BUSY_FACTOR, *tasks[index]]).encode())


class _Batch:
    """The tasks of one call and their progress."""

    def __init__(self, pool: Pool, tasks: Sequence[list]) -> None:
        self.pool = pool
        self.tasks = tasks
        self.replies: list[Any] = [False] * len(tasks)
        self.waiting = deque(range(len(tasks)))
        self.slow: deque[int] = deque()
        self.tried: dict[int, float] = {}  # the first pass's limit of the tasks in the second
        self.budget = TASK_SECONDS * pool.size

    def run(self) -> list[Any]:
        idle = {worker.connection: worker for worker in self.pool.workers}
        for connection in wait(list(idle), 0):  # It died between two batches: no task of this one is to blame.
            STATS.restarts += 1
            self.pool.remove(idle[connection])
        while True:
            self._hand_out()
            busy = {worker.connection: worker for worker in self.pool.workers if worker.given}
            if not busy:
                break
            for connection in wait(list(busy)):
                self._read(busy[connection])
        STATS.comparisons += len(self.tasks)
        return self.replies

    def _hand_out(self) -> None:
        """Give tasks to workers that run dry; start workers while there is more to do."""
        for worker in [*self.pool.workers, *[None] * (self.pool.size - len(self.pool.workers))]:
            if worker is not None and worker.given and worker.given[0] in self.tried:
                continue
            if self.waiting and (worker is None or len(worker.given) <= _LOW):
                worker = worker or self.pool.start_worker()
                share = -(-len(self.waiting) // (2 * self.pool.size))
                indices = [self.waiting.popleft() for _ in range(min(share, WINDOW))]
                hurried = self.budget <= TASK_SECONDS * self.pool.size / 2
                worker.give(indices, self.tasks, HURRIED_SECONDS if hurried else QUICK_SECONDS)
            elif self.slow and not self.waiting and (worker is None or not worker.given):
                self._give_slow(worker)

    def _give_slow(self, worker: _Worker | None) -> None:
        while self.slow:
            # Two that hang and two workers: each may take what its worker has left of the batch's time.
            limit = min(TASK_SECONDS - QUICK_SECONDS, self.budget / max(len(self.slow), self.pool.size))
            index = self.slow.popleft()
            if limit <= self.tried[index]:
                STATS.timeouts += 1  # It has had as much already.
                continue
            worker = worker or self.pool.start_worker()
            self.budget -= limit
            worker.give([index], self.tasks, limit)
            return

    def _read(self, worker: _Worker) -> None:
        try:
            verdict, used, retires = json.loads(worker.connection.recv_bytes())
        except (OSError, EOFError):
            self._put_aside(worker.given.popleft(), worker.limit)
            retires = True
        else:
            index = worker.given.popleft()
            self.replies[index] = verdict
            if index in self.tried:
                self.budget += max(0.0, worker.limit - used)
        if retires:
            self.waiting.extendleft(reversed(worker.given))
            self.pool.remove(worker)

    def _put_aside(self, index: int, limit: float) -> None:
        """Note that a task's worker died. It may be innocent: the first time, it gets a second try."""
        STATS.restarts += 1
        if index in self.tried:
            STATS.timeouts += 1
        else:
            self.budget = max(0.0, self.budget - limit)
            self.tried[index] = limit
            self.slow.append(index)
