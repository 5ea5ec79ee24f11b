"""The machine that a run trains on, in words."""

from __future__ import annotations

import os
import platform
from typing import Any


def hardware() -> dict[str, Any]:
    """Return system, Python, processor cores, memory (GiB) and accelerators with their memory (GiB)."""
    import psutil
    import torch

    found: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cpu_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
    }
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        found["accelerators"] = [f"{device.name}, {device.total_memory / 2**30:.0f} GiB" for device in devices]
        found["cuda"] = torch.version.cuda
    return found
