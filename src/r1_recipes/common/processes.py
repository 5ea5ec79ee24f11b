"""The processes of one run.

The launcher's environment variables say which process this is, without torch. Accelerate does the
rest.
"""

import atexit
import contextlib
import contextvars
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from r1_recipes.common.errors import RecipeError


def rank() -> int:
    return int(os.environ.get("RANK", 0))


def world_size() -> int:
    """Return how many processes the run has on all machines."""
    return int(os.environ.get("WORLD_SIZE", 1))


def cores_per_rank() -> int:
    """Return this process's share of the cores that the machine gives to the run."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))


def is_main_process() -> bool:
    return rank() == 0


def connect(*, use_cpu: bool) -> None:
    """Connect this process to the others, for a command that builds no trainer.

    The first process waits for the slowest without a time limit.
    """
    if world_size() == 1:
        return
    from datetime import timedelta

    from accelerate import PartialState

    PartialState(cpu=use_cpu, timeout=timedelta(days=30))


def start_child(command: list[str], **options: Any) -> subprocess.Popen:
    """Start a command in its own process group, so that a terminal's Ctrl-C does not reach it
    twice.

    When this process ends, even by kill -9, Linux sends SIGTERM to the command (PR_SET_PDEATHSIG),
    and training saves a checkpoint.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        options["preexec_fn"] = lambda: libc.prctl(1, signal.SIGTERM)
    return subprocess.Popen(command, process_group=0, **options)


def destroy_process_group_at_exit() -> None:
    """Destroy the process group at exit. An open group can crash the interpreter.

    A single process has one, too, if vLLM is in it.
    """
    from torch import distributed

    atexit.register(lambda: distributed.is_initialized() and distributed.destroy_process_group())


def wait() -> None:
    if world_size() > 1:
        from accelerate import PartialState

        PartialState().wait_for_everyone()


_alone = contextvars.ContextVar("alone", default=False)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let :func:`gather` return this process's items, for a block that the others do not run."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def gather(items: list[Any]) -> list[Any]:
    """Return the items of every process, those of rank 0 first.

    Return ``items`` if the processes are not connected, or in a block of :func:`alone`. Otherwise
    every process must call it.
    """
    if world_size() == 1 or _alone.get():
        return items
    import torch.distributed
    from accelerate.utils import gather_object

    return gather_object(items) if torch.distributed.is_initialized() else items


def first(call: Callable[[], Any]) -> Any:
    """Call a function on rank 0, and return its result or raise its RecipeError on every process.

    Before the processes are connected, only rank 0 gets the result.
    """
    result = refusal = None
    if rank() == 0:
        try:
            result = call()
        except RecipeError as error:
            refusal = error
    result, refusal = gather([(result, refusal)])[0]
    if refusal:
        raise refusal
    return result


@contextlib.contextmanager
def handled_by(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP with ``handler`` in this block.

    A SIGHUP that ``nohup`` ignores stays ignored.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    previous = {}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    with contextlib.suppress(ValueError):  # only the main thread may set signal handlers
        for number in numbers:
            previous[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
