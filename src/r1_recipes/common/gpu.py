"""NVIDIA GPUs: one that torch cannot use, the first of several, and one that does not compute in
bf16.
"""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

_CONTROL = Path("/dev/nvidiactl")
_VERSION = Path("/proc/driver/nvidia/version")


def unusable_gpu() -> str | None:
    """Return what keeps torch, which sees no accelerator, from this machine's NVIDIA GPU, with the
    ways out.

    None: the machine has no such GPU, or CUDA_VISIBLE_DEVICES hides it.
    """
    import torch

    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1") or torch.version.hip:
        return None
    driver = _nvidia_driver()
    if driver is None:
        return None
    found = (
        f"this machine has an NVIDIA GPU (driver {driver}), and torch {torch.__version__}, built"
    )
    cpu = "or train on the CPU, hundreds of times slower: --use_cpu true"
    if torch.version.cuda is None:
        return f"{found} without CUDA, cannot use it. Fix: torch's build for CUDA, {cpu}"
    return (
        f"{found} for CUDA {torch.version.cuda}, cannot use it. Fix: a driver that is new "
        f"enough (580 or newer for CUDA 13), a torch build "
        f"for the CUDA of this driver (https://pytorch.org/get-started/previous-versions/), {cpu}"
    )


def _nvidia_driver() -> str | None:
    """Return the driver's version, or None if this machine shows no NVIDIA GPU."""
    if _CONTROL.exists():
        text = _VERSION.read_text(errors="replace") if _VERSION.exists() else ""
        found = re.search(r"Kernel Module.*?(\d+\.\d[\d.]*)", text)
        return found[1] if found else "of an unknown version"
    command = shutil.which("nvidia-smi")  # WSL has no control device
    with suppress(OSError, subprocess.SubprocessError):
        if command:
            asked = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
            return subprocess.run(
                asked, capture_output=True, text=True, timeout=30, check=True
            ).stdout.split()[0]
    return None


def use_first_gpu() -> str | None:
    """Hide all GPUs but the first from a process that no launcher started; return that in words, or
    None if nothing changed.

    TRL would spread the model over all of them (device_map "auto"). Must be called before CUDA is
    initialised.
    """
    import torch

    count = torch.cuda.device_count()  # by NVML, which initialises nothing
    if "WORLD_SIZE" in os.environ or count < 2:
        return None
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    os.environ["CUDA_VISIBLE_DEVICES"] = first
    every = "accelerate launch --config_file accelerate_configs/ddp.yaml trains on all"
    return (
        f"one process trains on one GPU: of {count} it uses the first "
        f"(CUDA_VISIBLE_DEVICES={first}); {every}"
    )


def lacks_bf16() -> bool:
    """Return whether the GPU only emulates bf16: CUDA cards below compute capability 8.0, such as
    the T4.
    """
    import torch

    return bool(
        torch.cuda.is_available()
        and torch.version.cuda
        and torch.cuda.get_device_capability() < (8, 0)
    )


def quiet_vllm() -> None:
    """Let vLLM log warnings only (it has a line for each step) and send no usage statistics, unless
    the user chose otherwise.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
