"""Groups without spread are replaced by those of further prompts, in every round the same after a
stop.
"""

from __future__ import annotations

import os
import re
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
from tests.support.callers import Game
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
        assert line["time/rewards"] >= flat_groups.SECONDS * line["sampling/rounds"]


def test_without_the_key_nothing_is_replaced(write, tmp_path: Path) -> None:
    ROUNDS.clear()
    grpo.main([write(dynamic_sampling=None)])
    assert len(ROUNDS) == 6
    assert not any("sampling/rounds" in line for line in metrics(tmp_path / "run"))


class Told(Game):
    """A game whose question has the number."""

    def reset(self, number: int, seed: int = 0, **row: Any) -> str:
        super().reset(number, seed)
        return f" It is {number}."


def test_episodes_stay_with_their_prompts(write_recipe, caller: Path, tmp_path: Path) -> None:
    """Rewards are those of the games, evaluation is sampled once."""
    keys = {
        "dataset_name": f"environment:{__name__}:Told",
        "task_config": {"train": {"size": 20, "seed": 0}, "test": {"size": 2, "seed": 1}},
        "dataset_test_split": "test",
        "eval_strategy": "steps",
        "eval_steps": 1,
        "model_name_or_path": str(caller),
        "mapper": "environment",
        "environment": f"{__name__}:Told",
        "reward_funcs": None,
        "dynamic_sampling": {"max_rounds": LIMIT},
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 4,
        "max_completion_length": 40,
        "log_completions": True,
        "max_steps": 3,
    }
    grpo.main([write_recipe("grpo", **keys)])
    assert max(line["sampling/rounds"] for line in metrics(tmp_path / "run")) > 1
    played = 0
    for table in tables(tmp_path / "run"):
        for row in table.to_dict("records"):
            number = int(row["prompt"][-1]["content"].removeprefix("Find it. It is ")[:-1])
            guesses = re.findall(r"number=(\d)\n\n\[tool guess\]\n(\w+)", row["turns"])
            played += len(guesses) > 0
            for guess, hint in guesses:
                side = "higher" if int(guess) < number else "lower"
                assert hint == ("Right" if int(guess) == number else side)
            assert row["Told"] == float(guesses[-1:] == [(str(number), "Right")])
    assert played > 9


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


@pytest.mark.parametrize(
    ("rewards", "weights", "by", "expected"),
    [
        ([[0.0], [0.0], [0.0], [1.0]], [1.0], None, [False, True]),
        ([[NAN], [NAN], [NAN], [1.0]], [1.0], None, [False, False]),
        # Rewards that differ and cancel out.
        ([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0]], [1, 1], None, [False, True]),
        ([[0.1, 0.2], [0.2, 0.1], [0.3, 0.0], [0.0, 0.3]], [1, 1], None, [False, False]),
        # A reward of weight 0 is only watched.
        ([[0, 1.0], [0, 0], [0, 0], [1, 0]], [1, 0], None, [False, True]),
        # DAPO's own: right and wrong, whatever the lengths' punishment says.
        ([[0, -1.0], [0, 0], [0, 0], [1, 0]], [1, 1], 0, [False, True]),
    ],
)
def test_spread_is_what_advantages_are_made_of(rewards, weights, by, expected) -> None:
    trainer = DynamicSamplingTrainer.__new__(DynamicSamplingTrainer)
    trainer.reward_weights = torch.tensor(weights, dtype=torch.float)
    trainer._filtered_by, trainer.num_generations = by, 2
    assert trainer._have_spread(torch.tensor(rewards)).tolist() == expected
