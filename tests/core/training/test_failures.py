"""What fails in the middle of a run ends in one line that says why, with a checkpoint where that is
possible; the same command goes on.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch

from r1_recipes import grpo
from r1_recipes.common.console import LogFile
from r1_recipes.common.files import disk_problem
from r1_recipes.extras.report.completions import pack_completions
from r1_recipes.extras.report.read import read_run
from tests.conftest import letters, metrics
from tests.core.training.test_faults import assert_same_run

pytestmark = pytest.mark.usefixtures("offline")
OWN = "tests.core.training.test_failures"
_at: dict[int, Callable[[], Any]] = {}  # by finished steps: what happens in the reward of the next


def _fail() -> None:
    raise KeyError("gold")


def _happens(trainer_state: Any) -> None:
    if trainer_state.train_batch_size is not None:  # not the try before training
        _at.get(trainer_state.global_step, int)()


def own(completions: list, trainer_state: Any, **columns: Any) -> list[float]:
    _happens(trainer_state)
    return letters(completions)


async def own_later(completions: list, trainer_state: Any, **columns: Any) -> list[float]:
    await asyncio.wait_for(asyncio.sleep(0), 1)
    _happens(trainer_state)
    return letters(completions)


@pytest.fixture(autouse=True)
def at(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[[], Any]]:
    _at.clear()
    return _at


def refused(path: str, capsys: pytest.CaptureFixture) -> str:
    """Run a recipe that fails; return the only line that says so."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        grpo.main([path])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "Traceback" not in said, said
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    return line


def steps(run: Path) -> list[int]:
    return [entry["step"] for entry in metrics(run)]


@pytest.mark.parametrize("name", ["own", "own_later"])
def test_a_reward_that_fails_is_named_and_its_last_step_is_saved(
    write_recipe: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    at: dict,
    name: str,
) -> None:
    path, run = write_recipe("grpo", reward_funcs=[f"{OWN}:{name}"], save_steps=2), tmp_path / "run"
    at[3] = _fail
    line = refused(path, capsys)
    place = rf"\({re.escape(__file__)}:\d+\)"
    assert re.search(
        rf"reward '{OWN}:{name}' fails: KeyError: 'gold' {place}.*after step 3\..*resumes "
        rf"from there",
        line,
    ), line
    assert (run / "checkpoint-3" / "manifest.json").is_file()
    at.clear()
    grpo.main([path])
    grpo.main([path, "--output_dir", str(tmp_path / "whole")])
    assert_same_run(run, tmp_path / "whole")


def test_a_reward_that_fails_in_the_evaluation_or_before_the_first_step(
    write_recipe: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture, at: dict
) -> None:
    halves = {
        "dataset_train_split": "train[:4]",
        "dataset_test_split": "train[4:]",
        "eval_strategy": "steps",
        "eval_steps": 1,
    }
    changes = {
        "reward_funcs": [f"{OWN}:own"],
        "save_steps": 4,
        "per_device_eval_batch_size": 4,
        "max_steps": 4,
    }
    at[1] = _fail  # in the evaluation after step 1
    assert "after step 1." in refused(write_recipe("grpo", **halves, **changes), capsys)
    assert (tmp_path / "run" / "checkpoint-1").is_dir()
    at[0] = at.pop(1)
    path = write_recipe("grpo", **changes, output_dir=str(tmp_path / "first"))
    assert re.search(r"after step 0\. .*starts again", refused(path, capsys))
    assert not list((tmp_path / "first").glob("checkpoint-*"))


def nobody(completions: list, **columns: Any) -> list[None]:
    return [None] * len(completions)


def some(completions: list, **columns: Any) -> list[float | None]:
    return [None, *letters(completions)[1:]]


