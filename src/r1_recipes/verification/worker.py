"""What runs outside the trainer's process: the fork server, and the workers that it forks, which ask math-verify.

The fork server imports math-verify once, and neither torch nor transformers. A fork is ready in milliseconds, so that a worker which
hangs or grows is replaced at once. ``multiprocessing`` would import the user's ``__main__`` again, which is a training script.

All messages are JSON. The trainer asks the fork server to ``["fork"]`` a worker, which serves the connection sent along (the reply is its
process id, or a text that says why not), to ``["kill", pid]`` one, or to ``["preload", module, …]``. It sends a worker
``[processor seconds, wall-clock seconds, "module:function", …]`` and gets ``[verdict, processor seconds, whether the worker ends now]``.
The function's name comes from the code that asks, never from data.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import itertools
import json
import logging
import os
import resource
import signal
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, NoReturn

from r1_recipes.verification.numbers import NUMBER, plain_spelling

MEMORY_BYTES = 2 << 30
"""Address space of a worker; one at work needs a tenth of it."""

RETIRE_TASKS = 20_000
"""A worker ends after so many tasks, since the parser's tables and sympy's grow with every new kind of expression."""

RETIRE_BYTES = 400 << 20
"""A worker whose memory has once been larger ends: Python rarely hands back what one answer took."""

_PARENT_CHECK_SECONDS = 2.0

PARSED_REMEMBERED = 4096
"""Parsed expressions that a worker keeps, golds above all: a few KB each."""

WARMING = (
    *(r"\frac{1}{2}", r"-\frac{3\pi}{4}", r"3\sqrt{13}", "x^{2}+2x+1", "(x+1)(x-2)", "y=2x+3", r"x=\frac{1}{2}", r"2+3i", r"90^\circ"),
    *("(1,2)", "[1,2]", r"(-\infty,2)\cup[3,\infty)", r"\{1,2,3\}", "1,2", r"1\le x<5", "x>3", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    *(r"\sin(x)", r"\log_2(3)", r"|x-1|", r"\binom{5}{2}", "25_8", "a^{n+1}", r"(1,\frac{\pi}{2},-3)", r"5\%", "x = 1, x = -2"),
)
"""One expression of each common kind: parsing it fills the parser's tables, so that the first answer of its kind is as fast as the next."""


def compare(gold: str, sides: list[str] | None) -> bool | None:
    """Whether math-verify finds every side equal to the gold; ``None`` where it cannot read the gold."""
    from math_verify import verify

    target = parse(gold)
    if not target:
        return None
    if not sides:
        return False
    for side in sides:
        parsed = parse(side)
        if not parsed or not verify(target, parsed, timeout_seconds=None):
            return False
    return True


@functools.lru_cache(PARSED_REMEMBERED)
def parse(text: str) -> list:
    """What math-verify makes of an expression: plain numbers as such (decimals get its tolerance), everything else as LaTeX."""
    from math_verify import parse as math_verify_parse

    plain = NUMBER.fullmatch(text)
    text, configs = (plain_spelling(plain), _configs()[0]) if plain else (f"${text}$", _configs()[1])
    return math_verify_parse(text, configs, fallback_mode="no_fallback", parsing_timeout=None)


@functools.cache
def _configs() -> tuple[list, list]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig

    return [ExprExtractionConfig()], [LatexExtractionConfig()]


