"""The processes that judge: a nursery, which imports math-verify once, and its children, the workers, which are forks of it.

A fork is ready in milliseconds, so a worker that hangs or grows is killed and replaced at once. The nursery itself judges nothing and
has one thread. It is a plain subprocess: ``multiprocessing`` would import the user's ``__main__`` in it again, which here is a training
script that loads torch.

The trainer and the nursery speak in requests of five bytes, ``REQUEST``: fork a worker that serves the socket sent along (the answer
is its process id), reap a worker that is dead or about to be, load the scorers, end. The nursery's first words are ``FRAME`` and a text:
empty where it is ready, else why it cannot be.

The trainer and a worker speak in JSON lines: ``[kind, …]`` there, ``[verdict, processor seconds so far, whether it ends now]`` back.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from typing import NoReturn

from r1_recipes.verification import judging

REQUEST = struct.Struct("!cI")
FRAME = struct.Struct("!I")
FORK, REAP, LOAD_SCORERS, END = b"F", b"R", b"S", b"E"

MEMORY_BYTES = 2 << 30
"""Address space of a worker; one at work needs a tenth of it."""

RETIRE_TASKS = 20_000
"""A worker ends after so many tasks, since the parser's tables and sympy's grow with every new kind of expression."""

RETIRE_BYTES = 400 << 20
"""A worker whose memory has once been larger ends: what it took for one answer, Python rarely hands back."""

_PARENT_CHECK_SECONDS = 2.0
_REAP_SECONDS = 0.05


def nursery(control_fd: int, parent: int) -> None:
    """Serve the process ``parent`` over the socket ``control_fd`` until either ends; no worker outlives this.

    It is started with every signal blocked: Ctrl-C and a scheduler's SIGTERM reach the whole process group, and the trainer decides.
    """
    logging.disable(logging.CRITICAL)
    control = socket.socket(fileno=control_fd)
    try:
        judging.parse_in_two_stages()
        for text in judging.WARMING:
            judging.compare(text, [text + "+1"])
        judging.parse.cache_clear()
        problem = b""
    except Exception as error:
        problem = f"{type(error).__name__}: {error}".encode()
    with contextlib.suppress(OSError):
        control.sendall(FRAME.pack(len(problem)) + problem)
    gc.collect()
    gc.freeze()  # The collector would otherwise write to, and so copy, every page that the workers share.
    children: set[int] = set()
    dying: set[int] = set()
    try:
        while os.getppid() == parent:
            dying -= {pid for pid in dying if os.waitpid(pid, os.WNOHANG)[0]}
            if not select.select([control], [], [], _REAP_SECONDS if dying else _PARENT_CHECK_SECONDS)[0]:
                continue
            request, fds, _, _ = socket.recv_fds(control, REQUEST.size, 1)
            if len(request) < REQUEST.size:
                return
            kind, pid = REQUEST.unpack(request)
            if kind == FORK:
                children.add(_fork(control, fds[0]))
            elif kind == REAP:
                dying |= children & {pid}  # Another nursery's worker is not ours to reap.
                children.discard(pid)
            elif kind == LOAD_SCORERS:
                with contextlib.suppress(Exception):  # Each worker that needs one says what is wrong.
                    judging.load_scorers()
                gc.freeze()
            else:
                return
    except OSError:  # The trainer is gone.
        pass
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _fork(control: socket.socket, fd: int) -> int:
    pid = os.fork()
    if not pid:
        _worker(control, fd)
    os.close(fd)
    control.sendall(FRAME.pack(pid))
    return pid


def _worker(control: socket.socket, fd: int) -> NoReturn:
    """Judge what comes over the socket ``fd``; never returns into the nursery's loop."""
    status = 1
    try:
        nursery_pid = os.getppid()
        control.close()
        _end_with(nursery_pid)
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # Where memory runs out, the kernel takes a worker before the trainer.
        _serve(socket.socket(fileno=fd))
        status = 0
    finally:
        os._exit(status)


def _end_with(nursery_pid: int) -> None:
    """Let the kernel kill this process when the nursery ends, whatever C function it is in then (Linux)."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != nursery_pid:
        os._exit(1)


def _serve(connection: socket.socket) -> None:
    peak_unit = 1 if sys.platform == "darwin" else 1024
    with connection, connection.makefile("rb") as tasks:
        for done, line in enumerate(tasks, 1):
            kind, *arguments = json.loads(line)
            verdict = (judging.score if kind == "score" else judging.judge)(*arguments)
            ends = done >= RETIRE_TASKS or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * peak_unit > RETIRE_BYTES
            connection.sendall(json.dumps([verdict, time.process_time(), ends]).encode() + b"\n")
            if ends:
                return
