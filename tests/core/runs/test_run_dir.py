"""The place of a run: links of its own are followed, folders with other files are left alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from r1_recipes.common import console, locks
from r1_recipes.common.errors import RecipeError
from r1_recipes.runs import run_dir
from r1_recipes.training.start import start


def refused(path: str, method: str = "sft") -> None:
    """A start ends with one line and exit status 2."""
    with pytest.raises(SystemExit) as ended, console.reported_errors():
        start([path], method)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    "entry",
    [
        '{"continued": 5}',
        '{"continued": [5]}',
        '{"continued": [{}]}',
        '{"continued": [{"settings": 5}]}',
        '{"made_from": []}',
        '{"adapted_to_machine": 3}',
        "[" * 100_000,
        "5",
    ],
)
def test_a_record_of_another_shape_is_one_line(tmp_path: Path, entry: str) -> None:
    (tmp_path / "run.json").write_text(entry)
    with pytest.raises(RecipeError, match=r"run\.json cannot be read"):
        run_dir.last_made_from(tmp_path)
    assert not run_dir.is_finished(tmp_path)


def test_the_run_folder_itself_and_its_checkpoints_may_be_links(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    (disk / "run").mkdir(parents=True)
    (disk / "checkpoint-2").mkdir()
    (tmp_path / "run").symlink_to(disk / "run")
    (tmp_path / "run" / "checkpoint-2").symlink_to(disk / "checkpoint-2")
    (tmp_path / "run" / "checkpoint-2").unlink()
    with console.reported_errors():
        start([write_recipe("sft")], "sft")
    assert {path.name for path in (disk / "run").iterdir()} >= {"_lock", "run.log", "run.json"}
    locks.hold(tmp_path / "run")
    with pytest.raises(RecipeError, match="this process already writes"):  # by its real name, too
        locks.hold(disk / "run")
    locks.release(tmp_path / "run")


@pytest.mark.parametrize(
    "kind", ["working directory", "home", "/", "folder of the recipe", "a folder with other files"]
)
def test_a_run_does_not_fill_a_folder_with_other_files(
    write_recipe: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    kind: str,
) -> None:
    for name in ("cwd", "home", "repository/.git"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "cwd")
    places = {
        "working directory": ".",
        "home": "~",
        "/": "/",
        "folder of the recipe": "..",
        "a folder with other files": "../repository",
    }
    place = os.path.expanduser(places[kind])
    refused(write_recipe("sft", output_dir=place))
    said = capsys.readouterr().err
    assert f"output_dir: {place} is " in said and "Fix: --output_dir outputs/tiny" in said
    assert kind == "/" or kind in said
    assert not list(Path(place).glob("_lock"))
