"""The trainer's side of the workers: hands tasks out, holds each to its limit of time, and the batch to its budget.

A batch is judged in two passes. In the first, every task has ``QUICK_SECONDS`` of its worker's processor time, a hundred times what an
ordinary one takes; whoever needs more is stopped and put aside, and the worker replaced, so that nothing honest waits behind it. In the
second, what is left of the batch's budget, ``TASK_SECONDS`` a worker, is shared out among those put aside. So a batch with eight answers
that hang takes as long as one with a single one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from r1_recipes.verification.serving import END, FORK, FRAME, LOAD_SCORERS, REAP, REQUEST

TASK_SECONDS = 5.0
"""Limit of one comparison in its worker's own processor time, so that an honest answer is not late because the machine is busy, and the
budget of a batch in the same coin, times the workers, for everything that takes longer than ``QUICK_SECONDS``."""

QUICK_SECONDS = 0.5
"""The first pass's limit."""

HURRIED_SECONDS = 0.05
"""The first pass's limit once half of the budget has gone to answers that hang; ordinary ones take a tenth of it."""

BUSY_FACTOR = 10.0
"""Wall-clock limit of one comparison, in units of its processor time: what sleeps instead of computing, or is starved, ends too."""

START_SECONDS = 120.0
"""Limit for the nursery to import sympy: about a second, but many ranks may start on one cold network disk."""

MAX_STARTS = 5
"""Nurseries that may be killed one after the other before the batch is given up."""

KEPT_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME")
"""Variables that the processes which read hostile texts are given; no key and no token is one."""

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
        """The present values, to take a difference from later."""
        return dataclasses.replace(self)


STATS = VerificationStats()


class Pool:
    """The nursery and the workers of this process. Starting one takes a moment; the nursery goes on importing in the background."""

    def __init__(self, size: int | None = None) -> None:
        self.size = size or worker_count()
        self.workers: list[_Worker] = []
        self._nursery = _Nursery()
        self._scorers = False

    def run(self, tasks: Sequence[list]) -> list[Any]:
        """A reply for each task, in order; ``False`` for one that ran out of time. Tasks of one gold should stand together.

        Raises:
            RuntimeError: workers cannot be started.
        """
        if not self._scorers and any(task[0] == "score" for task in tasks):
            self._scorers = True
            self._nursery.load_scorers()
            self.stop_workers()
        try:
            return _Batch(self, tasks).run()
        except BaseException:  # Ctrl-C too: what a worker still computes must not answer the next batch.
            self.stop_workers()
            raise

    def worker(self) -> _Worker:
        """A new worker.

        Raises:
            RuntimeError: it cannot be started.
        """
        for start in range(MAX_STARTS):
            try:
                if start:  # Something killed the nursery. Its workers end with it.
                    STATS.restarts += 1
                    self._nursery.end()
                    self._nursery = _Nursery()
                    if self._scorers:
                        self._nursery.load_scorers()
                worker = self._nursery.fork()
                break
            except (OSError, psutil.Error) as error:
                problem = error
        else:
            raise RuntimeError(f"a verification worker could not start, {MAX_STARTS} times in a row: {problem}")
        self.workers.append(worker)
        return worker

    def remove(self, worker: _Worker) -> None:
        """Kill a worker, or bury one that is dead."""
        self.workers.remove(worker)
        worker.kill()
        self._nursery.reap(worker.pid)

    def stop_workers(self) -> None:
        """Kill every worker; the next batch starts others."""
        for worker in list(self.workers):
            self.remove(worker)

    def close(self) -> None:
        """Stop the workers and the nursery."""
        self.stop_workers()
        self._nursery.end()


