"""Several processes of one run: which one this is, waiting for the others, and what only all of them together know.

The launcher's environment (``RANK``, ``WORLD_SIZE``) answers the first without torch; Accelerate does the rest.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any

from r1_recipes.common.errors import RecipeError


def rank() -> int:
    """This process's number among those of the run, from 0."""
    return int(os.environ.get("RANK", 0))


def world_size() -> int:
    """How many processes the run has, on all machines."""
    return int(os.environ.get("WORLD_SIZE", 1))


def cores_per_rank() -> int:
    """This process's share of the cores that this machine lends to the run."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))


def is_main_process() -> bool:
    """Whether this is rank 0, by the launcher's environment: torch need not be loaded."""
    return rank() == 0


def share(items: list[Any]) -> list[Any]:
    """This process's part of what all of them have to do."""
    return items[rank() :: world_size()]


def connect(*, use_cpu: bool) -> None:
    """Join the other processes; for an entry point that builds no trainer, which would do it. Alone: nothing.

    A rank that is done waits for the slowest as long as it takes; one that dies ends the run, since its launcher ends the others.
    """
    if world_size() == 1:
        return
    from datetime import timedelta

    from accelerate import PartialState

    PartialState(cpu=use_cpu, timeout=timedelta(days=30))
    name_cpu_plainly()


def name_cpu_plainly(training: Any = None) -> None:
    """Call the processor ``cpu`` where Accelerate numbers it.

    Several processes on CPUs get ``cpu:0``, which ``torch.load`` refuses as a map location, so that Transformers 5.17 cannot resume.

    Args:
        training: ``TrainingArguments``, which remember it too.
    """
    import torch
    from accelerate import PartialState

    if PartialState().device.type == "cpu":
        PartialState().device = torch.device("cpu")
        if training is not None:
            training.__dict__["_setup_devices"] = PartialState().device


def destroy_process_group_at_exit() -> None:
    """Destroy the process group at exit; leaving it open can crash the interpreter."""
    if world_size() > 1:
        atexit.register(_destroy)


def _destroy() -> None:
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def device() -> Any:
    """The accelerator that is this process's own; ``None`` where it is alone, and may take any."""
    if world_size() == 1:
        return None
    from accelerate import PartialState

    return PartialState().device


def wait() -> None:
    """Until every process is here."""
    if world_size() > 1:
        from accelerate import PartialState

        PartialState().wait_for_everyone()


def gather(items: list[Any]) -> list[Any]:
    """Every process's items, those of rank 0 first. All must call it, also with nothing to give.

    Returns:
        The same list on every process; ``items`` themselves where the process is alone, or is not connected yet.
    """
    if world_size() == 1:
        return items
    from accelerate import PartialState
    from accelerate.utils import gather_object

    return gather_object(items) if PartialState._shared_state else items


def first(call: Callable[[], Any]) -> Any:
    """What ``call`` gives on rank 0, on every process; before they are connected, on rank 0 alone.

    Raises:
        RecipeError: on every process, what rank 0 refuses.
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
