"""Commands that have to succeed, and two processes under a file of accelerate_configs/."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

_DEEPSPEED = Path(sys.prefix) / "deepspeed"  # where make test-processes puts it
NEEDS_DEEPSPEED = pytest.mark.skipif(
    not (_DEEPSPEED.is_dir() or importlib.util.find_spec("deepspeed"))
    or not (shutil.which("g++") and (Path(sysconfig.get_path("include")) / "Python.h").is_file()),
    reason="DeepSpeed: make test-processes installs it; it compiles parts of itself: g++, Python.h",
)


def succeed(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    folder: Path = REPOSITORY,
    stdin: str | None = None,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; the end of what it wrote to stderr is the failure's message."""
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def launch(config: str, *words: str, extensions: Path | None = None) -> None:
    """Run ``accelerate launch`` with two processes and no GPU.

    What DeepSpeed compiles goes to ``extensions``: a lock that a killed run leaves in the user's
    folder makes every later one wait for ever.
    """
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if config.startswith("zero"):
        # Beside DeepSpeed's own word for the CPU, Accelerate's would make it plain data parallelism.
        env |= {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(extensions)}
        for variable, folders in (
            ("PYTHONPATH", [_DEEPSPEED]),
            ("PATH", [_DEEPSPEED / "bin", Path(sys.executable).parent]),  # ninja, which compiles
        ):
            env[variable] = os.pathsep.join([*map(str, folders), env.get(variable, "")])
    else:
        env["ACCELERATE_USE_CPU"] = "true"
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"]
    command += ["--config_file", f"accelerate_configs/{config}.yaml", "--main_process_port", "0"]
    succeed([*command, *words], env, timeout=400)
