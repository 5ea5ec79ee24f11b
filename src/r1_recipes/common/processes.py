"""The processes of one run, and the GPUs that they use.

The launcher's environment variables say which process this is, without torch. Accelerate does the
rest.
"""

import contextlib
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


def use_first_gpu() -> str:
    """Hide all GPUs but the first from a process that no launcher started.

    Return the message about it, or "" if nothing changed. TRL would spread the model over all
    GPUs (device_map "auto"). Call it before CUDA is initialised.
    """
    import torch

    count = torch.cuda.device_count()  # asks NVML, which does not initialise CUDA
    if "WORLD_SIZE" in os.environ or count < 2:
        return ""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    os.environ["CUDA_VISIBLE_DEVICES"] = first
    return (
        f"one process uses one GPU, the first of {count} (CUDA_VISIBLE_DEVICES={first}). "
        "accelerate launch --config_file accelerate_configs/ddp.yaml trains on all"
    )


def lacks_bf16() -> bool:
    """Return whether the GPU only emulates bf16, as a T4 does."""
    import torch

    return torch.cuda.is_available() and not torch.cuda.is_bf16_supported(False)


def quiet_vllm() -> None:
    """Let vLLM log warnings only and send no usage statistics. What the user has set stays."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def gather(items: list[Any]) -> list[Any]:
    """Return the items of every process, those of rank 0 first.

    Return ``items`` if the processes are not connected. Otherwise every process must call it.
    """
    if world_size() == 1:
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
