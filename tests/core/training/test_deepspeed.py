"""The DeepSpeed files of accelerate_configs/ on two CPU processes: the run of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from r1_recipes import sft
from tests.conftest import metrics, weights
from tests.support.commands import NEEDS_DEEPSPEED, launch
from tests.support.two_processes import settings, training

pytestmark = [pytest.mark.e2e, NEEDS_DEEPSPEED]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deepspeed")


@pytest.fixture(scope="module")
def trained(folder: Path, tiny_model: Path, sums: Path) -> Callable[..., Path]:
    """``trained("zero2", "sft", "name", key=value, …)``: the run of a recipe with that file."""

    def run(config: str, method: str, name: str, **changes: Any) -> Path:
        recipe = folder / f"{name}.yaml"
        keys = settings(folder, str(tiny_model), str(sums), name, **training(**changes))
        recipe.write_text(yaml.safe_dump(keys), encoding="utf-8")
        words = ["-m", f"r1_recipes.{method}", str(recipe)]
        launch(config, *words, extensions=folder / "extensions")
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
OFFLOADED = [pytest.param(config, marks=pytest.mark.nightly) for config in ("zero3_offload",)]


@pytest.mark.parametrize("config", ["zero2", "zero3", *OFFLOADED])
def test_sft_is_the_run_of_one_process_with_the_same_batch(
    trained: Callable[..., Path], one_process: Path, config: str
) -> None:
    run = trained(config, "sft", config)
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


def test_grpo_generates_with_weights_that_no_process_has_whole(
    trained: Callable[..., Path],
) -> None:
    rewards = {
        "reward_funcs": ["tests.conftest:letters"],
        "num_generations": 4,
        "max_completion_length": 8,
        "log_completions": True,
    }
    run = trained("zero3", "grpo", "grpo", max_steps=2, num_completions_to_print=0, **rewards)
    assert [entry["step"] for entry in metrics(run)] == [1, 2]
    assert any(entry["grad_norm"] > 0 for entry in metrics(run))