def worker_count() -> int:
    """Of the cores this process may use, its rank's share; the trainer itself waits while they judge."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(1, min(MAX_WORKERS, cores // ranks))


class _Nursery:
    """The process that workers are forked from."""

    def __init__(self) -> None:
        # The parent's own path, since it may have been set up in code, and the folder of this package.
        path = [*(entry for entry in sys.path if entry), str(Path(__file__).resolve().parents[2])]
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_SECONDS)
        self._ready = False
        code = f"from r1_recipes.verification.serving import nursery; nursery({theirs.fileno()}, {os.getpid()})"
        fixed = {"PYTHONPATH": os.pathsep.join(path), "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        # Inherited by the child, so that no signal finds it before it could ignore one; SIGKILL still ends it.
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
        """A new worker.

        Raises:
            RuntimeError: math-verify cannot be imported there.
            OSError, psutil.Error: the nursery or the worker is gone.
        """
        if not self._ready:
            self._await_ready()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [REQUEST.pack(FORK, 0)], [theirs.fileno()])
                return _Worker(FRAME.unpack(self._receive(FRAME.size))[0], ours)
        except BaseException:
            ours.close()
            raise

    def _await_ready(self) -> None:
        try:
            problem = self._receive(FRAME.unpack(self._receive(FRAME.size))[0]).decode()
        except TimeoutError:
            problem = f"importing math-verify took more than {START_SECONDS:g} s"
        if problem:
            self.end()
            raise RuntimeError(f"a verification worker could not start: {problem}")
        self._ready = True

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._control.recv(size - len(data))
            if not piece:
                raise ConnectionError("the nursery has ended")
            data += piece
        return data

    def reap(self, pid: int) -> None:
        """Let a worker that was killed leave no zombie. Until then its process id cannot become another's."""
        self._request(REAP, pid)

    def load_scorers(self) -> None:
        """Import reasoning_gym once, for all workers forked from now on."""
        self._request(LOAD_SCORERS)

    def _request(self, kind: bytes, pid: int = 0) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(REQUEST.pack(kind, pid))

    def end(self) -> None:
        if self._ready:
            self._request(END)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        self.process.kill()
        self.process.wait()
        self._control.close()


class _Worker:
    """One forked process and the tasks it has been given."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.connection = connection
        connection.setblocking(False)
        self.given: deque[int] = deque()
        self.limit = QUICK_SECONDS
        self.began = 0.0  # when it got to the first of ``given``: wall clock, and its own processor seconds
        self.used_before = 0.0
        self._usage = psutil.Process(pid)
        self._unsent = b""
        self._unread = b""

    def give(self, tasks: Sequence[int], lines: Sequence[bytes]) -> None:
        if not self.given:
            self.began = time.monotonic()
        self.given.extend(tasks)
        self._unsent += b"".join(lines[task] for task in tasks)
        self.send()

    def send(self) -> None:
        """Write what its pipe takes now. That nobody reads any more shows when its replies are read."""
        if self._unsent:
            with contextlib.suppress(OSError):
                self._unsent = self._unsent[self.connection.send(self._unsent) :]

    @property
    def events(self) -> int:
        """What to wait for, as ``select.poll`` names it."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def replies(self) -> tuple[list[list], bool]:
        """What it has said since, and whether it has ended."""
        ended = False
        try:
            while piece := self.connection.recv(1 << 16):
                self._unread += piece
            ended = True
        except BlockingIOError:
            pass
        except OSError:
            ended = True
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines], ended

    def seconds_left(self) -> float:
        """How long the task it is at may go on: by its processor time, or by the wall clock where that is far ahead."""
        wall = time.monotonic() - self.began
        if wall < self.limit:
            return self.limit - wall  # One thread cannot have used more.
        return min(self.limit - self.used(), self.limit * BUSY_FACTOR - wall)

    def used(self) -> float:
        """Processor seconds since it began the task it is at."""
        try:
            times = self._usage.cpu_times()
        except psutil.Error:  # It has ended; its connection will say so.
            return 0.0
        return times.user + times.system - self.used_before

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.connection.close()


