"""The fork server and the workers that it forks. They run outside the trainer's process, and the
workers call math-verify.

The fork server imports math-verify once, so a fork is ready in milliseconds. ``multiprocessing``
would import the user's training script.

All messages are JSON. The fork server receives a worker's modules and connection, and replies with
the worker's process id or an error text. A worker receives ``[processor seconds, wall-clock
seconds, "module:function", …]`` and replies ``[verdict, whether it ends now]``.
"""

import contextlib
import ctypes
import gc
import importlib
import itertools
import json
import logging
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import NoReturn

from r1_recipes.verification.compare import compare, parse
from r1_recipes.verification.expression import Answer

MEMORY_BYTES = 2 << 30  # address space of a worker (Linux); usual work needs a tenth of it
# A worker ends after so many tasks, because the tables of the parser and of SymPy keep growing.
RETIRE_TASKS = 20_000
# A worker ends when its memory has exceeded this, because Python rarely returns memory.
RETIRE_BYTES = 400 << 20
_PARENT_CHECK_SECONDS = 2.0

# One expression of each common type. Parsing it fills the parser's tables, so that the first answer
# of this type is as fast as the next.
WARMING = (
    r"\frac{1}{2}",
    r"-\frac{3\pi}{4}",
    r"3\sqrt{13}",
    "x^{2}+2x+1",
    "(x+1)(x-2)",
    "y=2x+3",
    r"x=\frac{1}{2}",
    r"2+3i",
    r"90^\circ",
    "(1,2)",
    "[1,2]",
    r"(-\infty,2)\cup[3,\infty)",
    r"\{1,2,3\}",
    "1,2",
    r"1\le x<5",
    "x>3",
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    r"\sin(x)",
    r"\log_2(3)",
    r"|x-1|",
    r"\binom{5}{2}",
    "25_8",
    "a^{n+1}",
    r"(1,\frac{\pi}{2},-3)",
    r"5\%",
    "x = 1, x = -2",
)


def parse_in_two_stages() -> None:
    """Make latex2sympy try ANTLR's faster mode SLL first. According to ANTLR's documentation, SLL
    finds the same parse or a syntax error.

    On intervals, tuples, sets and equations this takes a fiftieth of the time
    (latex2sympy2_extended 1.11, antlr4 4.13).
    """
    from antlr4 import CommonTokenStream
    from antlr4.atn.PredictionMode import PredictionMode
    from latex2sympy2_extended import latex2sympy2

    class TwoStageParser(latex2sympy2.PSParser):
        def math(self) -> object:
            self._interp.predictionMode = PredictionMode.SLL
            try:
                return super().math()
            except Exception:  # From the error listener. LL would raise a RecursionError again.
                lexer = self._input.tokenSource
                lexer.reset()
                self.setTokenStream(CommonTokenStream(lexer))
                self._interp.predictionMode = PredictionMode.LL
                return super().math()

    latex2sympy2.PSParser = TwoStageParser


def fork_server(control_fd: int, parent: int) -> None:
    """Start workers for the process ``parent`` over the socket ``control_fd`` until either ends.
    Workers end with the fork server.

    Every signal is blocked from the start. Ctrl-C and a scheduler's SIGTERM reach the whole process
    group, and the trainer decides what to do.
    """
    logging.disable(logging.CRITICAL)
    # Let the kernel reap dead workers, so that none becomes a zombie.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control = Connection(control_fd)
    problem = None
    try:
        parse_in_two_stages()
        for text in WARMING:
            compare(text, text, Answer((text + "+1",)))
        parse.cache_clear()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    gc.collect()
    # Otherwise the collector would write to every memory page that the workers share, and copy it.
    gc.freeze()
    with contextlib.suppress(OSError, EOFError):  # The trainer has ended.
        while os.getppid() == parent:
            if not control.poll(_PARENT_CHECK_SECONDS):
                continue
            for name in set(json.loads(control.recv_bytes())) - sys.modules.keys():
                with contextlib.suppress(Exception):  # The worker reports the error.
                    importlib.import_module(name)
                gc.freeze()
            with Connection(recv_handle(control)) as connection:
                pid = problem or os.fork()
                if not pid:
                    _work(control, connection)
            control.send_bytes(json.dumps(pid).encode())


def _work(control: Connection, connection: Connection) -> NoReturn:
    """Judge the tasks that arrive over ``connection``. Never return into the fork server's loop."""
    try:
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF, signal.SIGALRM})
        if sys.platform == "linux":
            # PR_SET_PDEATHSIG: the kernel kills this process when the fork server ends, even inside
            # a C function.
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
            # If memory runs out, the kernel kills a worker before the trainer.
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text("1000")
        _serve(connection)
    finally:
        os._exit(0)


def _serve(connection: Connection) -> None:
    peak_unit = 1 if sys.platform == "darwin" else 1024
    for done in itertools.count(1):
        limit, wall_limit, name, *arguments = json.loads(connection.recv_bytes())
        # SIGPROF and SIGALRM end a worker that takes longer, even inside a C function.
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.setitimer(signal.ITIMER_REAL, wall_limit)
        module, _, function = name.partition(":")
        try:
            verdict = getattr(importlib.import_module(module), function)(*arguments)
        except ImportError as error:
            verdict = f"{type(error).__name__}: {error}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * peak_unit
        retires = done >= RETIRE_TASKS or peak > RETIRE_BYTES
        connection.send_bytes(json.dumps([verdict, retires]).encode())
        if retires:
            return
