"""``report_to``: one real run with every tracker on this machine, read back from what each wrote;
the same names and numbers in all.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY, metrics

pytestmark = pytest.mark.slow

STEPS = 2
COPIES = 6
# What Transformers logs once, when training ends; W&B has it in the run's summary.
SUMMARY = {
    f"train/{name}"
    for name in (
        "train_runtime",
        "train_samples_per_second",
        "train_steps_per_second",
        "train_loss",
        "total_flos",
    )
}


@pytest.fixture(scope="module")
def root(tiny_model: Path, sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two steps and what the three trackers keep beside it; no proxy lets
    anything out.
    """
    for tracker in ("tensorboard", "wandb", "trackio"):
        pytest.importorskip(tracker)
    root = tmp_path_factory.mktemp("trackers")
    recipe = {
        "model_name_or_path": str(tiny_model),
        "dataset_name": str(sums),
        "mapper": "gsm8k",
        "response_format": "think_answer",
        "reward_funcs": ["tests.conftest:letters", "format"],
        "reward_weights": [1.0, 0.5],
        "num_generations": COPIES,
        "per_device_train_batch_size": COPIES,
        "max_completion_length": 8,
        "max_steps": STEPS,
        "logging_steps": 1,
        "save_strategy": "no",
        "learning_rate": 1e-3,
        "log_completions": True,
        "num_completions_to_print": 0,
        "use_cpu": True,
        "bf16": False,
        "dtype": "float32",
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "report_to": ["tensorboard", "wandb", "trackio"],
        "wandb_project": "sums",
        "seed": 1,
        "output_dir": str(root / "run"),
    }
    (root / "sums.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("WANDB_", "TRACKIO_"))
    }
    environment |= {
        "WANDB_DIR": str(root),
        "TRACKIO_DIR": str(root / "trackio"),
        "NETRC": str(root / "no netrc"),
    }
    environment |= dict.fromkeys(
        ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"), "http://127.0.0.1:9"
    ) | {"NO_PROXY": "127.0.0.1,localhost"}
    command = [sys.executable, "-m", "r1_recipes.grpo", str(root / "sums.yaml")]
    ended = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "wandb has no API key, so this run is logged offline" in ended.stderr
    return root


def curves(root: Path) -> dict[str, list[float]]:
    """What ``metrics.jsonl`` has, under the names that trackers are given."""
    entries = metrics(root / "run")
    assert [entry["step"] for entry in entries] == [1, 2]
    return {
        f"train/{key}": [entry[key] for entry in entries] for key in entries[0] if key != "step"
    }


def same(found: dict[str, list[float]], wanted: dict[str, list[float]]) -> None:
    # The summary at the end of training names the epoch once more.
    assert {name: found.get(name, [])[:STEPS] for name in wanted} == {
        name: pytest.approx(values, rel=1e-6) for name, values in wanted.items()
    }


@pytest.mark.e2e
def test_the_names_are_those_of_the_metrics_file(root: Path) -> None:
    names = set(curves(root))
    assert {
        f"train/rewards/{name}/{part}" for name in ("letters", "format") for part in ("mean", "std")
    } <= names
    assert {
        "train/reward",
        "train/loss",
        "train/entropy",
        "train/completions/mean_length",
        "train/frac_reward_zero_std",
    } <= names
    assert {"train/time/generation", "train/time/rewards", "train/step_time"} <= names


@pytest.mark.e2e
def test_wandb_offline_has_every_curve_and_all_completions(root: Path) -> None:
    (path,) = (root / "wandb").glob("offline-run-*/run-*.wandb")
    history: dict[str, list[float]] = {}
    summary: set[str] = set()
    project = ""
    for record in wandb_records(path):
        project = record.run.project or project
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            history.setdefault(name, []).append(json.loads(item.value_json))
        summary |= {item.key or "/".join(item.nested_key) for item in record.summary.update}
    assert project == "sums"
    same(history, curves(root))
    assert {name.removeprefix("train/") for name in SUMMARY} <= summary
    assert {name for name in history if name.startswith("train/")} == set(curves(root)) | {
        "train/global_step"
    }
    assert history["completions/nrows"][:STEPS] == [COPIES, COPIES]
    table = json.loads(
        (path.parent / "files" / history["completions/path"][0]).read_text(encoding="utf-8")
    )
    assert {"prompt", "completion", "letters", "format", "advantage"} <= set(table["columns"])


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a ``.wandb`` file: LevelDB's log format (blocks of 32 KiB; checksum, length,
    type) after seven bytes of header.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32_768 - at % 32_768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""
