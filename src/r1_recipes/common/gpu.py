"""NVIDIA GPUs: one that torch cannot use, the first of several, and one without bf16."""

import os
import re
import shutil
from pathlib import Path

# WSL has nvidia-smi and no such file.
_VERSION = Path("/proc/driver/nvidia/version")


def unusable_gpu() -> str | None:
    """Return why torch cannot use this machine's NVIDIA GPU, and the fixes.

    Return None if the machine has no NVIDIA GPU, or if CUDA_VISIBLE_DEVICES hides it. Call it when
    torch sees no accelerator: a build of torch without CUDA would train for days on the CPU.
    """
    import torch

    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    if hidden or torch.version.hip or not (_VERSION.exists() or shutil.which("nvidia-smi")):
        return None
    said = _VERSION.read_text(errors="replace") if _VERSION.exists() else ""
    driver = re.search(r"Kernel Module.*?(\d+\.\d[\d.]*)", said)
    fix = "torch's build for CUDA"
    if torch.version.cuda is not None:
        fix = (
            "a driver that is new enough (580 or newer for CUDA 13), a torch build for the CUDA "
            "of this driver (https://pytorch.org/get-started/previous-versions/)"
        )
    return (
        f"this machine has an NVIDIA GPU (driver {driver[1] if driver else 'of an unknown version'}"
        f"), and torch {torch.__version__}, built for CUDA {torch.version.cuda}, cannot use it. "
        f"Fix: {fix}, or train on the CPU, which is hundreds of times slower: --use_cpu true"
    )


def use_first_gpu() -> str | None:
    """Hide all GPUs but the first from a process that no launcher started.

    Return the message about it, or None if nothing changed. TRL would spread the model over all
    GPUs (device_map "auto"). Call it before CUDA is initialised.
    """
    import torch

    count = torch.cuda.device_count()  # asks NVML, which does not initialise CUDA
    if "WORLD_SIZE" in os.environ or count < 2:
        return None
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    os.environ["CUDA_VISIBLE_DEVICES"] = first
    return (
        f"one process uses one GPU, the first of {count} (CUDA_VISIBLE_DEVICES={first}). "
        "accelerate launch --config_file accelerate_configs/ddp.yaml trains on all"
    )


def lacks_bf16() -> bool:
    """Return whether the GPU only emulates bf16, as a T4 does."""
    import torch

    cuda = bool(torch.cuda.is_available() and torch.version.cuda)
    return cuda and torch.cuda.get_device_capability() < (8, 0)


def quiet_vllm() -> None:
    """Let vLLM log only warnings, not a line per step, and send no usage statistics.

    What the user has set stays.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
