"""Compare expressions in processes that the kernel kills at their time limit.

The trainer starts a server, which imports math-verify and forks the workers. The kernel kills a
worker that takes too long, also in a C function (``9^{9^{9^{9}}}``). The server answers for it and
forks another. A worker ends when the trainer does, because its connection ends.
"""

import contextlib
import functools
import json
import logging
import mmap
import os
import resource
import signal
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from r1_recipes.common.processes import cores_per_rank
from r1_recipes.verification import expressions
from r1_recipes.verification.trees import build, same

Task = tuple[str, str, bool]  # the reference answer and the answer as mathematics; is it ordered?
SECONDS = 0.6  # processor time of a task, so that a busy machine makes no right answer wrong
MEMORY_BYTES = 2 << 30


@functools.lru_cache(1)
def workers_of(process: int) -> tuple[list[Any], subprocess.Popen]:
    """Return the connections to a process's workers, and their server. They start if need be."""
    pipes = [Pipe() for _ in range(min(8, cores_per_rank()))]
    theirs = [there.fileno() for _, there in pipes]
    # multiprocessing's own server would import the user's script, and torch with it.
    code = f"from r1_recipes.verification.pool import serve; serve({theirs})"
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path}; {code}"]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=theirs)
    for _, there in pipes:
        there.close()
    return [here for here, _ in pipes], server


def run(tasks: list[Task], again: bool = True) -> dict[Task, bool | None]:
    """Return for each task whether the answer is right, ``None`` where that took too long."""
    connections, server = workers_of(os.getpid())
    free, left = list(connections), list(tasks)
    given: dict[Any, Task] = {}
    replies: dict[Task, bool | None] = {}
    try:
        while left or given:
            while left and free:
                worker = free.pop()
                given[worker] = left.pop()
                worker.send_bytes(json.dumps(given[worker]).encode())
            ready: list[Any] = wait(given, timeout=1)
            if not ready and server.poll() is not None:  # nobody would answer for a killed worker
                raise EOFError
            for worker in ready:
                replies[given.pop(worker)] = json.loads(worker.recv_bytes())
                free.append(worker)
        return replies
    except BaseException as error:  # on Ctrl-C, too: a late reply would answer the next task
        workers_of.cache_clear()
        if again and isinstance(error, EOFError | OSError):
            return run(tasks, again=False)
        raise


def serve(connections: list[int]) -> None:
    """Fork a worker for each connection, and another for each that is killed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the trainer decides what these end
        signal.signal(number, signal.SIG_IGN)
    logging.disable()
    with contextlib.suppress(ValueError):  # there is a lower limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    expressions.enter_worker()
    busy = mmap.mmap(-1, max(connections) + 1)
    idle, workers = set(connections), dict[int, int]()
    while idle or workers:
        for connection in idle:
            workers[os.fork() or _work(connection, busy)] = connection
        pid, status = os.wait()
        connection = workers.pop(pid)
        idle = {connection} if status else set()
        if busy[connection]:
            busy[connection] = 0
            with contextlib.suppress(OSError):
                Connection(os.dup(connection)).send_bytes(b"null")


def _work(number: int, busy: mmap.mmap) -> int:
    """Answer the tasks of one connection. Never return."""
    with contextlib.suppress(EOFError, OSError):  # until the trainer ends
        connection = Connection(number)
        while True:
            gold, answer, ordered = json.loads(connection.recv_bytes())
            busy[number], right = 1, False
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            with contextlib.suppress(Exception):  # a hostile text may raise anything in SymPy
                right = same(build(gold), build(answer), ordered)
            signal.setitimer(signal.ITIMER_PROF, 0)
            busy[number] = 0
            connection.send_bytes(json.dumps(right).encode())
    os._exit(0)
