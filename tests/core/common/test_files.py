"""Recipes that cannot be read, a folder that is taken, and the command that runs the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from r1_recipes import __main__
from r1_recipes.common import files
from r1_recipes.common.errors import RecipeError


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed: 1\nbeta: 0\nseed: 2\n", "'seed' appears more than once"),
        ("seed: [1\n", "line 2"),  # where the list should have ended
        ("when: 2025-02-30\n", "not valid YAML"),
        ("- seed\n", "must be a mapping"),
    ],
)
def test_a_file_that_is_no_recipe_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=rf"mine\.yaml: .*{said}"):
        files.read_yaml(path)


def test_an_override_of_an_anchor_is_no_second_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("a: &a {x: 1}\nb: {<<: *a, x: 2}\n", encoding="utf-8")
    assert files.read_yaml(path)["b"] == {"x": 2}


def test_a_misspelt_path_is_answered_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "gsm8k.yaml").touch()
    with pytest.raises(RecipeError, match=r"gsm8l\.yaml: no such recipe file.*gsm8k\.yaml"):
        files.read_yaml(tmp_path / "gsm8l.yaml")


def test_a_folder_that_another_process_writes_into_is_refused(tmp_path: Path) -> None:
    hold = "import sys; from pathlib import Path; from r1_recipes.common import files\n"
    hold += "files.hold(Path(sys.argv[1])); print('held', flush=True); input()"
    command = [sys.executable, "-c", hold, str(tmp_path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout and other.stdout.readline() == "held\n"
        with pytest.raises(RecipeError, match=f"process {other.pid} "):
            files.hold(tmp_path)
        other.communicate("\n")
    files.hold(tmp_path)  # a lock ends with its process
    files.release()


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 0, "gsm8k_qwen05b.yaml|preflight"),
        (["--version"], 0, "r1-recipes "),
        (["preflite"], 2, "preflight"),
        (["show", "gsm8k_qwen05b"], 0, "reward_funcs: [accuracy]"),
    ],
)
def test_the_command_that_runs_the_others(
    words: list[str],
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["r1-recipes", *words])
    try:
        __main__.main()
        found = 0
    except SystemExit as end:
        found = int(end.code or 0)
    assert found == status
    out = "".join(capsys.readouterr())
    assert any(part in out for part in said.split("|"))
