"""What runs outside the trainer's process: the fork server, and the workers that it forks, which
ask math-verify.

The fork server imports math-verify once; a fork is ready in milliseconds. ``multiprocessing`` would
import the user's training script.

All messages are JSON. The fork server gets a worker's modules and connection, and replies with its
process id or a problem. A worker gets ``[processor seconds, wall-clock seconds, "module:function",
…]`` and replies ``[verdict, whether it ends now]``.
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

MEMORY_BYTES = 2 << 30  # address space of a worker (Linux); one at work needs a tenth of it
# A worker ends then: the parser's tables and sympy's grow with every new kind of expression
RETIRE_TASKS = 20_000
RETIRE_BYTES = (
    400 << 20
)  # a worker whose memory has once been larger ends: Python rarely hands back what one answer took
_PARENT_CHECK_SECONDS = 2.0

# One of each common kind: parsing it fills the parser's tables, so that the first answer of its
# kind is as fast as the next.
WARMING = (
    *(
        r"\frac{1}{2}",
        r"-\frac{3\pi}{4}",
        r"3\sqrt{13}",
        "x^{2}+2x+1",
        "(x+1)(x-2)",
        "y=2x+3",
        r"x=\frac{1}{2}",
        r"2+3i",
        r"90^\circ",
    ),
    *(
        "(1,2)",
        "[1,2]",
        r"(-\infty,2)\cup[3,\infty)",
        r"\{1,2,3\}",
        "1,2",
        r"1\le x<5",
        "x>3",
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    ),
    *(
        r"\sin(x)",
        r"\log_2(3)",
        r"|x-1|",
        r"\binom{5}{2}",
        "25_8",
        "a^{n+1}",
        r"(1,\frac{\pi}{2},-3)",
        r"5\%",
        "x = 1, x = -2",
    ),
)


def parse_in_two_stages() -> None:
    """Let latex2sympy try ANTLR's faster mode SLL first: by ANTLR's documentation it finds the same
    parse, or a syntax error.

    On intervals, tuples, sets and equations it takes a fiftieth of the time (latex2sympy2_extended
    1.11, antlr4 4.13).
    """
    from antlr4 import CommonTokenStream
    from antlr4.atn.PredictionMode import PredictionMode
    from latex2sympy2_extended import latex2sympy2

    class TwoStageParser(latex2sympy2.PSParser):
        def math(self) -> object:
            self._interp.predictionMode = PredictionMode.SLL
            try:
                return super().math()
            except (
                Exception
            ):  # What latex2sympy's error listener raises; a RecursionError would come again.
                lexer = self._input.tokenSource
                lexer.reset()
                self.setTokenStream(CommonTokenStream(lexer))
                self._interp.predictionMode = PredictionMode.LL
                return super().math()

    latex2sympy2.PSParser = TwoStageParser


def fork_server(control_fd: int, parent: int) -> None:
    """Serve the process ``parent`` over the socket ``control_fd`` until either ends; no worker
    outlives this.

    Every signal is blocked from the start: Ctrl-C and a scheduler's SIGTERM reach the whole process
    group, and the trainer decides.
    """
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The kernel buries the workers.
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
    # The collector would otherwise write to, and so copy, every page that the workers share.
    gc.freeze()
    with contextlib.suppress(OSError, EOFError):  # The trainer is gone.
        while os.getppid() == parent:
            if not control.poll(_PARENT_CHECK_SECONDS):
                continue
            for name in set(json.loads(control.recv_bytes())) - sys.modules.keys():
                with contextlib.suppress(Exception):  # The worker says what is wrong.
                    importlib.import_module(name)
                gc.freeze()
            with Connection(recv_handle(control)) as connection:
                pid = problem or os.fork()
                if not pid:
                    _work(control, connection)
            control.send_bytes(json.dumps(pid).encode())


def _work(control: Connection, connection: Connection) -> NoReturn:
    """Judge what comes over ``connection``; never return into the fork server's loop."""
    try:
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF, signal.SIGALRM})
        if sys.platform == "linux":
            # The kernel kills this process when the fork server ends, whatever C function it is in
            # then: PR_SET_PDEATHSIG.
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
            with contextlib.suppress(
                OSError
            ):  # If memory runs out, the kernel takes a worker before the trainer.
                Path("/proc/self/oom_score_adj").write_text("1000")
        _serve(connection)
    finally:
        os._exit(0)


def _serve(connection: Connection) -> None:
    peak_unit = 1 if sys.platform == "darwin" else 1024
    for done in itertools.count(1):
        limit, wall_limit, name, *arguments = json.loads(connection.recv_bytes())
        # By SIGPROF and SIGALRM the kernel ends a worker that takes longer, inside a C function
        # too.
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.setitimer(signal.ITIMER_REAL, wall_limit)
        module, _, function = name.partition(":")
        try:
            verdict = getattr(importlib.import_module(module), function)(*arguments)
        except ImportError as error:
            verdict = f"{type(error).__name__}: {error}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        retires = (
            done >= RETIRE_TASKS
            or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * peak_unit > RETIRE_BYTES
        )
        connection.send_bytes(json.dumps([verdict, retires]).encode())
        if retires:
            return
