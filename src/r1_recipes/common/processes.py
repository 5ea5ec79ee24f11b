"""The processes of one run. The launcher's environment says which one this is, without torch;
Accelerate does the rest.
"""

import atexit
import contextlib
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
    """Return how many processes the run has, on all machines."""
    return int(os.environ.get("WORLD_SIZE", 1))


def cores_per_rank() -> int:
    """This process's share of the cores that this machine lends to the run."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))


def is_main_process() -> bool:
    return rank() == 0


def connect(*, use_cpu: bool) -> None:
    """Join the other processes, for an entry point that builds no trainer. The first waits for the
    slowest as long as it takes.
    """
    if world_size() == 1:
        return
    from datetime import timedelta

    from accelerate import PartialState

    PartialState(cpu=use_cpu, timeout=timedelta(days=30))


def start_child(command: list[str], **options: Any) -> subprocess.Popen:
    """Start a command that a terminal's Ctrl-C does not reach a second time: it is in a group of
    its own.

    When this process is gone, even by kill -9, Linux sends it SIGTERM (PR_SET_PDEATHSIG), and
    training saves a checkpoint.
    """
    libc = ctypes.CDLL(None)
    ends = (lambda: libc.prctl(1, signal.SIGTERM)) if sys.platform == "linux" else None
    return subprocess.Popen(command, process_group=0, preexec_fn=ends, **options)


def destroy_process_group_at_exit() -> None:
    """Destroy the process group at exit; leaving it open can crash the interpreter."""
    if world_size() > 1:
        import torch.distributed

        atexit.register(
            lambda: torch.distributed.is_initialized() and torch.distributed.destroy_process_group()
        )


def wait() -> None:
    if world_size() > 1:
        from accelerate import PartialState

        PartialState().wait_for_everyone()


def gather(items: list[Any]) -> list[Any]:
    """Return every process's items, those of rank 0 first; ``items`` if the processes are not
    connected. All must call it.
    """
    if world_size() == 1:
        return items
    import torch.distributed
    from accelerate.utils import gather_object

    return gather_object(items) if torch.distributed.is_initialized() else items


def first(call: Callable[[], Any]) -> Any:
    """Call on rank 0, and return the result (or raise its RecipeError) on every process; before
    they are connected, on rank 0.
    """
    given = refused = None
    if rank() == 0:
        try:
            given = call()
        except RecipeError as error:
            refused = error
    given, refused = gather([(given, refused)])[0]
    if refused:
        raise refused
    return given


@contextlib.contextmanager
def handled_by(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Hand SIGINT, SIGTERM and, unless ``nohup`` ignores it, SIGHUP to ``handler``."""
    numbers, previous = [signal.SIGINT, signal.SIGTERM], {}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    with contextlib.suppress(ValueError):  # not the main thread: the caller owns the signals
        for number in numbers:
            previous[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
