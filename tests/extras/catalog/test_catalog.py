"""`r1-recipes recipes`, `show` and `demo`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from r1_recipes import __main__
from r1_recipes.extras.catalog.header import hardware_of, header_of, status_of
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


def test_every_recipe_is_listed_with_its_model_hardware_and_status(run: Run) -> None:
    status, listed = run("recipes")
    lines = {line.split()[0]: line for line in listed.splitlines()}
    names = {
        path.relative_to(REPOSITORY / "recipes").with_suffix("").as_posix() for path in RECIPES
    }
    assert status == 0
    assert names <= set(lines) and {"accelerate_configs/ddp", "pipelines/demo"} <= set(lines)
    fast = lines["gsm8k_qwen05b_fast"]
    assert " Qwen2.5-0.5B-Instruct " in fast and " 1 x 80 GB " in fast and " measured " in fast
    assert " SmolLM2-135M-Instruct " in lines["cpu/demo_1_sft"]
    assert " outputs/demo/cold_start " in lines["cpu/demo_2_grpo"] and " 2 CPU cores " in lines["cpu/demo_2_grpo"]
    # Recipes come first, since they are what is looked for.
    assert list(lines)[-1].startswith(("pipelines/", "benchmarks/", "accelerate_configs/"))


def test_words_narrow_the_list_and_all_must_be_there(run: Run) -> None:
    _, listed = run("recipes", "GSM8K", "24 gb")
    names = [line.split()[0] for line in listed.splitlines()[1:]]
    assert "gsm8k_qwen05b_xml" in names and "gsm8k_qwen05b" not in names
    status, text = run("recipes", "gsm8k", "no such word")
    assert status == 2 and "no such word" in text and "Fix:" in text


def test_the_statuses_are_those_of_the_readme() -> None:
    statuses = [status_of(header_of(path)) for path in RECIPES]
    training = [status for status in statuses if status]
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    measured = training.count("measured")
    assert f"{measured} of the {len(training)} training recipes have been trained" in readme


@pytest.mark.parametrize(
    ("text", "hardware"),
    [
        ("# A run.\n#\n# Hardware:  8 GPUs with\n#            80 GB.\n\nseed: 1\n", "8 x 80 GB"),
        ("# A run.\n# Hardware: two CPU cores, 4 GB.\n", "2 CPU cores"),
        ("# A run.\n\nseed: 1  # Hardware: one GPU with 24 GB\n", ""),
        ("seed: 1\n", ""),
        ("", ""),
    ],
)
def test_a_header_is_read_up_to_the_first_key(tmp_path: Path, text: str, hardware: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    assert hardware_of(header_of(path)) == hardware


def test_show_prints_a_recipe_and_what_is_here_comes_first(run: Run) -> None:
    shipped = (REPOSITORY / "recipes" / "gsm8k_qwen05b.yaml").read_text(encoding="utf-8")
    assert run("show", "gsm8k_qwen05b") == (0, shipped)
    assert run("show", "accelerate_configs/ddp")[1].startswith("# Data parallel")
    assert run("show", "gsm8k_qwen")[0] == run("show")[0] == 2
    Path("recipes").mkdir()
    Path("recipes/gsm8k_qwen05b.yaml").write_text("seed: 7\n", encoding="utf-8")
    assert run("show", "gsm8k_qwen05b")[1] == "seed: 7\n"
    assert "seed: 7" not in run("show", "gsm8k_qwen05b_lora")[1]


def test_the_demo_is_the_pipeline_with_the_makefile_s_allocator(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(
        os, "execve", lambda _, command, environment: calls.append((command, environment))
    )
    run("demo", "--seed", "2")
    ((command, environment),) = calls
    assert command[1:] == ["-m", "r1_recipes.pipeline", "pipelines/demo", "--seed", "2"]
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for name in ("MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"):
        assert f"export {name} = {environment[name]}\n" in makefile


def test_an_unknown_command_is_answered_with_the_nearest(run: Run) -> None:
    assert run("gpro")[0] == 2 and run("--help")[0] == run()[0] == 0
    assert "r1-recipes recipes" in run("list")[1] and "r1-recipes show" in run("shw")[1]
