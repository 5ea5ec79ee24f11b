"""GRPO's flagship path, ``use_vllm: true`` in ``vllm_mode: colocate``: the engine samples from the
weights that are being trained.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import metrics
from tests.vllm.conftest import ON_CPU, RECIPE

DIFFERENCE = "sampling/sampling_logp_difference/mean"
STEPS = 3


@pytest.fixture
def train(
    run_python: Callable, small_model: Path, sums: Path, tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``train("reload")``: the shipped recipe, three steps of it, so fast that the policy is
    another one after each; or a variant.
    """

    def run(how: str, recipe: str = RECIPE, *more: str) -> subprocess.CompletedProcess[str]:
        changes = {
            "model_name_or_path": small_model,
            "dataset_name": sums,
            "output_dir": tmp_path / how,
            "max_steps": STEPS,
            "max_completion_length": 16,
            "gradient_accumulation_steps": 4,
            "learning_rate": 0.02,
            "lr_scheduler_type": "constant",
            "warmup_steps": 0,
        }
        words = [word for key, value in changes.items() for word in (f"--{key}", str(value))]
        # The recipe's rewards are 0 for a random model; one that varies makes it learn something.
        rewards = [
            "--reward_funcs",
            "accuracy",
            "format",
            "tag_count",
            "tests.conftest:letters",
            "--reward_weights",
            "1",
            "0.5",
            "0.5",
            "1",
        ]
        given = more or rewards
        return run_python("-m", "tests.vllm.colocated", how, recipe, *ON_CPU, *words, *given)

    return run


@pytest.mark.parametrize(
    "recipe", [RECIPE, RECIPE.replace(".yaml", "_lora.yaml")], ids=["whole", "lora"]
)
def test_the_engine_follows_the_model_that_is_trained(
    train: Callable, tmp_path: Path, recipe: str
) -> None:
    """LoRA's adapters reach it added to the weights."""
    train("reload", recipe)
    train("none", recipe)
    synced, stale = (
        [entry[DIFFERENCE] for entry in metrics(tmp_path / how)] for how in ("reload", "none")
    )
    assert len(synced) == len(stale) == STEPS
    # Both compute in fp32; no two kernels add floats up in the same order.
    assert max(synced) < 1e-3, synced
    # Before the first step both have the checkpoint's weights; after it, only those that are handed
    # over are the trainer's.
    assert stale[0] < 1e-3 and min(stale[1:]) > 0.1, (synced, stale)
    assert all(
        "rewards/accuracy/mean" in entry and "rewards/letters/mean" in entry
        for entry in metrics(tmp_path / "reload")
    )


def test_rounds_of_dynamic_sampling_use_the_engine(train: Callable, tmp_path: Path) -> None:
    rewards = ["--reward_funcs", "tests.support.flat_groups:spread", "--reward_weights", "1"]
    train("reload", RECIPE, *rewards, "--dynamic_sampling", "{max_rounds: 3}")
    found = metrics(tmp_path / "reload")
    assert len(found) == STEPS and max(entry[DIFFERENCE] for entry in found) < 1e-3
    assert max(entry["sampling/rounds"] for entry in found) > 1
    for entry in found:
        assert entry["sampling/rounds"] == 3 or entry["frac_reward_zero_std"] == 0


def test_episodes_train_with_the_engine(run_python: Callable, caller: Path, tmp_path: Path) -> None:
    changes = {
        "model_name_or_path": caller,
        "dataset_name": "environment:tests.support.callers:Game",
        "mapper": "environment",
        "environment": "tests.support.callers:Game",
        "task_config": "{train: {size: 16, seed: 0}, test: {size: 4, seed: 1}}",
        "output_dir": tmp_path / "run",
        "max_steps": STEPS,
        "max_completion_length": 96,
        "max_tool_calling_iterations": 3,
        "gradient_accumulation_steps": 4,
    }
    words = [word for key, value in changes.items() for word in (f"--{key}", str(value))]
    settings = yaml.safe_load(Path(RECIPE).read_text(encoding="utf-8"))
    own = tmp_path / "game.yaml"  # the game pays, and no other reward
    own.write_text(
        yaml.safe_dump(
            {
                key: value
                for key, value in settings.items()
                if key not in ("reward_funcs", "reward_weights")
            }
        )
    )
    run_python("-m", "tests.vllm.colocated", "reload", str(own), *ON_CPU, *words)
    found = metrics(tmp_path / "run")
    assert len(found) == STEPS and max(entry[DIFFERENCE] for entry in found) < 1e-3
    assert all(
        entry["tools/call_frequency"] > 0 and entry["tools/failure_frequency"] == 0
        for entry in found
    )
