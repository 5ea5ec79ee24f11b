"""`r1-recipes recipes` and `show`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from r1_recipes import __main__
from tests.conftest import RECIPES, REPOSITORY

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["r1-recipes", *words])
        try:
            __main__.main()
        except SystemExit as end:
            return int(end.code or 0), "".join(capsys.readouterr())
        return 0, "".join(capsys.readouterr())

    return run


def test_every_recipe_is_listed_with_what_it_is(run: Run) -> None:
    status, listed = run("recipes")
    lines = {line.split()[0]: line for line in listed.splitlines()}
    names = {
        path.relative_to(REPOSITORY / "recipes").with_suffix("").as_posix() for path in RECIPES
    }
    assert status == 0
    assert names <= set(lines) and {"accelerate_configs/ddp", "pipelines/demo.sh"} <= set(lines)
    assert all(len(line.split()) > 3 for line in lines.values())  # what it is


def test_show_prints_a_recipe_and_what_is_here_comes_first(run: Run) -> None:
    shipped = (REPOSITORY / "recipes" / "gsm8k_qwen05b.yaml").read_text(encoding="utf-8")
    assert run("show", "gsm8k_qwen05b") == (0, shipped)
    assert run("show", "accelerate_configs/ddp")[1].startswith("# Data parallel")
    assert run("show", "gsm8k_qwen")[0] == run("show")[0] == 2
    Path("recipes").mkdir()
    Path("recipes/gsm8k_qwen05b.yaml").write_text("seed: 7\n", encoding="utf-8")
    assert run("show", "gsm8k_qwen05b")[1] == "seed: 7\n"
    assert "seed: 7" not in run("show", "gsm8k_qwen05b_lora")[1]
