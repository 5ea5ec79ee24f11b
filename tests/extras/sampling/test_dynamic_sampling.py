"""Groups without spread are replaced by those of further prompts, in every round the same after a
stop.
"""

from __future__ import annotations

import functools
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import pytest

pytest.importorskip("trl")

import torch

from r1_recipes import grpo
from r1_recipes.common.errors import StoppedTogether
from r1_recipes.extras.sampling.dynamic import (
    DynamicSamplingGRPOTrainer,
    PromptOrder,
    PromptOrderSampler,
    _over_rounds,
)
from tests.conftest import metrics
from tests.core.training.test_faults import GAME, assert_same_run
from tests.support import flat_groups
from tests.support.commands import succeed

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
    # Rows come in one order, which no round breaks: each row once before any comes again.
    order = [asked for _, questions in ROUNDS for asked in questions[::4]]
    by_batch = [questions[::4] for _, questions in ROUNDS]
    assert all(len(set(questions)) == 8 // 4 or len(questions) == 4 for _, questions in ROUNDS)
    assert len(order) > 12 and sorted(set(order[:25])) == sorted(set(order))[: len(set(order[:25]))]
    rounds = [line["sampling/rounds"] for line in metrics(run)]
    assert len(by_batch) == sum(rounds) and max(rounds) == LIMIT
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
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"]
    command += ["--config_file", "accelerate_configs/ddp.yaml", "--mixed_precision", "no"]
    command += ["--main_process_port", "0", "-m", "r1_recipes.grpo"]
    on_cpu = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **on_cpu, "HF_HUB_OFFLINE": "1"}
    whole, run = tmp_path / "whole", tmp_path / "run"
    keys = {"per_device_train_batch_size": per_device, "max_steps": 4}
    path = write(**keys)
    succeed([*command, path, "--output_dir", str(whole)], environment)
    check_tables(whole, per_device * 2 // 4, 4)
    assert max(line["sampling/rounds"] for line in metrics(whole)) > 1
    # A run of two steps that is continued draws the same rows.
    succeed([*command, path, "--max_steps", "2"], environment)
    succeed([*command, path], environment)
    assert_same_run(run, whole)


@pytest.mark.e2e
def test_episodes_are_chosen_with_their_tools(write_recipe, caller, tmp_path: Path) -> None:
    path = write_recipe(
        "grpo",
        **GAME
        | {
            "model_name_or_path": str(caller),
            "dynamic_sampling": {"max_rounds": LIMIT},
            "max_steps": 3,
            "learning_rate": 1e-4,
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "log_completions": True,
        },
    )
    grpo.main([path])
    run = tmp_path / "run"
    for table, line in zip(tables(run), metrics(run), strict=True):
        assert len(table) == 8 and table["turns"].str.contains("call guess").any()
        assert line["sampling/rounds"] > 1 or line["frac_reward_zero_std"] == 0


def test_a_step_that_fails_in_a_later_round_is_repeated_with_the_same_rows(
    write: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = write(save_steps=100)  # the failure saves the last whole step
    fails = write(name="fails", save_steps=100, output_dir=str(tmp_path / "fails"))
    grpo.main([straight])
    rounds = [int(line["sampling/rounds"]) for line in metrics(tmp_path / "run")]
    step = next(i for i, count in enumerate(rounds) if i > 1 and count > 1)
    calls, reward = iter(range(10**6)), flat_groups.spread

    @functools.wraps(reward)
    def once(completions: list, trainer_state: Any, **columns: Any) -> list[float]:
        # Not in the try before training.
        if trainer_state.train_batch_size and next(calls) == sum(rounds[:step]) + 1:
            raise ValueError("the server is gone")
        return reward(completions, trainer_state=trainer_state, **columns)

    monkeypatch.setattr(flat_groups, "spread", once)
    with pytest.raises(SystemExit):
        grpo.main([fails])
    assert len(metrics(tmp_path / "fails")) == step
    grpo.main([fails])
    assert_same_run(tmp_path / "fails", tmp_path / "run")


# The parts


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_order_goes_through_all_rows_before_any_comes_again(shuffle: bool) -> None:
    taken = {"starts": [], "next": 0}
    order = PromptOrder(7, shuffle, 3, taken)
    first = order.batch(0, 4)
    ahead = order.batch(1, 4)  # the data loader is one batch ahead
    further = order.take(3)
    assert sorted((first + ahead + further)[:7]) == list(range(7))
    assert (first == [0, 1, 2, 3]) is not shuffle
    later = order.batch(2, 4)
    # A resumed run asks for its batches again, and goes on from the same place.
    again = PromptOrder(7, shuffle, 3, {"starts": [0, 4], "next": 8})
    assert again.batch(0, 4) == first and again.batch(1, 4) == ahead
    assert again.take(3) == further and again.batch(2, 4) == later
    if shuffle:
        passes = [PromptOrder(7, True, seed, {"starts": [], "next": 0}).take(14) for seed in (3, 4)]
        assert passes[0][:7] != passes[0][7:] and passes[0] != passes[1]


def test_the_sampler_repeats_as_that_of_trl() -> None:
    from trl.trainer.utils import RepeatSampler

    base = RepeatSampler(range(10), mini_repeat_count=2, batch_size=3, repeat_count=2, seed=1)
    taken = {"starts": [], "next": 0}
    trainer = SimpleNamespace(
        state=SimpleNamespace(epoch=None), order=PromptOrder(10, False, 1, taken)
    )
    drawn = list(PromptOrderSampler(base, trainer))
    assert len(drawn) == len(base) == len(list(base))
    assert drawn[:12] == [0, 0, 1, 1, 2, 2] * 2
    trainer.state.epoch = 1.0
    assert list(PromptOrderSampler(base, trainer))[:6] == [9, 9, 0, 0, 1, 1]


NAN = float("nan")


@pytest.mark.parametrize(
    ("rewards", "weights", "aggregation", "by", "expected"),
    [
        ([[0.0], [0.0], [0.0], [1.0]], [1.0], "sum_then_normalize", None, [False, True]),
        ([[NAN], [NAN], [NAN], [1.0]], [1.0], "sum_then_normalize", None, [False, False]),
        # Rewards that differ and cancel out give no advantage.
        ([[1.0, 0.0], [0.0, 1.0]] * 2, [1, 1], "sum_then_normalize", None, [False, False]),
        ([[1.0, 0.0], [0.0, 1.0]] * 2, [1, 1], "normalize_then_sum", None, [True, True]),
        ([[0.1, 0.2], [0.3, 0.0]] * 2, [1, 1], "sum_then_normalize", None, [False, False]),
        # A reward of weight 0 is only watched.
        (
            [[0.0, 1.0], [0.0, 0.0], [0.0, 0], [1.0, 0]],
            [1, 0],
            "normalize_then_sum",
            None,
            [False, True],
        ),
        # DAPO's own: right and wrong, whatever the lengths' punishment says.
        (
            [[0.0, -1.0], [0.0, 0.0], [0.0, 0], [1.0, 0]],
            [1, 1],
            "sum_then_normalize",
            0,
            [False, True],
        ),
    ],
)
def test_spread_is_what_advantages_are_made_of(rewards, weights, aggregation, by, expected) -> None:
    trainer = DynamicSamplingGRPOTrainer.__new__(DynamicSamplingGRPOTrainer)
    trainer.reward_weights = torch.tensor(weights, dtype=torch.float)
    trainer.multi_objective_aggregation, trainer._filtered_by = aggregation, by
    trainer.num_generations = 2
    assert trainer._groups_with_spread(torch.tensor(rewards)).tolist() == expected


def test_a_round_without_a_verdict_is_no_batch_without_one() -> None:
    """Late rounds are a prompt or two, and some prompts have reference answers that nobody reads."""
    trainer = DynamicSamplingGRPOTrainer.__new__(DynamicSamplingGRPOTrainer)
    trainer.model = SimpleNamespace(training=True)
    trainer.state, trainer.reward_func_names = SimpleNamespace(max_steps=9), ["own"]
    trainer._failed, trainer._unjudged = [], 0
    nothing = torch.full((4, 1), math.nan)
    trainer._in_round = True
    for _ in range(9):
        trainer.check_rewards(nothing)
    trainer._in_round = False
    trainer.check_rewards(torch.zeros(4, 1))
    for _ in range(2):
        trainer.check_rewards(nothing)
    with pytest.raises(StoppedTogether):
        trainer.check_rewards(nothing)


def test_metrics_of_completions_count_each_completion_once() -> None:
    assert _over_rounds("completions/mean_length", [1000.0, 8000.0], [256, 8]) == pytest.approx(
        (256 * 1000 + 8 * 8000) / 264
    )
    assert _over_rounds("completions/min_length", [3.0, 2.0], [4, 4]) == 2.0
    assert _over_rounds("completions/max_terminated_length", [3.0, 2.0], [4, 4]) == 3.0
