"""The rewards in a script of TRL's, as docs/elsewhere.md shows them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

(PAGE,) = (REPOSITORY / "docs").glob("*elsewhere.md")
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
ON_CPU = "max_steps=1, per_device_train_batch_size=8, max_completion_length=8, use_cpu=True, "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with rows as the page describes them, for the script."""
    row = {"prompt": [{"role": "user", "content": "1 + 1?"}], "solution": "2"}
    text = (json.dumps(row) + "\n") * 8
    (tmp_path / "rows.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


def run(folder: Path, *words: str) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.mark.e2e
def test_the_script_trains(folder: Path, tiny_model: Path) -> None:
    (script,) = re.findall(r"```python train.py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    script = script.replace(MODEL, str(tiny_model)).replace(
        "GRPOConfig(", f"GRPOConfig({ON_CPU}bf16=False, report_to='none', logging_steps=1, "
    )
    (folder / "train.py").write_text(script, encoding="utf-8")
    said = run(folder, "train.py")
    assert "rewards/accuracy" in said and "rewards/format" in said


def test_it_is_light_to_import() -> None:
    script = "import sys, r1_recipes.rewards as f; f.accuracy; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
