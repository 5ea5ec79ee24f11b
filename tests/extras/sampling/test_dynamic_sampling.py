"""Groups without spread are replaced by those of further prompts, in every round the same after a
stop.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

pytest.importorskip("trl")

import torch

from r1_recipes import grpo
from r1_recipes.extras.dynamic_sampling import DynamicSamplingTrainer
from tests.conftest import metrics
from tests.support import flat_groups
from tests.support.commands import launch
from tests.support.same_run import assert_same_run

pytestmark = pytest.mark.slow

ROUNDS, LIMIT = flat_groups.ROUNDS, 3


@pytest.fixture
def write(write_recipe: Callable[..., str], tmp_path: Path) -> Callable[..., str]:
    """A recipe of two groups of four per step, two thirds of whose rows have no spread."""
    keys: dict[str, Any] = {
        "dataset_name": flat_groups.write_rows(tmp_path / "rows.jsonl", 25),
        "reward_funcs": ["tests.support.flat_groups:spread"],
        "dynamic_sampling": {"max_rounds": LIMIT},
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "log_completions": True,
        "max_steps": 6,
        "save_steps": 1,
    }
    return lambda **changes: write_recipe("grpo", **{**keys, **changes})


def tables(run: Path) -> list[pandas.DataFrame]:
    return [pandas.read_parquet(path) for path in sorted((run / "completions").glob("*.parquet"))]


def check_tables(run: Path, groups: int, steps: int) -> None:
    """Every row has its own prompt, completion and reward; full batches have spread throughout."""
    assert len(tables(run)) == steps
    for table, line in zip(tables(run), metrics(run), strict=True):
        assert len(table) == groups * 4
        flat = 0
        for start in range(0, len(table), 4):
            group = table.iloc[start : start + 4]
            (asked,) = set(group["asked"])
            assert all(prompt[-1]["content"] == f"{asked}?" for prompt in group["prompt"])
            texts = [completion[-1]["content"] for completion in group["completion"]]
            expected = [flat_groups.letters(text) for text in texts]
            if flat_groups.is_flat(asked):
                flat, expected = flat + 1, [0.25] * 4
            assert group["spread"].tolist() == pytest.approx(expected)
        # A batch that is not full has had all its rounds.
        assert flat == 0 or line["sampling/rounds"] == LIMIT
        assert line["frac_reward_zero_std"] == flat / groups


def test_a_batch_is_full_or_has_had_its_rounds(write, tmp_path: Path) -> None:
    ROUNDS.clear()
    grpo.main([write()])
    run = tmp_path / "run"
    check_tables(run, 2, 6)
    rounds = [line["sampling/rounds"] for line in metrics(run)]
    assert len(ROUNDS) == sum(rounds) and max(rounds) == LIMIT
    for step, line in enumerate(metrics(run)):
        asked = [one for at, questions in ROUNDS if at == step for one in questions[::4]]
        flat = sum(map(flat_groups.is_flat, asked))
        assert line["sampling/filtered"] == pytest.approx(flat / len(asked))


def test_without_the_key_nothing_is_replaced(write, tmp_path: Path) -> None:
    ROUNDS.clear()
    grpo.main([write(dynamic_sampling=None)])
    assert len(ROUNDS) == 6
    assert not any("sampling/rounds" in line for line in metrics(tmp_path / "run"))


@pytest.mark.e2e
def test_killed_in_each_round_it_ends_as_if_it_never_was(write, tmp_path: Path) -> None:
    ROUNDS.clear()
    grpo.main([write(output_dir=str(tmp_path / "whole"))])
    steps = [step for step, _ in ROUNDS]
    # A step after the first that needs all rounds: killed in the first, the second, the third.
    step = next(step for step in steps if step and steps.count(step) == LIMIT)
    path, environment = write(), {**os.environ, "HF_HUB_OFFLINE": "1"}
    for call in range(LIMIT):
        calls = steps.index(step) + call + 1
        killed = subprocess.run(
            [sys.executable, "-m", "r1_recipes.grpo", path],
            env={**environment, "R1_TEST_KILL": str(calls)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert killed.returncode == -9, killed.stderr
        assert len(metrics(tmp_path / "run")) == step
        grpo.main([path])
        assert_same_run(tmp_path / "run", tmp_path / "whole")
        shutil.rmtree(tmp_path / "run")


@pytest.mark.e2e
@pytest.mark.parametrize("per_device", [4, 2], ids=["whole-groups", "groups-across-ranks"])
def test_two_processes_agree(write, tmp_path: Path, per_device: int) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    keys = {"per_device_train_batch_size": per_device, "max_steps": 4}
    command = ["ddp", "--mixed_precision", "no", "-m", "r1_recipes.grpo", write(**keys)]
    launch(*command, "--output_dir", str(whole))
    check_tables(whole, per_device * 2 // 4, 4)
    assert max(line["sampling/rounds"] for line in metrics(whole)) > 1
    # A run of two steps that is continued draws the same rows.
    launch(*command, "--max_steps", "2")
    launch(*command)
    assert_same_run(run, whole)


# The parts


NAN = float("nan")
SUM, NORMALIZED = "sum_then_normalize", "normalize_then_sum"
CROSSED = [[1.0, 0.0], [0.0, 1.0]] * 2  # rewards that differ and cancel out


@pytest.mark.parametrize(
    ("rewards", "weights", "aggregation", "by", "expected"),
    [
        ([[0.0], [0.0], [0.0], [1.0]], [1.0], SUM, None, [False, True]),
        ([[NAN], [NAN], [NAN], [1.0]], [1.0], SUM, None, [False, False]),
        (CROSSED, [1, 1], SUM, None, [False, False]),
        (CROSSED, [1, 1], NORMALIZED, None, [True, True]),
        # A reward of weight 0 is only watched.
        ([[0, 1.0], [0, 0], [0, 0], [1, 0]], [1, 0], NORMALIZED, None, [False, True]),
        # DAPO's own: right and wrong, whatever the lengths' punishment says.
        ([[0, -1.0], [0, 0], [0, 0], [1, 0]], [1, 1], SUM, 0, [False, True]),
    ],
)
def test_spread_is_what_advantages_are_made_of(rewards, weights, aggregation, by, expected) -> None:
    trainer = DynamicSamplingTrainer.__new__(DynamicSamplingTrainer)
    trainer.reward_weights = torch.tensor(weights, dtype=torch.float)
    trainer.multi_objective_aggregation, trainer._filtered_by = aggregation, by
    trainer.num_generations = 2
    assert trainer._groups_with_spread(torch.tensor(rewards)).tolist() == expected
