"""Runs that are killed or stopped go on as if nothing had happened."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import pytest
from transformers import TrainerControl, TrainerState

from r1_recipes import grpo, sft
from r1_recipes.common.errors import RecipeError
from r1_recipes.models.tokenizer import load_tokenizer
from r1_recipes.recipe import load_recipe
from r1_recipes.runs import checkpoints
from r1_recipes.training import callbacks, trainer
from tests.conftest import log_lines, metrics, weights

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
STEPS = 12


def comparable(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # SFTTrainer's num_tokens counts from zero again in each process.
    left_out = {
        "step_time",
        *(("num_tokens",) if any("mean_token_accuracy" in entry for entry in entries) else ()),
    }
    # Seconds differ, and so does what a process has judged before.
    return [
        {
            key: value
            for key, value in entry.items()
            if key not in left_out and not key.startswith(("time/", "verification/"))
        }
        for entry in entries
    ]


def assert_same_run(run: Path, whole: Path) -> None:
    """Every step once, with the numbers of the run that was never stopped, and the same model to
    the last bit.
    """
    assert [entry["step"] for entry in metrics(run)] == list(range(1, len(metrics(whole)) + 1))
    assert comparable(metrics(run)) == comparable(metrics(whole))
    stopped, straight = weights(run), weights(whole)
    assert all(straight[name].equal(value) for name, value in stopped.items())


def unfinished(run: Path) -> None:
    """As a kill before the end leaves it."""
    (run / "run.json").write_text(
        (run / "run.json").read_text().replace('"finished": true', '"finished": false')
    )


# In this process: Ctrl-C comes from the reward


@pytest.mark.parametrize(
    "changes",
    [
        # Four steps an epoch: step 5 is in the second one, whose order of rows no checkpoint holds
        {},
        {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2, "beta": 0.1},
        {"unfrozen_parameters": [r"layers\.1\."], "gradient_checkpointing": True},
        {"use_peft": True, "lora_r": 4, "lora_target_modules": ["q_proj", "v_proj"]},
    ],
    ids=["epochs", "accumulation", "unfrozen", "lora"],
)
def test_ctrl_c_saves_and_the_same_command_resumes(
    write_recipe: Callable[..., str],
    tmp_path: Path,
    interrupted: Callable[[str], None],
    capfd: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
) -> None:
    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    path = write_recipe("grpo", max_steps=9, save_steps=4, **changes)
    run, whole = tmp_path / "run", tmp_path / "whole"
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    interrupted("5")
    with pytest.raises(SystemExit) as ended:
        grpo.main([path])
    assert ended.value.code == 130
    assert "stopping after this step, with a checkpoint" in capfd.readouterr().err
    # The step it was in is not one that save_steps would save.
    assert {folder.name for folder in run.glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-5"}
    assert log_lines(run)[-1] == "stopped at step 5. The same command resumes from there"
    assert not list(run.glob("*.safetensors")) and "None" not in (run / "README.md").read_text(
        encoding="utf-8"
    )
    with pytest.raises(
        RecipeError, match=r"Fix: --model_name_or_path .*checkpoint-[45], or embedded:SmolLM2"
    ):
        load_tokenizer(load_recipe([path, "--model_name_or_path", str(run)], "grpo"))
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    interrupted("")
    grpo.main([path])
    assert f"resuming from {run / 'checkpoint-5'}" in log_lines(run)
    # A step generates once, which is one tick; the step after the stop, too, is one step's.
    assert [entry["time/generation"] for entry in metrics(run)] == [1.0] * 9
    if "use_peft" in changes:
        assert [entry["step"] for entry in metrics(run)] == list(range(1, 10))
        return
    grpo.main([path, "--output_dir", str(whole)])
    assert_same_run(run, whole)


def test_a_stop_amid_a_rollout_does_not_shift_the_later_ones(
    write_recipe: Callable[..., str], tmp_path: Path, interrupted: Callable[[str], None]
) -> None:
    """Two steps train on each rollout. Step 4 draws the rest of its rollout again, and the next
    rollout has the rows that it would have had.
    """

    def rollouts(run: Path) -> dict[str, list[str]]:
        tables = sorted((run / "completions").glob("*.parquet"))
        return {
            table.stem: sorted(pandas.read_parquet(table)["prompt"].astype(str)) for table in tables
        }

    path = write_recipe(
        "grpo", steps_per_generation=2, max_steps=8, save_steps=8, log_completions=True
    )
    grpo.main([path, "--output_dir", str(tmp_path / "whole")])
    interrupted("2")  # step 3, which the first reward call after steps 1 and 2 belongs to
    with pytest.raises(SystemExit):
        grpo.main([path])
    interrupted("")
    grpo.main([path])
    whole, run = rollouts(tmp_path / "whole"), rollouts(tmp_path / "run")
    assert list(whole) == [f"completions_0000{step}" for step in (1, 3, 5, 7)]
    assert run == {**whole, "completions_00004": whole["completions_00003"]}


def stopped(**settings: Any) -> tuple[Any, TrainerControl]:
    """Return the callback of a run that was asked to stop, and its orders after a step."""
    callback = callbacks.StopAndSave(SimpleNamespace(stop_requested=True))
    control = TrainerControl(should_evaluate=True)
    state = TrainerState(max_steps=9, num_input_tokens_seen=0)
    callback.on_step_begin(SimpleNamespace(**settings), state, control)
    callback.on_step_end(SimpleNamespace(**settings), state, control)
    return callback, control


@pytest.mark.parametrize("step", [3, 6])
def test_sft_resumes_as_if_never_stopped(
    write_recipe: Callable[..., str], tmp_path: Path, step: int
) -> None:
    path = write_recipe("sft", max_steps=8, save_steps=step)  # two steps an epoch
    sft.main([path, "--output_dir", str(tmp_path / "whole")])
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    for folder in (tmp_path / "run").glob("checkpoint-*"):
        if folder.name != f"checkpoint-{step}":
            shutil.rmtree(folder)
    unfinished(tmp_path / "run")
    sft.main([path])
    assert_same_run(tmp_path / "run", tmp_path / "whole")


# In a process of its own, which can be killed


@pytest.fixture
def launch(write_recipe: Callable[..., str]) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts a recipe as a user would, in a process group of its own as a terminal does, and slow
    enough to be caught.
    """
    started: list[subprocess.Popen] = []

    def start(*words: str, method: str = "grpo") -> subprocess.Popen:
        environment = {
            **os.environ,
            "R1_TEST_SLEEP": "0.25",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        }
        command = [sys.executable, "-m", f"r1_recipes.{method}", *words]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def send_at_step(*wanted: tuple[subprocess.Popen, Path, int, int]) -> None:
    """Send each process's group its signal as soon as its run has logged the step."""
    deadline, pending = time.monotonic() + 300, list(wanted)
    while pending:
        assert time.monotonic() < deadline, f"not reached: {pending}"
        for process, run, step, number in list(pending):
            if (run / "metrics.jsonl").exists() and any(
                entry["step"] >= step for entry in metrics(run)
            ):
                os.killpg(process.pid, number)
                pending.remove((process, run, step, number))
            else:
                assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


