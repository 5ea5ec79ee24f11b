"""The rewards in a script of TRL's and in its command, as docs/howto_elsewhere.md shows them."""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from r1_recipes.rewards import REWARDS, functions
from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "howto_elsewhere.md"
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
ON_CPU = "max_steps=1, per_device_train_batch_size=8, max_completion_length=8, use_cpu=True, "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with rows as the page describes them, for the script and for the command."""
    row = {"prompt": [{"role": "user", "content": "1 + 1?"}], "solution": "2"}
    text = (json.dumps(row) + "\n") * 8
    (tmp_path / "rows.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.jsonl").write_text(text, encoding="utf-8")
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
@pytest.mark.parametrize("trainer", ["GRPO", "SDPO"])
def test_the_script_trains(folder: Path, tiny_model: Path, trainer: str) -> None:
    (script,) = re.findall(r"```python train.py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    script = script.replace(MODEL, str(tiny_model)).replace(
        "GRPOConfig(", f"GRPOConfig({ON_CPU}bf16=False, report_to='none', logging_steps=1, "
    )
    if trainer == "SDPO":
        script = script.replace("from trl import", "from trl.experimental.sdpo import")
        script = script.replace("GRPO", "SDPO")
    (folder / "train.py").write_text(script, encoding="utf-8")
    said = run(folder, "train.py")
    assert "rewards/accuracy" in said and "rewards/format" in said


@pytest.mark.e2e
def test_the_command_trains(folder: Path, tiny_model: Path) -> None:
    (command,) = re.findall(r"\$ trl (grpo .*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    words = shlex.split(command.replace("\\\n", " ").replace(MODEL, str(tiny_model)))
    fewer = ["--max_steps", "1", "--per_device_train_batch_size", "8", "--bf16", "false"]
    fewer += ["--max_completion_length", "8", "--use_cpu", "true", "--report_to", "none"]
    said = run(
        folder, "-c", "from trl.cli import main; main()", *words, *fewer, "--logging_steps", "1"
    )
    assert "rewards/accuracy/mean" in said and "rewards/format/mean" in said


def test_each_reward_is_a_function_in_the_default_format() -> None:
    assert set(dir(functions)) == set(REWARDS)
    rewards = functions.accuracy(
        completions=["<think>\na\n</think>\n<answer>\n3\n</answer>", "<answer>4</answer>"],
        solution=["3", "3"],
    )
    assert rewards == [1.0, 0.0]
    assert pickle.loads(pickle.dumps(functions.cosine)) == functions.cosine
    for name in ("accurate", "__path__"):
        with pytest.raises(AttributeError):
            getattr(functions, name)


def test_it_is_light_to_import() -> None:
    script = (
        "import sys, r1_recipes.rewards.functions as f; f.accuracy; print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
