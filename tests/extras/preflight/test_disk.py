"""Checkpoints and the space for them, and the findings about vLLM's engine and bf16."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.preflight import disk, memory
from r1_recipes.extras.preflight.findings import Report
from r1_recipes.models import engine
from r1_recipes.recipe.engine import GIB
from r1_recipes.training import start
from tests.extras.preflight.test_memory import SHAPE
from tests.extras.preflight.test_preflight import check, found, recipe  # noqa: F401  a fixture


def settings(folder: Path, *, use_peft: bool = False, **changes: Any) -> Any:
    training = {
        "optim": "adamw_torch", "bf16": True, "fp16": False, "save_strategy": "steps", "save_steps": 10, "save_total_limit": 2,
        "save_only_model": False, "num_train_epochs": 3, "use_cpu": True, "output_dir": str(folder),
    }  # fmt: skip
    return SimpleNamespace(
        training=SimpleNamespace(**{**training, **changes}),
        model=SimpleNamespace(use_peft=use_peft),
    )


# Of 1,000 parameters in fp32, all trained.
@pytest.mark.parametrize(
    "shards, keys, expected",
    [
        (1, {}, (4000, 12000)),
        (1, {"optim": "paged_adamw_32bit"}, (4000, 12000)),  # what is in host memory is saved, too
        (1, {"optim": "adamw_bnb_8bit"}, (4000, 6000)),
        (1, {"save_only_model": True}, (4000, 4000)),
        (1, {"teacher_model_kind": "ema"}, (4000, 16000)),
        (8, {}, (2000, 14000)),  # bf16 weights, fp32 copy and two moments, over all processes
    ],
)
def test_what_a_checkpoint_takes(
    tmp_path: Path, shards: int, keys: dict, expected: tuple[int, int]
) -> None:
    assert disk.checkpoint_bytes(settings(tmp_path, **keys), SHAPE, shards) == expected


@pytest.mark.parametrize(
    "keys, count",
    [
        ({}, 3),  # an old one goes when the new one has been written
        ({"save_total_limit": None}, 10),
        ({"save_steps": 60}, 2),
        ({"save_steps": 0.5, "save_total_limit": None}, 2),
        ({"save_strategy": "epoch", "save_total_limit": None}, 3),
        ({"save_strategy": "no"}, 0),
    ],
)
def test_how_many_lie_there_at_once(tmp_path: Path, keys: dict, count: int) -> None:
    assert disk.checkpoints_at_once(settings(tmp_path, **keys).training, 100) == count


@pytest.mark.parametrize("here, level", [(True, "error"), (False, "warning")])
def test_too_little_space_is_said_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool, level: str
) -> None:
    monkeypatch.setattr(disk, "device_memory", lambda _: 1 if here else None)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: SimpleNamespace(free=40_000)
    )  # 3 x 12,000 + 4,000
    report = Report()
    run = tmp_path / "new" / "run"
    disk.check_disk(report, settings(run), SHAPE, 100, 1)
    assert "fit.disk" in found(report, "ok")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=39_999))
    disk.check_disk(report, settings(run), SHAPE, 100, 1)
    assert "save_total_limit" in found(report, level)["fit.disk"]
    # Two that are there already need no more space.
    for step in (10, 20):
        (run / f"checkpoint-{step}").mkdir(parents=True)
    report = Report()
    disk.check_disk(report, settings(run), SHAPE, 100, 1)
    assert "fit.disk" in found(report, "ok")


def test_preflight_looks_at_the_disk(recipe: Any) -> None:  # noqa: F811
    assert "fit.disk" in found(check(recipe()), "ok")


def test_preflight_refuses_an_engine_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_length": 612,
        "max_completion_length": 512,
    }
    training |= {"vllm_tensor_parallel_size": 1, "vllm_gpu_memory_utilization": 0.3}
    asked = SimpleNamespace(
        training=SimpleNamespace(**training), script=SimpleNamespace(max_prompt_tokens=100), reward_params={}, environment_params={},
        model=SimpleNamespace(),
    )  # fmt: skip
    monkeypatch.setattr(engine, "gpu_memory", lambda: 24 * GIB)
    report = Report()
    memory.check_engine(report, asked, SHAPE, pictures=False)
    assert "612" in found(report, "ok")["fit.engine"]
    for gigabytes, level in ((6, "warning"), (2, "error")):  # of which the engine has 1.8 and 0.6
        monkeypatch.setattr(engine, "gpu_memory", lambda total=gigabytes * GIB: total)
        memory.check_engine(report, asked, SHAPE, pictures=False)
        assert "612" in found(report, level)["fit.engine"]


def test_preflight_refuses_bf16_where_there_is_none(
    recipe: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(recipe: Any) -> None:
        raise RecipeError("no bf16")

    monkeypatch.setattr(start, "check_precision", refuse)
    assert found(check(recipe()), "error")["fit.precision"] == "no bf16"
