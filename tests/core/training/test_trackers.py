"""``report_to``: one real run with every tracker on this machine, which keeps what it is given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import REPOSITORY, metrics

pytestmark = [pytest.mark.slow, pytest.mark.e2e]
TRACKERS = ["tensorboard", "wandb", "trackio"]


def test_a_run_with_every_tracker(tiny_model: Path, sums: Path, tmp_path: Path) -> None:
    """No proxy lets anything out."""
    for tracker in TRACKERS:
        pytest.importorskip(tracker)
    recipe = {
        "model_name_or_path": str(tiny_model),
        "dataset_name": str(sums),
        "mapper": "gsm8k",
        "reward_funcs": ["tests.conftest:letters", "format"],
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "max_completion_length": 8,
        "max_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "log_completions": True,
        "use_cpu": True,
        "bf16": False,
        "report_to": TRACKERS,
        "wandb_project": "sums",
        "output_dir": str(tmp_path / "run"),
    }
    (tmp_path / "sums.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("WANDB_")},
        "WANDB_DIR": str(tmp_path),
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        **dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"), "http://127.0.0.1:9"),
        "NO_PROXY": "127.0.0.1,localhost",
        "WANDB_MODE": "offline",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "r1_recipes.grpo", str(tmp_path / "sums.yaml")],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert [entry["step"] for entry in metrics(tmp_path / "run")] == [1, 2]
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    data = file.read_bytes()
    assert b"sums" in data and b"train/rewards/letters/mean" in data
    assert b"completions" in data
    assert list((tmp_path / "run").rglob("events.out.tfevents.*"))
    assert list((tmp_path / "trackio").glob("*.db"))
