"""Two processes, as torchrun starts them, on the CPU: one run, each thing written once, and what
spans a batch sees all of it.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict

import pyarrow.parquet
import pytest
import yaml

from r1_recipes import grpo, sft
from tests.conftest import REPOSITORY, metrics, weights
from tests.support.two_processes import grpo_training, settings, training

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


def two(what, folder, model, data):
    words = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    words += ["tests.support.two_processes", what, str(folder), str(model), str(data)]
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def died(folder, tiny_model, sums):
    """What a GRPO run says whose reward raises on rank 1 in the fourth step."""
    process = two("dies", folder, tiny_model, sums)
    said = process.communicate(timeout=120)[1]
    assert process.returncode
    return said


@pytest.fixture(scope="module")
def runs(died, folder, tiny_model, sums):
    """What two processes leave that go on with that run, and then do the rest."""
    process = two("all", folder, tiny_model, sums)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 0, said[-4000:]
    return folder


def test_a_reward_that_raises_on_one_rank_stops_all_with_its_line_and_a_checkpoint(died, folder):
    lines = {line for line in died.splitlines() if line.startswith("error: ")}
    assert {line.split(":")[1] for line in lines} == {" rank 0", " rank 1"}
    said = (
        r"reward 'tokens' fails: ValueError: rank 1 has lost its disk \(\S+two_processes\.py:\d+\)"
    )
    assert all(re.search(said, line) for line in lines), lines
    assert (folder / "grpo" / "checkpoint-3" / "trainer_state.json").is_file()


def test_the_same_command_goes_on(runs):
    assert [entry["step"] for entry in metrics(runs / "grpo")] == [1, 2, 3, 4]
    one, other = metrics(runs / "grpo"), metrics(runs / "grpo_straight")
    assert [entry["loss"] for entry in one[:3]] == [entry["loss"] for entry in other[:3]]


def test_ctrl_c_stops_both_at_the_same_step_with_one_checkpoint(folder, tiny_model, sums):
    process, run = two("stops", folder, tiny_model, sums), folder / "stopped"
    try:
        deadline = time.monotonic() + 120
        while not ((run / "metrics.jsonl").exists() and len(metrics(run)) >= 3):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=90)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    step = len(metrics(run))
    assert step < 400 and [path.name for path in run.glob("checkpoint-*")] == [f"checkpoint-{step}"]
    # Both saved: each process has its random state in it.
    assert len(list((run / f"checkpoint-{step}").glob("rng_state_*.pth"))) == 2, said


def test_length_is_relative_to_the_whole_group_though_no_process_has_it(runs):
    steps = sorted((runs / "grpo_straight" / "completions").glob("*.parquet"))
    assert len(steps) == 4
    spread = 0
    for path in steps:
        groups = defaultdict(list)
        for row in pyarrow.parquet.read_table(path).to_pylist():
            groups[str(row["prompt"])].append(row)
        assert [len(group) for group in groups.values()] == [4]  # each completion once, of both
        for group in groups.values():
            lengths = [row["tokens"] for row in group]
            low, high = min(lengths), max(lengths)
            spread += high > low
            for row in group:
                # A random model is never right.
                part = (row["tokens"] - low) / (high - low) if high > low else 0.5
                assert row["length"] == pytest.approx(min(0.0, 0.5 - part))
    assert spread


def test_two_processes_are_one_with_the_same_batch(runs, tiny_model, sums):
    for method, main, keys in (("sft", sft.main, training()), ("grpo", grpo.main, grpo_training())):
        name = f"{method}_one"
        one = settings(runs, str(tiny_model), str(sums), name, **keys)
        one |= {"per_device_train_batch_size": 4}
        (runs / f"{name}.yaml").write_text(yaml.safe_dump(one))
        main([str(runs / f"{name}.yaml")])
    one, both = metrics(runs / "sft_one"), metrics(runs / "sft")
    # Equal but for the order in which floats are added up.
    assert [e["loss"] for e in both] == pytest.approx([e["loss"] for e in one], rel=1e-4)
    left, right = weights(runs / "sft_one"), weights(runs / "sft")
    assert all(left[name].sub(value).abs().max() < 1e-3 for name, value in right.items())

    def asked(run):
        tables = sorted((runs / run / "completions").glob("*.parquet"))
        return [
            sorted(str(row["prompt"]) for row in pyarrow.parquet.read_table(table).to_pylist())
            for table in tables
        ]

    assert asked("grpo_one") == asked("grpo_straight")
