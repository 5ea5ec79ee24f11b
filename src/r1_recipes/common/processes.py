"""The processes of one run.

The launcher's environment variables say which process this is, without torch. Accelerate does the
rest.
"""

import atexit
import contextlib
import contextvars
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any


def rank() -> int:
    return int(os.environ.get("RANK", 0))


def world_size() -> int:
    """Return how many processes the run has on all machines."""
    return int(os.environ.get("WORLD_SIZE", 1))


def cores_per_rank() -> int:
    """Return this process's share of the cores that the machine gives to the run."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))


def is_main_process() -> bool:
    return rank() == 0


def destroy_process_group_at_exit() -> None:
    """Destroy the process group at exit. An open group can crash the interpreter.

    A single process has one, too, if vLLM is in it.
    """
    from torch import distributed

    atexit.register(lambda: distributed.is_initialized() and distributed.destroy_process_group())


def wait() -> None:
    """Wait for all processes."""
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


@contextlib.contextmanager
def handled_by(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP with ``handler`` in this block.

    A signal that is ignored, as ``nohup`` does with SIGHUP, stays ignored.
    """
    before: dict[int, Any] = {}
    with contextlib.suppress(ValueError):  # only the main thread may set signal handlers
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for stopped, earlier in before.items():
            signal.signal(stopped, earlier)