class _Batch:
    """The tasks of one call, and how far they are."""

    def __init__(self, pool: Pool, tasks: Sequence[list]) -> None:
        self.pool = pool
        self.lines = [json.dumps(task).encode() + b"\n" for task in tasks]
        self.replies: list[Any] = [False] * len(tasks)
        self.waiting = deque(range(len(tasks)))
        self.slow: deque[int] = deque()
        self.tried: dict[int, float] = {}  # seconds that a task of the second pass has had in the first
        self.died: set[int] = set()
        self.budget = TASK_SECONDS * pool.size
        self.timeouts = 0

    def run(self) -> list[Any]:
        for worker in list(self.pool.workers):
            if worker.replies()[1]:  # It died since the last batch, of which no task of this one is guilty.
                STATS.restarts += 1
                self.pool.remove(worker)
        while True:
            self._hand_out()
            busy = [worker for worker in self.pool.workers if worker.given]
            if not busy:
                break
            poller = select.poll()
            for worker in busy:
                poller.register(worker.connection, worker.events)
            poller.poll(1000 * max(0.0, min(worker.seconds_left() for worker in busy)))
            for worker in busy:
                worker.send()
                self._read(worker)
        STATS.comparisons += len(self.lines)
        STATS.timeouts += self.timeouts
        return self.replies

    def _hand_out(self) -> None:
        """Give every worker that runs dry something to do; start workers while there is more to do than they have."""
        for worker in [*self.pool.workers, *[None] * (self.pool.size - len(self.pool.workers))]:
            if worker is not None and worker.given and worker.given[0] in self.tried:
                continue
            if self.waiting and (worker is None or len(worker.given) <= _LOW):
                share = -(-len(self.waiting) // (2 * self.pool.size))
                tasks = [self.waiting.popleft() for _ in range(min(share, WINDOW, len(self.waiting)))]
                try:
                    worker = worker or self.pool.worker()
                except BaseException:
                    self.waiting.extendleft(reversed(tasks))
                    raise
                worker.limit = QUICK_SECONDS if self.budget > TASK_SECONDS * self.pool.size / 2 else HURRIED_SECONDS
                worker.give(tasks, self.lines)
            elif self.slow and not self.waiting and (worker is None or not worker.given):
                self._give_slow(worker)

    def _give_slow(self, worker: _Worker | None) -> None:
        while self.slow:
            # Two that hang and two workers: each may take what its worker has left of the batch's time.
            seconds = min(TASK_SECONDS - QUICK_SECONDS, self.budget / max(len(self.slow), self.pool.size))
            task = self.slow.popleft()
            if seconds <= self.tried[task]:
                self.timeouts += 1  # No more than it has had already.
                continue
            worker = worker or self.pool.worker()
            self.budget -= seconds
            worker.limit = seconds
            worker.give([task], self.lines)
            return

    def _read(self, worker: _Worker) -> None:
        replies, ended = worker.replies()
        for verdict, used, ends in replies:
            task = worker.given.popleft()
            self.replies[task] = verdict
            if task in self.tried:
                self.budget += max(0.0, worker.limit - (used - worker.used_before))
            worker.began, worker.used_before = time.monotonic(), used
            ended = ended or ends
        if ended:
            self._bury(worker, retired=bool(replies and replies[-1][2]))
        elif worker.given and worker.seconds_left() <= 0:
            self._stop(worker)

    def _stop(self, worker: _Worker) -> None:
        """Kill a worker that is over its limit; its task waits for the second pass, or has had that."""
        task = worker.given.popleft()
        if task in self.tried:
            self.timeouts += 1
        else:
            self.budget = max(0.0, self.budget - worker.limit)
            self.tried[task] = worker.limit
            self.slow.append(task)
        STATS.restarts += 1
        self._take_back(worker)

    def _bury(self, worker: _Worker, *, retired: bool) -> None:
        """Part with a worker that has ended by itself: it was due, it crashed, or the kernel wanted its memory."""
        if worker.given and not retired:
            task = worker.given.popleft()
            STATS.restarts += 1
            if task in self.died:
                self.timeouts += 1
            else:
                self.died.add(task)  # Perhaps the task is innocent.
                self.waiting.appendleft(task)
        self._take_back(worker)

    def _take_back(self, worker: _Worker) -> None:
        self.waiting.extendleft(reversed(worker.given))
        self.pool.remove(worker)