def parse_in_two_stages() -> None:
    """Let latex2sympy's parser try ANTLR's faster prediction mode first, and its usual one only where that finds a syntax error.

    By ANTLR's documentation of ``PredictionMode.SLL`` a parse that succeeds in it is the one that the usual mode finds: the same verdicts
    for a fiftieth of the time on intervals, tuples, sets and equations (latex2sympy2_extended 1.11, antlr4 4.13).
    """
    from antlr4 import CommonTokenStream
    from antlr4.atn.PredictionMode import PredictionMode
    from latex2sympy2_extended import latex2sympy2

    class TwoStageParser(latex2sympy2.PSParser):
        def math(self) -> Any:
            self._interp.predictionMode = PredictionMode.SLL
            try:
                return super().math()
            except Exception:  # What latex2sympy's error listener raises; a RecursionError would come again.
                lexer = self._input.tokenSource
                lexer.reset()
                self.setTokenStream(CommonTokenStream(lexer))
                self._interp.predictionMode = PredictionMode.LL
                return super().math()

    latex2sympy2.PSParser = TwoStageParser


def judge(gold: str, sides: list[str] | None) -> bool | None:
    """:func:`compare`, where whatever goes wrong makes the answer wrong."""
    try:
        return compare(gold, sides)
    except Exception:  # RecursionError and MemoryError too: sympy on a hostile text.
        return False


def fork_server(control_fd: int, parent: int) -> None:
    """Serve the process ``parent`` over the socket ``control_fd`` until either ends; no worker outlives this.

    Every signal is blocked from the start: Ctrl-C and a scheduler's SIGTERM reach the whole process group, and the trainer decides.
    """
    logging.disable(logging.CRITICAL)
    control = Connection(control_fd)
    problem = None
    try:
        parse_in_two_stages()
        for text in WARMING:
            compare(text, [text + "+1"])
        parse.cache_clear()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    gc.collect()
    gc.freeze()  # The collector would otherwise write to, and so copy, every page that the workers share.
    children: set[int] = set()
    try:
        while os.getppid() == parent:
            if not control.poll(_PARENT_CHECK_SECONDS):
                continue
            kind, *words = json.loads(control.recv_bytes())
            if kind == "fork":
                with Connection(recv_handle(control)) as connection:
                    pid = problem or os.fork()
                    if not pid:
                        _work(control, connection)
                if isinstance(pid, int):
                    children.add(pid)
                control.send_bytes(json.dumps(pid).encode())
            elif kind == "kill" and words[0] in children:  # Another fork server's worker may have had this number.
                children.remove(words[0])
                os.kill(words[0], signal.SIGKILL)
                os.waitpid(words[0], 0)
            elif kind == "preload":
                for name in words:
                    with contextlib.suppress(Exception):  # Each worker that needs it says what is wrong.
                        importlib.import_module(name)
                gc.freeze()
    except (OSError, EOFError):  # The trainer is gone.
        pass
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def _work(control: Connection, connection: Connection) -> NoReturn:
    """Judge what comes over ``connection``; never return into the fork server's loop."""
    status = 1
    try:
        parent = os.getppid()
        control.close()
        _end_with(parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF, signal.SIGALRM})
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # If memory runs out, the kernel takes a worker before the trainer.
        _serve(connection)
        status = 0
    finally:
        os._exit(status)


def _end_with(parent: int) -> None:
    """Let the kernel kill this process when the fork server ends, whatever C function it is in then (Linux)."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def _serve(connection: Connection) -> None:
    peak_unit = 1 if sys.platform == "darwin" else 1024
    for done in itertools.count(1):
        try:
            limit, wall_limit, name, *arguments = json.loads(connection.recv_bytes())
        except EOFError:
            return
        before = time.process_time()
        # By SIGPROF and SIGALRM the kernel ends a worker that takes longer, inside a C function too.
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.setitimer(signal.ITIMER_REAL, wall_limit)
        verdict = _verdict(name, arguments)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        retires = done >= RETIRE_TASKS or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * peak_unit > RETIRE_BYTES
        connection.send_bytes(json.dumps([verdict, time.process_time() - before, retires]).encode())
        if retires:
            return


def _verdict(name: str, arguments: list) -> Any:
    """Call the function ``module:function``; a text says that it cannot be imported."""
    module, _, function = name.partition(":")
    try:
        called = getattr(importlib.import_module(module), function)
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    return called(*arguments)