@pytest.mark.e2e
def test_kill_and_ctrl_c_of_the_whole_process_group(
    write_recipe: Callable[..., str], launch: Callable[[str], subprocess.Popen], tmp_path: Path
) -> None:
    # accuracy has worker processes of its own, which a terminal's Ctrl-C reaches too.
    changes = {"max_steps": STEPS, "reward_funcs": ["tests.conftest:letters", "accuracy"]}
    killed_run, stopped_run, whole = tmp_path / "killed", tmp_path / "stopped", tmp_path / "whole"
    killed_path = write_recipe("grpo", name="killed", output_dir=str(killed_run), **changes)
    stopped_path = write_recipe("grpo", name="stopped", output_dir=str(stopped_run), **changes)
    killed, stopped = launch(killed_path), launch(stopped_path)

    send_at_step((killed, killed_run, 5, signal.SIGKILL), (stopped, stopped_run, 3, signal.SIGINT))
    assert killed.wait() == -signal.SIGKILL
    errors = stopped.communicate(timeout=60)[1]
    assert stopped.returncode == 130, errors
    assert "stopping after this step, with a checkpoint" in errors and "Traceback" not in errors
    step = metrics(stopped_run)[-1]["step"]
    assert (stopped_run / f"checkpoint-{step}").is_dir() and 3 <= step < STEPS

    # A second victim: what was killed while it wrote its last checkpoint.
    torn_run = tmp_path / "torn"
    shutil.copytree(killed_run, torn_run)
    torn_path = write_recipe("grpo", name="killed", output_dir=str(torn_run), **changes)
    newest = int(checkpoints.newest_intact(killed_run).name.removeprefix("checkpoint-"))
    before = newest - 2
    os.truncate(torn_run / f"checkpoint-{newest}" / "model.safetensors", 4000)
    with (torn_run / "metrics.jsonl").open("a") as sink:
        sink.write('{"step": 7, "lo')  # as the power went

    grpo.main([torn_path])
    lines = log_lines(torn_run)
    assert any(
        f"checkpoint-{newest} is damaged (model.safetensors has 4000 bytes" in line
        for line in lines
    )
    assert f"resuming from {torn_run / f'checkpoint-{before}'}" in lines
    killed_path = write_recipe("grpo", name="killed", output_dir=str(killed_run), **changes)
    grpo.main([killed_path])
    assert f"resuming from {killed_run / f'checkpoint-{newest}'}" in log_lines(killed_run)
    grpo.main([stopped_path])
    assert f"resuming from {stopped_run / f'checkpoint-{step}'}" in log_lines(stopped_run)

    grpo.main([write_recipe("grpo", name="whole", output_dir=str(whole), **changes)])
    for run in (killed_run, torn_run, stopped_run):
        assert_same_run(run, whole)


