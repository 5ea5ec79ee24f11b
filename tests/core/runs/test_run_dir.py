"""The place of a run: links in somebody else's folder are not followed, and folders with other files
are left alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from r1_recipes.common import console, locks
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import open_unlinked, write_whole
from r1_recipes.completions.store import ShardStore
from r1_recipes.recipe import load_recipe
from r1_recipes.recipe.load import Recipe
from r1_recipes.runs import checkpoints, run_dir
from r1_recipes.training import weights
from r1_recipes.training.callbacks import Records
from r1_recipes.training.start import start


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("mine, without a line break")
    return path


def refused(path: str, method: str = "sft") -> None:
    """A start ends with one line and exit status 2."""
    with pytest.raises(SystemExit) as ended, console.reported_errors():
        start([path], method)
    assert ended.value.code == 2


WRITTEN = [
    "_lock",
    "run.log",
    "metrics.jsonl",
    "model.safetensors",
    "completions/completions_00001.parquet",
    "completions/shard-00000.jsonl",
    "merged/model.safetensors",
    "checkpoint-2/model.safetensors",
]


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("dangling", [False, True])
def test_a_start_follows_no_link_in_the_run_folder(
    write_recipe: Callable[..., str],
    tmp_path: Path,
    victim: Path,
    capsys: pytest.CaptureFixture,
    name: str,
    dangling: bool,
) -> None:
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "nothing" if dangling else victim)
    refused(write_recipe("sft"))
    assert f"{name}: is a link to " in capsys.readouterr().err
    assert (
        victim.read_text() == "mine, without a line break" and not (tmp_path / "nothing").exists()
    )


@pytest.mark.parametrize(
    "name", ["_lock", "run.json", "metrics.jsonl", "checkpoint-2/trainer_state.json"]
)
def test_a_pipe_in_the_run_folder_does_not_hang_a_start(
    write_recipe: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture, name: str
) -> None:
    pipe = tmp_path / "run" / name
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    refused(write_recipe("sft"))
    assert f"{name}: is a pipe" in capsys.readouterr().err
    assert not run_dir.is_finished(tmp_path / "run")  # as pipeline asks before a start


@pytest.mark.parametrize("mode", ["r", "rb", "wb", "ab", "a+b", "r+b"])
def test_a_pipe_that_comes_after_the_start_is_not_waited_for(tmp_path: Path, mode: str) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(RecipeError, match="is a pipe"):
        open_unlinked(tmp_path / "metrics.jsonl", mode)


def test_a_file_name_that_is_no_unicode_can_be_recorded(tmp_path: Path) -> None:
    name = os.fsdecode(b"bad\xff.csv")
    write_whole(tmp_path / "run.json", json.dumps({"dataset_name": name}, ensure_ascii=False))
    assert json.loads((tmp_path / "run.json").read_text("utf-8")) == {"dataset_name": name}


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


@pytest.mark.parametrize("state", ["{}", "5", '{"global_step": "x"}', "[" * 100_000, None])
def test_a_checkpoint_of_another_shape_is_one_line(tmp_path: Path, state: str | None) -> None:
    (tmp_path / checkpoints.MANIFEST).write_text("[" * 100_000)
    assert checkpoints.manifest_mismatch(tmp_path) == f"{checkpoints.MANIFEST}: RecursionError"
    if state is not None:
        (tmp_path / "trainer_state.json").write_text(state)
    with pytest.raises(RecipeError, match="global_step"):
        checkpoints.step_of(tmp_path)


def test_a_folder_of_completions_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "another").mkdir()
    (tmp_path / "completions").symlink_to(tmp_path / "another")
    with (
        pytest.raises(RecipeError, match=r"completions: is a link to"),
        ShardStore(tmp_path / "completions"),
    ):
        pass
    assert not list((tmp_path / "another").iterdir())


def test_a_shard_or_a_log_that_became_a_link_is_not_written(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "completions").mkdir()
    (tmp_path / "completions" / "shard-00000.jsonl").symlink_to(victim)
    with (
        pytest.raises(RecipeError, match=r"shard-00000\.jsonl: is a link"),
        ShardStore(tmp_path / "completions"),
    ):
        pass
    (tmp_path / "metrics.jsonl").symlink_to(victim)
    state = SimpleNamespace(is_world_process_zero=True, global_step=1)
    with pytest.raises(RecipeError, match=r"metrics\.jsonl: is a link"):
        Records(tmp_path).on_log(None, state, None, {"loss": 1.0})
    for mode in ("r", "w", "a", "r+"):
        with pytest.raises(RecipeError, match="Fix: remove the link"):
            open_unlinked(tmp_path / "metrics.jsonl", mode)
    assert victim.read_text() == "mine, without a line break"


def test_a_link_that_came_during_training_is_neither_written_nor_pushed(
    tmp_path: Path, victim: Path
) -> None:
    (tmp_path / "run" / "notes").mkdir(parents=True)
    (tmp_path / "run" / "notes" / "key").symlink_to(victim)
    run = SimpleNamespace(recipe=SimpleNamespace(script=None), output_dir=tmp_path / "run")
    with pytest.raises(RecipeError, match="key: is a link to"):
        weights.save(run, None)


def test_a_link_to_itself_is_refused_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "loop").symlink_to("loop")
    with pytest.raises(RecipeError, match="loop: is a link to"):
        run_dir.check_links(tmp_path / "run")


def test_the_run_folder_itself_and_its_checkpoints_may_be_links(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    (disk / "run").mkdir(parents=True)
    (disk / "checkpoint-2").mkdir()
    (tmp_path / "run").symlink_to(disk / "run")
    (tmp_path / "run" / "checkpoint-2").symlink_to(disk / "checkpoint-2")
    (tmp_path / "run" / "best").symlink_to("checkpoint-2")
    with pytest.raises(
        RecipeError, match="best: is a link"
    ):  # out of the folder, over the checkpoint's own link
        run_dir.check_links(tmp_path / "run")
    (tmp_path / "run" / "best").unlink()
    (tmp_path / "run" / "kept").mkdir()
    (tmp_path / "run" / "best").symlink_to("kept")
    (tmp_path / "run" / "wandb" / "run-1").mkdir(parents=True)
    (tmp_path / "run" / "wandb" / "latest-run").symlink_to("run-1")
    run_dir.check_links(tmp_path / "run")
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


def test_a_link_to_nothing_and_a_file_are_called_so(
    write_recipe: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "gone")
    refused(write_recipe("sft"))
    assert f"run is a link to {tmp_path / 'gone'}, which does not exist" in capsys.readouterr().err
    (tmp_path / "run").unlink()
    (tmp_path / "run").write_text("")
    refused(write_recipe("sft"))
    assert f"output_dir: {tmp_path / 'run'} is a file. Fix" in capsys.readouterr().err


def loaded(path: str, *overrides: str) -> Recipe:
    return load_recipe([path, *overrides], "sft")


def test_a_finished_run_is_pushed_by_the_command_that_is_named(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    path, run = write_recipe("sft"), tmp_path / "run"
    run.mkdir()
    run_dir.claim(run_dir.Run(loaded(path), run, []))
    run_dir.mark_finished(run)
    (run / "trainer_state.json").write_text(json.dumps({"global_step": 6, "epoch": 3.0}))
    with pytest.raises(RecipeError, match=rf"Fix: hf upload me/mine {run} \. --exclude "):
        run_dir.check(loaded(path, "--push_to_hub", "true", "--hub_model_id", "me/mine"), run)
    with pytest.raises(RecipeError, match="learning_rate: "):
        run_dir.check(loaded(path, "--push_to_hub", "true", "--learning_rate", "1e-4"), run)
