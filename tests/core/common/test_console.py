"""What a terminal or a pipe cannot show is escaped, and ends nothing."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from r1_recipes.common import console
from tests.conftest import REPOSITORY

ROWS = "Frage;Lösung\n" + "".join(
    f"Wie viel € sind {i} + {i} für Jürgen?;{2 * i}\n" for i in range(12)
)
ENCODINGS = [
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
]


def command(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    places = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    return subprocess.run(
        [sys.executable, "-m", "r1_recipes", *words],
        capture_output=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": places, **environment},
        timeout=300,
    )


@pytest.mark.parametrize("environment", ENCODINGS, ids=lambda value: next(iter(value)))
def test_init_says_what_it_wrote_in_any_encoding(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "übungen.csv").write_text(ROWS, encoding="utf-8")
    done = command(
        "init",
        "übungen.csv",
        "--question",
        "Frage",
        "--answer",
        "Lösung",
        "--cpu",
        folder=tmp_path,
        **environment,
    )
    assert done.returncode == 0 and list(tmp_path.glob("*.yaml")), done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("environment", ENCODINGS[:1], ids=lambda value: next(iter(value)))
def test_preflight_and_a_run_in_a_folder_with_an_umlaut_end_well(
    write_recipe, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "ä.jsonl").write_text(
        "".join(f'{{"question": "ü{i}?", "answer": "#### {i}"}}\n' for i in range(8)),
        encoding="utf-8",
    )
    path = write_recipe(
        "grpo",
        dataset_name=str(tmp_path / "ä.jsonl"),
        output_dir=str(tmp_path / "ö"),
        max_steps=1,
        save_steps=1,
    )
    looked = command("preflight", path, "--no-model", folder=tmp_path, **environment)
    assert (
        looked.returncode in (0, 1)
        and b"\\xfc" in looked.stdout
        and b"Traceback" not in looked.stderr
    ), looked.stderr
    trained = command("grpo", path, folder=tmp_path, **environment)
    assert trained.returncode == 0 and (tmp_path / "ö" / "model.safetensors").is_file(), (
        trained.stderr
    )


def test_every_help_text_can_be_printed_in_ascii(tmp_path: Path) -> None:
    for name in ("report", "evaluate"):
        done = command(name, "--help", folder=tmp_path, PYTHONIOENCODING="ascii")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "status"), [(["recipes"], 0), (["recipes", "no_such"], 2), (["grpo"], 2)]
)
def test_closed_streams_leave_the_exit_status(
    tmp_path: Path, words: list[str], status: int
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    call = f'exec "{sys.executable}" -O -m r1_recipes {" ".join(words)} >&- 2>&-'
    assert (
        subprocess.run(["sh", "-c", call], cwd=tmp_path, env=environment, timeout=300).returncode
        == status
    )


def test_a_notebook_s_streams_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    with console.reported_errors():
        console.say("ä")
    assert sys.stdout is shown and shown.getvalue() == "ä\n"
