"""The DeepSpeed files of accelerate_configs/ on two CPU processes: the run of one process, going on
from a checkpoint, generation.
"""

from __future__ import annotations

import importlib.util
import json
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

from r1_recipes import adapters, sft
from tests.conftest import REPOSITORY, log_lines, metrics, weights
from tests.core.training.test_faults import assert_same_run
from tests.support.two_processes import settings, training

# Where make test-processes puts it.
_FOLDER = Path(sys.prefix) / "deepspeed"
_HEADERS = Path(sysconfig.get_path("include")) / "Python.h"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not (_FOLDER.is_dir() or importlib.util.find_spec("deepspeed")),
        reason="DeepSpeed: make test-processes installs it",
    ),
    pytest.mark.skipif(
        not (shutil.which("g++") and _HEADERS.is_file()),
        reason="DeepSpeed compiles parts of itself: g++, Python.h",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deepspeed")


@pytest.fixture(scope="module")
def launch(folder: Path, tiny_model: Path, sums: Path) -> Callable[..., Path]:
    """``launch("zero2", "sft", "name", key=value, …)``: what accelerate makes of a recipe with that
    file, two processes, no GPU.
    """
    # DeepSpeed on the CPU; what it compiles is kept for the other runs, in a folder of their own: a
    # lock that a killed run leaves in the user's makes every later one wait for ever.
    env = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
    }
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    # ninja, which compiles, comes along.
    for variable, folders in (
        ("PYTHONPATH", [_FOLDER]),
        ("PATH", [_FOLDER / "bin", Path(sys.executable).parent]),
    ):
        env[variable] = os.pathsep.join([*map(str, folders), env.get(variable, "")])

    def run(config: str, method: str, name: str, **changes: Any) -> Path:
        recipe = folder / f"{name}.yaml"
        keys = settings(folder, str(tiny_model), str(sums), name, **training(**changes))
        recipe.write_text(yaml.safe_dump(keys), encoding="utf-8")
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
            f"r1_recipes.{method}",
            str(recipe),
        ]
        done = subprocess.run(
            command, env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert (
            json.loads((folder / name / "run.json").read_text(encoding="utf-8"))["hardware"][
                "processes"
            ]
            == 2
        )
        return folder / name

    return run


@pytest.fixture(scope="module")
def one_process(folder: Path, tiny_model: Path, sums: Path) -> Path:
    path = folder / "one.yaml"
    path.write_text(
        yaml.safe_dump(
            settings(
                folder, str(tiny_model), str(sums), "one", **training(per_device_train_batch_size=4)
            )
        )
    )
    sft.main([str(path)])
    return folder / "one"


# The optimizer in host memory is compiled first, which takes minutes.
OFFLOADED = [
    pytest.param(config, marks=pytest.mark.nightly) for config in ("zero2_offload", "zero3_offload")
]


@pytest.mark.parametrize("config", ["zero2", "zero3", *OFFLOADED])
def test_sft_is_the_run_of_one_process_with_the_same_batch(
    launch: Callable[..., Path], one_process: Path, config: str
) -> None:
    run = launch(config, "sft", config)
    # Its checkpoints hold a part of the optimizer for each process, so it was DeepSpeed that
    # trained.
    assert (
        len(list((run / "checkpoint-2" / "global_step2").glob("*zero_pp_rank_*optim_states.pt")))
        == 2
    )
    one, both = metrics(one_process), metrics(run)
    assert [entry["loss"] for entry in both] == pytest.approx(
        [entry["loss"] for entry in one], rel=1e-4
    )
    left, right = weights(one_process), weights(run)
    tied = right.pop("lm_head.weight", None)  # ZeRO-2 writes the tied output layer out
    assert tied is None or tied.equal(right["model.embed_tokens.weight"])
    assert left.keys() == right.keys()
    assert all(left[name].sub(value).abs().max() < 1e-3 for name, value in right.items())


def test_a_run_resumes_from_its_checkpoint(launch: Callable[..., Path], folder: Path) -> None:
    straight = folder / "zero3"
    if not straight.is_dir():
        straight = launch("zero3", "sft", "zero3")
    shutil.copytree(straight / "checkpoint-2", folder / "resumed" / "checkpoint-2")
    # As an interruption would leave it.
    for name in ("metrics.jsonl", "recipe.yaml"):
        shutil.copy(straight / name, folder / "resumed" / name)
    entry = json.loads((straight / "run.json").read_text(encoding="utf-8")) | {
        "recipe": "resumed",
        "finished": False,
    }
    (folder / "resumed" / "run.json").write_text(json.dumps(entry), encoding="utf-8")
    resumed = launch("zero3", "sft", "resumed")
    assert f"resuming from {resumed / 'checkpoint-2'}" in log_lines(resumed)
    assert_same_run(resumed, straight)


def test_adapters_are_merged_though_no_process_has_the_model(launch: Callable[..., Path]) -> None:
    lora = {
        "use_peft": True,
        "lora_r": 4,
        "lora_target_modules": ["all-linear"],
        "save_strategy": "no",
    }
    run = launch("zero3", "sft", "lora", max_steps=2, **lora)
    adapters.merge(run)
    assert (run / "merged" / "model.safetensors").is_file() and not (
        run / "merged" / "adapter_config.json"
    ).exists()


def test_grpo_generates_with_weights_that_no_process_has_whole(launch: Callable[..., Path]) -> None:
    rewards = {
        "reward_funcs": ["tests.conftest:letters"],
        "num_generations": 4,
        "max_completion_length": 8,
        "log_completions": True,
    }
    run = launch("zero3", "grpo", "grpo", max_steps=2, num_completions_to_print=0, **rewards)
    assert [entry["step"] for entry in metrics(run)] == [1, 2]
    assert any(entry["grad_norm"] > 0 for entry in metrics(run))


def test_the_remaining_steps_have_today_s_rate(launch: Callable[..., Path], folder: Path) -> None:
    straight = folder / "zero3"
    if not straight.is_dir():
        straight = launch("zero3", "sft", "zero3")
    shutil.copytree(straight, folder / "slower")
    shutil.rmtree(folder / "slower" / "checkpoint-4")
    entry = json.loads((straight / "run.json").read_text(encoding="utf-8")) | {
        "recipe": "slower",
        "finished": False,
    }
    (folder / "slower" / "run.json").write_text(json.dumps(entry), encoding="utf-8")
    new = {"learning_rate": 1e-3, "lr_scheduler_type": "linear"}
    slower, whole = (
        launch("zero3", "sft", "slower", **new),
        launch("zero3", "sft", "new_rate", **new),
    )
    rates = [[entry["learning_rate"] for entry in metrics(run)] for run in (slower, whole)]
    assert rates[0][2:] == rates[1][2:] and rates[0][:2] == [1e-2, 1e-2]
    # Adam's step is as long as its rate: so the rate is the optimizer's, not the log's alone.
    before = weights(straight / "checkpoint-2")
    moved = [
        max(value.sub(before[name]).abs().max() for name, value in weights(run).items())
        for run in (straight, slower)
    ]
    assert moved[1] < moved[0] / 5