def test_a_run_without_any_scores_reports_it(
    write_recipe: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = "reward_funcs: nobody judged no completion of {} batches in a row"
    for name, said in (("nobody", [told.format(2)]), ("some", [])):
        caplog.clear()
        grpo.main(
            [
                write_recipe(
                    "grpo",
                    reward_funcs=[f"{OWN}:{name}"],
                    max_steps=2,
                    output_dir=str(tmp_path / name),
                )
            ]
        )
        assert [
            line.partition(",")[0] for line in caplog.messages if "judged no completion" in line
        ] == said
    assert told.format(3) in refused(write_recipe("grpo", reward_funcs=[f"{OWN}:nobody"]), capsys)


class _FullDisk(io.TextIOWrapper):
    """A log's file on a disk without room."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    flush = close = lambda self: self.write("")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        RuntimeError(
            "[enforce fail at inline_container.cc:668] . PytorchStreamWriter failed writing "
            "file data/3: file write failed"
        ),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_full_disk_is_one_line_and_the_run_resumes_when_there_is_space(
    write_recipe: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    path, run = write_recipe("grpo"), tmp_path / "run"
    save = torch.save

    def full(thing: Any, file: Any, *args: Any, **options: Any) -> None:
        if "checkpoint-4" in str(file):
            raise error
        save(thing, file, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", full)
        close = LogFile.close

        def close_full(self: LogFile) -> None:
            close(self)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patched.setattr(LogFile, "close", close_full)
        line = refused(path, capsys)
    assert (
        f"output_dir {run}: cannot be written: No space left on device. Fix: free some disk space"
        in line
    )
    grpo.main([path])
    assert steps(run) == [1, 2, 3, 4, 5, 6] and (run / "model.safetensors").is_file()


def test_a_log_without_room_writes_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    import logging

    handler = LogFile(tmp_path / "run.log")
    handler.stream.close()
    handler.stream = _FullDisk(io.BytesIO())
    handler.emit(logging.makeLogRecord({"msg": "hello", "levelno": 20}))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("log_completions", [True, False])
def test_a_folder_that_is_removed_is_one_line(
    write_recipe: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    at: dict,
    log_completions: bool,
) -> None:
    path = write_recipe(
        "grpo",
        reward_funcs=[f"{OWN}:own"],
        log_completions=log_completions,
        num_completions_to_print=0,
    )
    at[2] = lambda: shutil.rmtree(tmp_path / "run")
    assert (
        f"output_dir {tmp_path / 'run'}: " in (line := refused(path, capsys)) and "removed" in line
    )
    at.clear()
    grpo.main([path])
    assert steps(tmp_path / "run") == [1, 2, 3, 4, 5, 6]


def test_other_errors_are_not_the_disk_s(tmp_path: Path) -> None:
    assert (
        disk_problem(ValueError("no"), tmp_path) is None
        and disk_problem(FileNotFoundError(2, "no", "/nowhere/x"), tmp_path) is None
    )
    assert "gone.json was removed" in str(
        disk_problem(FileNotFoundError(2, "no", str(tmp_path / "gone.json")), tmp_path)
    )
    # Hosts without a shared disk have no output folder until they save.
    assert disk_problem(RuntimeError("CUDA out of memory"), tmp_path / "gone") is None
    assert "removed or renamed" in str(
        disk_problem(RuntimeError("No such file or directory"), tmp_path / "gone")
    )
    try:
        try:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        except OSError:
            raise RuntimeError("writer") from None
    except RuntimeError as error:
        assert "cannot be written" in str(disk_problem(error, tmp_path))


# Completions: once a generation, the first rows


def tables(folder: Path) -> dict[int, list[dict[str, Any]]]:
    return {
        int(path.stem.rpartition("_")[2]): pyarrow.parquet.read_table(path).to_pylist()
        for path in sorted(folder.glob("*.parquet"))
    }


def test_completions_are_written_once_a_generation_and_no_more_of_them_than_the_key_says(
    write_recipe: Callable[..., str], tmp_path: Path, interrupted: Callable[[str], None]
) -> None:
    halves = {
        "dataset_train_split": "train[:6]",
        "dataset_test_split": "train[6:]",
        "eval_strategy": "steps",
        "eval_steps": 4,
    }
    changes = {
        "steps_per_generation": 3,
        "num_generations": 4,
        "per_device_eval_batch_size": 8,
        "num_generations_eval": 4,
    }
    logged = {"log_completions": True, "num_completions_to_print": 0, "max_logged_completions": 4}
    path, run = write_recipe("grpo", **halves, **changes, **logged, max_steps=8), tmp_path / "run"
    interrupted("2")  # the reward's second call, which is the rollout of steps 4 to 6
    with pytest.raises(SystemExit):
        grpo.main([path])
    assert list(tables(run / "completions")) == [1, 4]
    interrupted("")
    grpo.main([path])
    trained = tables(run / "completions")
    # A run that goes on samples the rest of the rollout at once, and the next where it would have;
    # what was sampled before is not written again.
    assert list(trained) == [1, 4, 5, 7]
    assert {step: [row["step"] for row in rows] for step, rows in trained.items()} == {
        step: [step] * 4 for step in (1, 4, 5, 7)
    }
    assert all(
        len({str(row["prompt"]) for row in rows}) == 1 for rows in trained.values()
    )  # a whole group of three
    # The stop at step 4 waited for no evaluation.
    assert {step: len(rows) for step, rows in tables(run / "eval_completions").items()} == {8: 8}
    assert steps(run)[:3] == [1, 2, 3]
    assert pack_completions([read_run(run)])[1:] == (4 * 4 + 8, 4 * 4 + 8)
