"""Two processes on one host under each accelerate config that CPUs can run: a second, frozen model
has the weights of its file.

With learning rate 0 nothing moves. So the KL divergence from the reference is 0, and a teacher's
loss is that of plain data parallelism.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import metrics
from tests.support.commands import NEEDS_DEEPSPEED, launch
from tests.support.two_processes import settings, training

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

_SAMPLED = {"max_completion_length": 8}
_REWARDED = {**_SAMPLED, "reward_funcs": ["tests.conftest:letters"], "num_generations": 4}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {**_REWARDED, "beta": 0.04}),
    "sft": ("sft", {}),
    "distillation": ("distill", {**_SAMPLED, "temperature": 1.0}),
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
def still(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, teacher: Path, sums: Path
) -> Callable[..., Path]:
    """``still("fsdp2")``: a folder with one run for each entry of RUNS."""
    extensions = tmp_path_factory.mktemp("extensions")

    @functools.cache
    def run(config: str) -> Path:
        folder = tmp_path_factory.mktemp(config)
        # Accelerate's default for FSDP 2; the model is saved all the same.
        sharded = ["--fsdp_state_dict_type", "SHARDED_STATE_DICT"] * (config == "fsdp2")
        words = [*sharded, "-m", "tests.support.still"]
        for name, (method, keys) in RUNS.items():
            taught = {"teacher_model_name_or_path": str(teacher)} if method == "distill" else {}
            still = training(learning_rate=0.0, max_steps=2, save_strategy="no", **keys, **taught)
            (folder / f"{name}.yaml").write_text(
                yaml.safe_dump(settings(folder, str(tiny_model), str(sums), name, **still))
            )
            words.append(f"{method}={folder / name}.yaml")
        launch(config, *words, extensions=extensions)
        return folder

    return run


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
    still: Callable[..., Path], config: str
) -> None:
    here, plain = still(config), still("ddp")
    assert [entry["kl"] for entry in metrics(here / "grpo")] == [0.0, 0.0]
    for name in ("sft", "distillation"):
        losses, expected = (
            [entry["loss"] for entry in metrics(folder / name)] for folder in (here, plain)
        )
        assert (here / name / "model.safetensors").stat().st_size > 100_000
        assert len(losses) == 2 and losses == pytest.approx(expected, rel=1e-5)
    assert metrics(here / "distillation")[0]["loss"] > 0.1  # the teacher is another model
