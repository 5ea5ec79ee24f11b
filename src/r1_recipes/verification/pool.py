"""The trainer's side of the workers: hand tasks out, replace workers that die, keep a batch within
its budget of time.

A batch is judged in two passes. In the first, a task has ``QUICK_SECONDS`` of its worker's
processor time; the kernel ends a worker that needs more. Each gold has its share of the time that
may be lost so, and tasks of a gold that has used its share get ``HURRIED_SECONDS``. In the second
pass, the golds of lost tasks share what is left of the batch's budget, so eight tasks that hang
cost what one does.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from pathlib import Path

from r1_recipes.common.processes import cores_per_rank

# Limits of one task are processor time of its worker, so that a busy machine makes no honest answer
# late.
QUICK_SECONDS = 0.5  # in the first pass
# In the first pass once its gold's share, or half of the budget, is lost; ordinary tasks take a
# tenth of it
HURRIED_SECONDS = 0.05
# In all; times the number of workers, the budget of a batch for the tasks that take longer than
# QUICK_SECONDS
TASK_SECONDS = 5.0
# Wall-clock limit of one task, in units of its limit: ends a worker that sleeps or is starved
BUSY_FACTOR = 10.0
START_SECONDS = (
    120.0  # for the fork server to import sympy: many ranks may start on one cold network disk
)
MAX_STARTS = 5  # fork servers that may be killed one after the other before the batch fails
MAX_WORKERS = 8
WINDOW, REFILL = (
    32,
    3,
    # Tasks that a worker has at most, and when it is given more, so that it never waits for the
    # trainer
)
KEPT_ENVIRONMENT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "PYTHONHOME",
)  # for the processes that read hostile texts: no key

# ("module:function", *arguments): JSON values, the first of them what the tasks of one gold share.
Task = tuple[str, str, *tuple[object, ...]]


class Lost(Enum):
    """Why a task has no verdict: its worker was ended."""

    SLOW = auto()  # the task had QUICK_SECONDS or more in the second pass, too
    HURRIED = auto()  # it had less, because others spent the batch's budget


Reply = (
    bool | str | Lost | None
)  # what the function returned (a text says that it cannot be asked), or why it did not


@dataclass
class VerificationStats:
    comparisons: int = 0  # asked of a worker
    cache_hits: int = 0  # verdicts that were already known, or were shared within a batch
    timeouts: int = 0  # comparisons that ran out of time or memory, or took their worker down
    seconds: float = 0.0  # of wall-clock time inside grade and score, worker start-up included


STATS = VerificationStats()


def worker_count() -> int:
    """Return the number of workers; the trainer itself waits while they judge."""
    return min(MAX_WORKERS, cores_per_rank())


class Pool:
    """The workers of this process, and the fork server (see worker.py) that they come from; it
    imports in the background.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size = size or worker_count()
        self.workers: list[Worker] = []
        self.modules: set[str] = set()  # imported by the fork server before it forks
        self.start_server()

    def run(self, tasks: Sequence[Task]) -> list[Reply]:
        """Return a reply for each task; tasks that share a gold should stand together.
        RuntimeError: workers cannot be started.
        """
        modules = {function.partition(":")[0] for function, *_ in tasks}
        if not modules <= self.modules:
            self.modules |= modules
            self.stop_workers()
        replies: list[Reply] = [None] * len(tasks)
        budget = TASK_SECONDS * self.size
        golds = [gold for _, gold, *_ in tasks]
        lost: dict[int, float] = {}
        spent: dict[object, float] = defaultdict(float)  # by gold, on tasks that were not hurried
        fair = budget / 2 / max(1, len(set(golds)))

        def quick(index: int) -> float:
            return (
                QUICK_SECONDS
                if spent.get(golds[index], 0.0) < fair and sum(spent.values()) < budget / 2
                else HURRIED_SECONDS
            )

        def shared(index: int) -> float:
            return min(TASK_SECONDS - QUICK_SECONDS, left / len(slow) / slow[golds[index]])

        try:
            for index, limit in self._pass(tasks, replies, range(len(tasks)), WINDOW, quick):
                lost[index], replies[index] = limit, Lost.HURRIED
                spent[golds[index]] += limit if limit >= QUICK_SECONDS else 0.0
            left, slow = budget - sum(lost.values()), Counter(golds[index] for index in lost)
            # The longest first, so that no worker waits for one that starts last.
            again = sorted(
                (index for index in lost if shared(index) >= lost[index]), key=shared, reverse=True
            )
            for index, limit in self._pass(tasks, replies, again, 1, shared):
                replies[index] = Lost.SLOW if limit >= QUICK_SECONDS else Lost.HURRIED
        except (
            BaseException
        ):  # Ctrl-C too: what a worker still computes must not answer the next batch.
            self.stop_workers()
            raise
        STATS.timeouts += sum(isinstance(reply, Lost) for reply in replies)
        STATS.comparisons += len(tasks)
        return replies

    def _pass(
        self,
        tasks: Sequence[Task],
        replies: list[Reply],
        indices: Iterable[int],
        window: int,
        limit: Callable[[int], float],
    ) -> Iterator[tuple[int, float]]:
        """Fill in the replies; yield each task whose worker died, and the limit that it had."""
        waiting = deque(indices)
        while True:
            for worker in [*self.workers, *[None] * (self.size - len(self.workers))]:
                if waiting and (worker is None or len(worker.given) < min(REFILL, window)):
                    share = min(window, math.ceil(len(waiting) / (2 * self.size)))
                    given = [waiting.popleft() for _ in range(share)]
                    (worker or self.start_worker()).give(
                        [(index, limit(index)) for index in given], tasks
                    )
            if not (busy := [worker for worker in self.workers if worker.given]):
                return
            ready = wait([worker.connection for worker in busy])
            for worker in [worker for worker in busy if worker.connection in ready]:
                index, had = worker.given.popleft()
                try:
                    replies[index], retires = json.loads(worker.connection.recv_bytes())
                except (OSError, EOFError):
                    retires = True
                    yield index, had
                if retires:
                    waiting.extendleft(index for index, _ in reversed(worker.given))
                    worker.connection.close()
                    self.workers.remove(worker)

    def start_server(self) -> None:
        # The parent's own path, since it may have been set up in code, and the folder of this
        # package.
        path = [*(entry for entry in sys.path if entry), str(Path(__file__).resolve().parents[2])]
        self.control, theirs = Pipe()
        code = (
            f"from r1_recipes.verification.worker import fork_server; "
            f"fork_server({theirs.fileno()}, {os.getpid()})"
        )
        fixed = {
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONUTF8": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        # The child inherits the blocked signals, so that none ends it before it could ignore one.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with theirs:
                self.server = subprocess.Popen(
                    [sys.executable, "-P", "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
                    | fixed,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)

    def stop_server(self) -> None:
        self.server.kill()
        self.server.wait()
        self.control.close()

    def start_worker(self) -> Worker:
        for _ in range(MAX_STARTS):
            ours, theirs = Pipe()
            try:
                with theirs:
                    self.control.send_bytes(json.dumps(sorted(self.modules)).encode())
                    send_handle(self.control, theirs.fileno(), self.server.pid)
                reply = (
                    json.loads(self.control.recv_bytes())
                    if self.control.poll(START_SECONDS)
                    else f"no reply in {START_SECONDS:g} s"
                )
            except (OSError, EOFError) as error:  # Something killed the fork server.
                reply = f"{MAX_STARTS} times in a row: {error}"
                self.stop_server()
                self.start_server()
                continue
            if isinstance(reply, str):
                break
            self.workers.append(Worker(reply, ours))
            return self.workers[-1]
        raise RuntimeError(f"a verification worker could not start: {reply}")

    def stop_workers(self) -> None:
        """Close every connection: an idle worker ends at once, another when it replies or its limit
        is over.
        """
        for worker in self.workers:
            worker.connection.close()
        self.workers.clear()

    def close(self) -> None:
        self.stop_workers()
        self.stop_server()


@dataclass
class Worker:
    pid: int
    connection: Connection
    given: deque[tuple[int, float]] = field(
        default_factory=deque
    )  # indices of tasks, with the limit of each

    def give(self, some: Sequence[tuple[int, float]], tasks: Sequence[Task]) -> None:
        self.given.extend(some)
        with contextlib.suppress(OSError):  # If it has died, reading its replies shows it.
            for index, limit in some:
                self.connection.send_bytes(
                    json.dumps([limit, limit * BUSY_FACTOR, *tasks[index]]).encode()
                )
