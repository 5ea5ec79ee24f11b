"""Run the workers from the trainer's process: hand out tasks, replace workers that die, and keep a
batch within its time budget.

A batch is judged in two passes. In the first pass, a task has ``QUICK_SECONDS`` of its worker's
processor time; the kernel ends a worker that needs more. Each reference answer has a share of the
time that may be lost in this way. Tasks of a reference answer that has used up its share get
``HURRIED_SECONDS``. In the second pass, the reference answers of lost tasks share the rest of the
batch's budget. Eight tasks that hang therefore cost as much as a single one.
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

# Limits are CPU time, not wall-clock time: a busy machine must not time out a correct answer.
QUICK_SECONDS = 0.5  # limit of a task in the first pass
# Limit in the first pass after the share of its reference answer, or half of the budget, is lost.
# Ordinary tasks take a tenth of it.
HURRIED_SECONDS = 0.05
# Limit of a task in both passes. Times the number of workers, it is the budget of a batch for tasks
# that take longer than QUICK_SECONDS.
TASK_SECONDS = 4.5
# Wall-clock limit of a task, as a multiple of its CPU limit. It ends a worker that sleeps or that
# gets no CPU time.
BUSY_FACTOR = 10.0
# For the fork server to import sympy: many ranks may start on one cold network disk.
START_SECONDS = 120.0
MAX_STARTS = 5  # the batch fails after so many killed fork servers in a row
MAX_WORKERS = 8
# A worker has at most 32 tasks and is given more when fewer than 3 are left, so that it never waits
# for the trainer.
WINDOW = 32
REFILL = 3
# Other variables may be API keys, which processes that read hostile texts must not have.
KEPT_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME")

# ("module:function", *arguments). The arguments are JSON values. The first one is the same for all
# tasks of one reference answer.
Task = tuple[str, str | None, *tuple[object, ...]]


class Lost(Enum):
    """Why a task has no verdict after its worker was killed."""

    SLOW = auto()  # the task had QUICK_SECONDS or more in the second pass, too
    HURRIED = auto()  # it had less, because others spent the batch's budget


# The function's result (a text is an error message), or why there is none.
Reply = bool | str | Lost


@dataclass
class VerificationStats:
    comparisons: int = 0  # done by workers
    cache_hits: int = 0  # verdicts that were already known, or were shared within a batch
    timeouts: int = 0  # comparisons that ran out of time or memory, or took their worker down
    seconds: float = 0.0  # of wall-clock time inside grade and score, worker start-up included


STATS = VerificationStats()


def worker_count() -> int:
    """Return the number of workers. The trainer itself waits while they work."""
    return min(MAX_WORKERS, cores_per_rank())


class Pool:
    """The workers of this process and their fork server (see worker.py), which imports math-verify
    in the background.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size = size or worker_count()
        self.workers: list[Worker] = []
        self.modules: set[str] = set()  # imported by the fork server before it forks
        self.start_server()

    def run(self, tasks: Sequence[Task]) -> list[Reply]:
        """Return a reply for each task.

        Tasks with the same reference answer should be adjacent. Raise ``RuntimeError`` if workers
        cannot be started.
        """
        modules = {task[0].partition(":")[0] for task in tasks}
        if not modules <= self.modules:
            self.modules |= modules
            self.stop_workers()
        replies: list[Reply] = [Lost.HURRIED] * len(tasks)
        try:
            self._judge(tasks, replies)
        except BaseException:
            # Also on Ctrl-C: a late reply must not be taken for a reply of the next batch.
            self.stop_workers()
            raise
        STATS.timeouts += sum(isinstance(reply, Lost) for reply in replies)
        STATS.comparisons += len(tasks)
        return replies

    def _judge(self, tasks: Sequence[Task], replies: list[Reply]) -> None:
        """Run the two passes and write the replies."""
        budget = TASK_SECONDS * self.size
        golds = [task[1] for task in tasks]
        lost = {}
        spent: dict[object, float] = defaultdict(float)  # seconds lost per reference answer
        share = budget / 2 / max(1, len(set(golds)))

        def quick(index: int) -> float:
            if spent[golds[index]] < share and sum(spent.values()) < budget / 2:
                return QUICK_SECONDS
            return HURRIED_SECONDS

        def shared(index: int) -> float:
            return min(TASK_SECONDS - QUICK_SECONDS, left / len(slow) / slow[golds[index]])

        for index, limit in self._pass(tasks, replies, range(len(tasks)), WINDOW, quick):
            lost[index] = limit
            if limit >= QUICK_SECONDS:
                spent[golds[index]] += limit
        left = budget - sum(lost.values())
        slow = Counter(golds[index] for index in lost)
        # Start the longest tasks first, so that the last one to start is short.
        retries = [index for index in lost if shared(index) >= lost[index]]
        retries.sort(key=shared, reverse=True)
        for index, limit in self._pass(tasks, replies, retries, 1, shared):
            if limit >= QUICK_SECONDS:
                replies[index] = Lost.SLOW

    def _pass(
        self,
        tasks: Sequence[Task],
        replies: list[Reply],
        indices: Iterable[int],
        window: int,
        limit: Callable[[int], float],
    ) -> Iterator[tuple[int, float]]:
        """Run tasks and write their replies. Yield each task whose worker died, and its
        time limit.
        """
        waiting = deque(indices)
        while True:
            self._hand_out(waiting, tasks, window, limit)
            busy = [worker for worker in self.workers if worker.given]
            if not busy:
                return
            ready = wait([worker.connection for worker in busy])
            for worker in busy:
                if worker.connection not in ready:
                    continue
                index, task_limit = worker.given.popleft()
                try:
                    replies[index], retires = json.loads(worker.connection.recv_bytes())
                except (OSError, EOFError):
                    retires = True
                    yield index, task_limit
                if retires:
                    waiting.extendleft(index for index, _ in reversed(worker.given))
                    worker.connection.close()
                    self.workers.remove(worker)

    def _hand_out(
        self,
        waiting: deque[int],
        tasks: Sequence[Task],
        window: int,
        limit: Callable[[int], float],
    ) -> None:
        for slot in range(self.size):
            if not waiting:
                return
            if slot == len(self.workers):
                self.start_worker()
            worker = self.workers[slot]
            if len(worker.given) < min(REFILL, window):
                share = min(window, math.ceil(len(waiting) / (2 * self.size)))
                for _ in range(share):
                    index = waiting.popleft()
                    seconds = limit(index)
                    worker.given.append((index, seconds))
                    message = [seconds, seconds * BUSY_FACTOR, *tasks[index]]
                    # A dead worker is noticed when its reply is read.
                    with contextlib.suppress(OSError):
                        worker.connection.send_bytes(json.dumps(message).encode())

    def start_server(self) -> None:
        # Use the parent's path, which code may have changed, and the folder of this package.
        path = [entry for entry in sys.path if entry]
        path.append(str(Path(__file__).resolve().parents[2]))
        self.control, child_end = Pipe()
        code = (
            f"from r1_recipes.verification.worker import fork_server; "
            f"fork_server({child_end.fileno()}, {os.getpid()})"
        )
        environment = {
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONUTF8": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        for name in KEPT_ENVIRONMENT:
            if name in os.environ:
                environment[name] = os.environ[name]
        # The child inherits the blocked signals, so that no signal ends it while it starts.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with child_end:
                self.server = subprocess.Popen(
                    [sys.executable, "-P", "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[child_end.fileno()],
                    env=environment,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)

    def stop_server(self) -> None:
        self.server.kill()
        self.server.wait()
        self.control.close()

    def start_worker(self) -> Worker:
        for _ in range(MAX_STARTS):
            parent_end, worker_end = Pipe()
            try:
                with worker_end:
                    self.control.send_bytes(json.dumps(sorted(self.modules)).encode())
                    send_handle(self.control, worker_end.fileno(), self.server.pid)
                if not self.control.poll(START_SECONDS):
                    reply = f"no reply in {START_SECONDS:g} s"
                    break
                reply = json.loads(self.control.recv_bytes())
            except (OSError, EOFError) as error:  # Something killed the fork server.
                reply = f"{MAX_STARTS} times in a row: {error}"
                self.stop_server()
                self.start_server()
                continue
            if isinstance(reply, str):
                break
            self.workers.append(Worker(reply, parent_end))
            return self.workers[-1]
        raise RuntimeError(f"a verification worker could not start: {reply}")

    def stop_workers(self) -> None:
        """Close every connection. An idle worker ends at once, a busy one with its reply or at its
        limit.
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
    # Indices of tasks, with the limit of each.
    given: deque[tuple[int, float]] = field(default_factory=deque)