@pytest.mark.e2e
def test_sft_killed_in_mid_run_ends_as_if_it_never_was(
    write_recipe: Callable[..., str], launch: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    killed_run, whole = tmp_path / "killed", tmp_path / "whole"
    # Two steps an epoch and some milliseconds each: long enough to be caught in mid-run.
    changes = {"max_steps": 400, "save_steps": 20, "save_total_limit": 2}
    path = write_recipe("sft", name="killed", output_dir=str(killed_run), **changes)
    process = launch(path, method="sft")
    send_at_step((process, killed_run, 50, signal.SIGKILL))
    assert process.wait() == -signal.SIGKILL
    assert not (killed_run / "model.safetensors").exists()

    sft.main([path])
    assert any(
        line.startswith(f"resuming from {killed_run / 'checkpoint-'}")
        for line in log_lines(killed_run)
    )
    sft.main([write_recipe("sft", name="whole", output_dir=str(whole), **changes)])
    assert_same_run(killed_run, whole)


@pytest.mark.e2e
def test_two_commands_in_one_folder_and_an_orphan(
    write_recipe: Callable[..., str], launch: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    path = write_recipe("grpo", max_steps=STEPS)
    first, second = launch(path), launch(path)
    # Whichever was there first trains; the other one is told about it.
    errors = [process.communicate(timeout=120)[1] for process in (first, second)]
    assert sorted(process.returncode for process in (first, second)) == [0, 2], errors
    (winner,) = (process.pid for process in (first, second) if process.returncode == 0)
    (told,) = (line for text in errors for line in text.splitlines() if line.startswith("error: "))
    assert f"{run}: another process is writing into this folder (process {winner} on " in told
    assert [entry["step"] for entry in metrics(run)] == list(range(1, STEPS + 1))


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_by_signal_saves(
    write_recipe: Callable[..., str],
    launch: Callable[..., subprocess.Popen],
    tmp_path: Path,
    number: int,
) -> None:
    path = write_recipe("grpo", max_steps=STEPS)
    process = launch(path)
    send_at_step((process, tmp_path / "run", 3, number))
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130, errors
    step = metrics(tmp_path / "run")[-1]["step"]
    assert (
        step < STEPS
        and checkpoints.manifest_mismatch(tmp_path / "run" / f"checkpoint-{step}") is None
    )
