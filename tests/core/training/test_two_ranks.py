"""Two processes on one host under each accelerate config that CPUs can run: a second, frozen model
has the weights of its file.

With learning rate 0 nothing moves. So the KL divergence from the reference is 0, and a teacher's
loss is that of plain data parallelism.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY, metrics
from tests.support.two_processes import settings, training

_DEEPSPEED = Path(sys.prefix) / "deepspeed"  # where make test-processes puts it
_HAS_DEEPSPEED = (_DEEPSPEED.is_dir() or importlib.util.find_spec("deepspeed")) and (
    shutil.which("g++") and (Path(sysconfig.get_path("include")) / "Python.h").is_file()
)
pytestmark = [pytest.mark.slow, pytest.mark.e2e]

_SAMPLED = {"max_completion_length": 8}
_REWARDED = {**_SAMPLED, "reward_funcs": ["tests.conftest:letters"], "num_generations": 4}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {**_REWARDED, "beta": 0.04}),
    "sft": ("sft", {}),
    "distillation": ("distill", {**_SAMPLED, "temperature": 1.0}),
    "gold": (
        "distill",
        {**_SAMPLED, "distill_with": "gold", "use_uld_loss": True, "lmbda": 0.0, "max_length": 256},
    ),
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The tiny model with other weights."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("teacher") / "model"
    shutil.copytree(tiny_model, folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def launch(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, teacher: Path, sums: Path
) -> Callable[..., Path]:
    """``launch("fsdp2")``: a folder with one run for each entry of RUNS."""
    kept: dict[str, Path] = {}
    extensions = tmp_path_factory.mktemp("extensions")
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TORCH_EXTENSIONS_DIR": str(extensions)}
    for variable, folders in (
        ("PYTHONPATH", [_DEEPSPEED]),
        ("PATH", [_DEEPSPEED / "bin", Path(sys.executable).parent]),
    ):
        env[variable] = os.pathsep.join([*map(str, folders), env.get(variable, "")])

    def run(config: str) -> Path:
        if config in kept:
            return kept[config]
        folder = tmp_path_factory.mktemp(config)
        words = []
        for name, (method, keys) in RUNS.items():
            taught = {"teacher_model_name_or_path": str(teacher)} if method == "distill" else {}
            still = training(learning_rate=0.0, max_steps=2, save_strategy="no", **keys, **taught)
            (folder / f"{name}.yaml").write_text(
                yaml.safe_dump(settings(folder, str(tiny_model), str(sums), name, **still))
            )
            words.append(f"{method}={folder / name}.yaml")
        command = [
            sys.executable,
            "-m",
            "accelerate.commands.launch",
            "--config_file",
            f"accelerate_configs/{config}.yaml",
        ]
        command += [
            "--num_processes",
            "2",
            "--main_process_port",
            "0",
            "-m",
            "tests.support.still",
            *words,
        ]
        # Beside DeepSpeed's own word for the CPU, Accelerate's would make it plain data
        # parallelism.
        on_cpu = {} if config.startswith("zero") else {"ACCELERATE_USE_CPU": "true"}
        done = subprocess.run(
            command, env=env | on_cpu, cwd=REPOSITORY, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stderr[-4000:]
        kept[config] = folder
        return folder

    return run


NEEDS_DEEPSPEED = pytest.mark.skipif(
    not _HAS_DEEPSPEED,
    reason="DeepSpeed: make test-processes installs it, and g++ compiles parts of it",
)


@pytest.mark.parametrize(
    "config",
    [
        "ddp",
        "fsdp2",
        pytest.param("zero2", marks=NEEDS_DEEPSPEED),
        pytest.param("zero3", marks=NEEDS_DEEPSPEED),
    ],
)
def test_reference_and_teacher_are_those_of_data_parallelism(
    launch: Callable[..., Path], config: str
) -> None:
    here, plain = launch(config), launch("ddp")
    assert [entry["kl"] for entry in metrics(here / "grpo")] == [0.0, 0.0]
    for name in ("sft", "distillation", "gold"):
        losses, expected = (
            [entry["loss"] for entry in metrics(folder / name)] for folder in (here, plain)
        )
        assert len(losses) == 2 and losses == pytest.approx(expected, rel=1e-5)
    assert metrics(here / "distillation")[0]["loss"] > 0.1  # the teacher is another model
