"""What fails in the middle of a run ends in one line that says why, with a checkpoint where that is
possible; the same command goes on.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from r1_recipes import grpo
from r1_recipes.common.console import LogFile
from tests.conftest import letters, metrics
from tests.core.training.test_faults import assert_same_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("offline")]
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
def test_a_run_resumes_when_a_full_disk_has_space_again(
    write_recipe: Callable[..., str],
    tmp_path: Path,
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
        with pytest.raises((SystemExit, OSError, RuntimeError)):
            grpo.main([path])
    grpo.main([path])
    assert steps(run) == [1, 2, 3, 4, 5, 6] and (run / "model.safetensors").is_file()


# Completions: once a generation, the first rows
