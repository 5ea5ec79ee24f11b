"""NVIDIA GPUs: one that torch cannot use, the first of several, and one without bf16."""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

_CONTROL = Path("/dev/nvidiactl")
_VERSION = Path("/proc/driver/nvidia/version")


def unusable_gpu() -> str | None:
    """Return why torch cannot use this machine's NVIDIA GPU, and the fixes.

    Return None if the machine has no NVIDIA GPU, or if CUDA_VISIBLE_DEVICES hides it. Call it when
    torch sees no accelerator.
    """
    import torch

    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1") or torch.version.hip:
        return None
    driver = _nvidia_driver()
    if driver is None:
        return None
    gpu_and_torch = (
        f"this machine has an NVIDIA GPU (driver {driver}), and torch {torch.__version__}, built"
    )
    use_cpu = "or train on the CPU, which is hundreds of times slower: --use_cpu true"
    if torch.version.cuda is None:
        return (
            f"{gpu_and_torch} without CUDA, cannot use it. Fix: torch's build for CUDA, {use_cpu}"
        )
    return (
        f"{gpu_and_torch} for CUDA {torch.version.cuda}, cannot use it. Fix: a driver that is new "
        f"enough (580 or newer for CUDA 13), a torch build "
        "for the CUDA of this driver (https://pytorch.org/get-started/previous-versions/), "
        f"{use_cpu}"
    )


def _nvidia_driver() -> str | None:
    """Return the driver's version, or None if this machine shows no NVIDIA GPU."""
    if _CONTROL.exists():
        text = _VERSION.read_text(errors="replace") if _VERSION.exists() else ""
        version = re.search(r"Kernel Module.*?(\d+\.\d[\d.]*)", text)
        return version[1] if version else "of an unknown version"
    command = shutil.which("nvidia-smi")  # WSL has no control device file
    with suppress(OSError, subprocess.SubprocessError):
        if command:
            query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
            return subprocess.run(
                query, capture_output=True, text=True, timeout=30, check=True
            ).stdout.split()[0]
    return None


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
    launch_hint = "accelerate launch --config_file accelerate_configs/ddp.yaml trains on all"
    return (
        f"one process uses one GPU, the first of {count} "
        f"(CUDA_VISIBLE_DEVICES={first}). {launch_hint}"
    )


def lacks_bf16() -> bool:
    """Return whether the GPU only emulates bf16.

    CUDA cards below compute capability 8.0 do, for example the T4.
    """
    import torch

    return bool(
        torch.cuda.is_available()
        and torch.version.cuda
        and torch.cuda.get_device_capability() < (8, 0)
    )


def quiet_vllm() -> None:
    """Let vLLM log only warnings and send no usage statistics, unless the user chose otherwise.

    At its default level, vLLM logs a line per step.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
