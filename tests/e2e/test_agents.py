"""docs/agents.md's own example, in a folder outside of the repository: training and evaluation."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow

DOCUMENT = (REPOSITORY / "docs" / "agents.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    code, recipe = (
        re.search(rf"```{kind}\n(.*?)```", DOCUMENT, re.DOTALL)[1] for kind in ("python", "yaml")
    )
    assert len(code.splitlines()) <= 25 and len(recipe.splitlines()) <= 10
    (tmp_path / "my_game.py").write_text(code, encoding="utf-8")
    (tmp_path / "my_game.yaml").write_text(recipe, encoding="utf-8")
    return tmp_path


def run(folder: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_example_trains_is_judged_and_is_shown(folder):
    said = run(
        folder,
        "r1_recipes.grpo",
        "my_game.yaml",
        "--smoke",
        "--output_dir",
        "run",
        "--log_completions",
        "true",
    )
    assert "HotOrCold" in said
    table = pandas.read_parquet(next((folder / "run" / "completions").glob("*.parquet")))
    assert table["turns"].str.startswith("[assistant]").all()
    assert (folder / "run" / "report.html").is_file()
    said = run(
        folder,
        "r1_recipes.evaluate",
        "my_game.yaml",
        "--smoke",
        "--num_samples",
        "1",
        "--output",
        "judged",
    )
    assert "greedy accuracy" in said
