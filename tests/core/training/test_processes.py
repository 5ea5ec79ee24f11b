"""Two processes, as torchrun starts them, on the CPU: one run, each thing written once, and what
spans a batch sees all of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet
import pytest
import yaml

from r1_recipes import grpo, sft
from r1_recipes.runs import checkpoints
from tests.conftest import REPOSITORY, SUMS, log_lines, metrics, weights
from tests.core.training.test_faults import assert_same_run
from tests.support.two_processes import grpo_training, settings, training

pytestmark = pytest.mark.slow


def two(what: str, folder: Path, model: Path, data: Path) -> subprocess.CompletedProcess:
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "tests.support.two_processes",
    ]
    return subprocess.run(
        [*launcher, what, str(folder), str(model), str(data)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def died(folder: Path, tiny_model: Path, sums: Path) -> tuple[subprocess.CompletedProcess, float]:
    """A GRPO run whose rank 1 fails in the fourth step, and how long it took (seconds)."""
    began = time.monotonic()
    return two("dies", folder, tiny_model, sums), time.monotonic() - began


@pytest.fixture(scope="module")
def runs(died: object, folder: Path, tiny_model: Path, sums: Path) -> Path:
    """What two processes leave that go on with that run and then do the rest, one after the other:
    starting them takes most of the time.
    """
    done = two("all", folder, tiny_model, sums)
    assert done.returncode == 0, done.stderr[-4000:]
    (folder / "all.out").write_text(done.stdout, encoding="utf-8")
    return folder


@pytest.mark.e2e
def test_a_dead_rank_ends_the_run_with_its_own_error(
    died: tuple[subprocess.CompletedProcess, float],
) -> None:
    done, seconds = died
    assert done.returncode != 0
    assert (
        "reward 'tests.support.two_processes:tokens' fails: ValueError: rank 1 has lost its disk"
        in done.stderr
    )
    assert (
        "during handling" not in done.stderr.lower() and "the run failed" not in done.stderr
    )  # launcher's traceback alone
    assert seconds < 60


@pytest.mark.e2e
def test_length_is_relative_to_the_whole_group_though_no_process_has_it(runs: Path) -> None:
    steps = sorted((runs / "grpo_straight" / "completions").glob("*.parquet"))
    assert len(steps) == 4
    spread = 0
    for path in steps:
        rows = pyarrow.parquet.read_table(path).to_pylist()
        groups = defaultdict(list)
        for row in rows:
            groups[str(row["prompt"])].append(row)
        assert [len(group) for group in groups.values()] == [
            4
        ]  # each completion once, of both processes
        for group in groups.values():
            lengths = [row["tokens"] for row in group]
            low, high = min(lengths), max(lengths)
            spread += high > low
            for row in group:
                # A random model is never right: min(0, 0.5 - (tokens - shortest) / (longest -
                # shortest)).
                assert row["length"] == pytest.approx(
                    min(0.0, 0.5 - (row["tokens"] - low) / (high - low)) if high > low else 0.0
                )
    assert spread


@pytest.mark.e2e
def test_sft_in_two_processes_is_the_run_of_one_with_the_same_batch(
    runs: Path, tiny_model: Path, sums: Path
) -> None:
    path = runs / "sft_one.yaml"
    path.write_text(
        yaml.safe_dump(
            settings(
                runs,
                str(tiny_model),
                str(sums),
                "sft_one",
                **training(per_device_train_batch_size=4),
            )
        )
    )
    sft.main([str(path)])
    one, both = metrics(runs / "sft_one"), metrics(runs / "sft")
    # The same rows in each step, in two parts: equal but for the order in which floats are added
    # up.
    assert [entry["loss"] for entry in both] == pytest.approx(
        [entry["loss"] for entry in one], rel=1e-4
    )
    assert [entry["num_tokens"] for entry in both] == [entry["num_tokens"] for entry in one]
    left, right = weights(runs / "sft_one"), weights(runs / "sft")
    assert all(left[name].sub(value).abs().max() < 1e-3 for name, value in right.items())


@pytest.mark.e2e
def test_grpo_in_two_processes_asks_what_one_would_in_the_same_order(
    runs: Path, tiny_model: Path, sums: Path
) -> None:
    path = runs / "grpo_one.yaml"
    changes = {**grpo_training(), "per_device_train_batch_size": 4}
    path.write_text(
        yaml.safe_dump(settings(runs, str(tiny_model), str(sums), "grpo_one", **changes))
    )
    grpo.main([str(path)])

    def asked(run: str) -> list[list[str]]:
        """Each step's prompts."""
        tables = sorted((runs / run / "completions").glob("*.parquet"))
        return [
            sorted(str(row["prompt"]) for row in pyarrow.parquet.read_table(table).to_pylist())
            for table in tables
        ]

    one, both = asked("grpo_one"), asked("grpo_straight")
    assert one == both and len({prompts[0] for prompts in one}) == 4


@pytest.mark.e2e
def test_two_processes_resume(runs: Path) -> None:
    assert f"resuming from {runs / 'sft_resumed' / 'checkpoint-2'}" in log_lines(
        runs / "sft_resumed"
    )
    assert_same_run(runs / "sft_resumed", runs / "sft")
    # What each of them saved is vouched for.
    noted = json.loads((runs / "sft" / "checkpoint-4" / checkpoints.MANIFEST).read_text())
    assert {
        "rng_state_0.pth",
        "rng_state_1.pth",
        "optimizer.pt",
        "model.safetensors",
    } <= noted.keys()


@pytest.mark.e2e
def test_two_processes_generate_each_row_once(runs: Path) -> None:
    shards = sorted((runs / "generate" / "completions").glob("shard-*.jsonl"))
    indices = [
        [json.loads(line)["index"] for line in path.read_text().splitlines()] for path in shards
    ]
    # Transformers takes the longest prompts first, so the order within a shard is its own.
    assert [sorted(part) for part in indices] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    # Each of the two completions of a row is an example.
    assert len(
        (runs / "generate" / "dataset" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    ) == 2 * len(SUMS)
    assert len([line for line in log_lines(runs / "generate") if line.startswith("rows: ")]) == 1
