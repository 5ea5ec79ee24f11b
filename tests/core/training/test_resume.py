"""Runs that are stopped or killed go on as if nothing had happened; one folder holds one run.

``python -m tests.faults`` kills at random moments.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pandas
import pytest

from r1_recipes import grpo, sft
from r1_recipes.common import files
from r1_recipes.recipe import load_recipe
from r1_recipes.training.run_folder import open_run
from tests.conftest import REPOSITORY, log_lines, metrics
from tests.support.same_run import assert_same_run, figures

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("offline")]
MAIN = {"grpo": grpo.main, "sft": sft.main}


def exit_of(method, *words):
    with pytest.raises(SystemExit) as ended:
        MAIN[method](list(words))
    return ended.value.code


# In this process: Ctrl-C comes from the reward


@pytest.mark.parametrize(
    "changes",
    [
        # Four steps an epoch: step 5 is in the second one, whose order of rows no checkpoint holds.
        {},
        {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2, "beta": 0.1},
        {"unfrozen_parameters": [r"layers\.1\."], "gradient_checkpointing": True},
        {"use_peft": True, "lora_r": 4, "lora_target_modules": ["q_proj", "v_proj"]},
    ],
    ids=["epochs", "accumulation", "unfrozen", "lora"],
)
def test_ctrl_c_saves_and_the_same_command_resumes(
    write_recipe, tmp_path, interrupted, capfd, changes
):
    path = write_recipe("grpo", max_steps=9, save_steps=4, **changes)
    run, whole = tmp_path / "run", tmp_path / "whole"
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    interrupted("5")
    assert exit_of("grpo", path) == 130
    assert "stopping after this step, with a checkpoint" in capfd.readouterr().err
    # The step it was in is not one that save_steps would save.
    assert {folder.name for folder in run.glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-5"}
    assert log_lines(run)[-1] == "stopped at step 5. The same command resumes"
    assert not list(run.glob("*.safetensors"))
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    interrupted("")
    grpo.main([path])
    assert f"resuming from {run / 'checkpoint-5'}" in log_lines(run)
    grpo.main([path, "--output_dir", str(whole)])
    if "use_peft" in changes:
        assert figures(run) == figures(whole)
    else:
        assert_same_run(run, whole)


def test_a_stop_amid_a_rollout_does_not_shift_the_later_ones(write_recipe, tmp_path, interrupted):
    """Two steps train on each rollout. The next ones have the rows that they would have had."""

    def asked(run):
        tables = [run / "completions" / f"completions_{step:05d}.parquet" for step in (5, 6, 7, 8)]
        return [sorted(pandas.read_parquet(table)["prompt"].astype(str)) for table in tables]

    rollouts = {"steps_per_generation": 2, "max_steps": 8, "log_completions": True}
    path = write_recipe("grpo", save_steps=8, **rollouts)
    grpo.main([path, "--output_dir", str(tmp_path / "whole")])
    interrupted("2")  # step 3
    assert exit_of("grpo", path) == 130
    interrupted("")
    grpo.main([path])
    assert asked(tmp_path / "run") == asked(tmp_path / "whole")


def test_a_second_ctrl_c_stops_at_once(write_recipe, tmp_path, interrupted, monkeypatch):
    monkeypatch.setattr(
        "r1_recipes.training.callbacks.time.monotonic", iter(range(5, 999, 5)).__next__
    )
    interrupted("3,3")
    assert exit_of("grpo", write_recipe("grpo", save_steps=9)) == 130
    assert not list((tmp_path / "run").glob("checkpoint-*"))


@pytest.mark.parametrize("step", [3, 6])
def test_sft_resumes_as_if_never_stopped(write_recipe, tmp_path, step):
    path = write_recipe("sft", max_steps=8, save_steps=step)  # two steps an epoch
    sft.main([path, "--output_dir", str(tmp_path / "whole")])
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    unfinished(tmp_path / "run", step)
    sft.main([path])
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def unfinished(run, step):
    """As a kill after this step's checkpoint leaves a run."""
    for folder in run.glob("checkpoint-*"):
        if int(folder.name[11:]) > step:
            shutil.rmtree(folder)
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "finished": False}))


def test_a_run_that_lacks_its_last_save_alone_trains_no_further_step(write_recipe, tmp_path):
    path = write_recipe("grpo", max_steps=3, save_steps=1)
    grpo.main([path])
    shutil.copytree(tmp_path / "run", tmp_path / "whole")
    (tmp_path / "run" / "model.safetensors").unlink()
    unfinished(tmp_path / "run", 3)
    grpo.main([path])
    assert_same_run(tmp_path / "run", tmp_path / "whole")


# The folder


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory, tiny_model, sums):
    """A recipe whose run was killed after step 2 of 4, and its folder, to be copied."""
    folder = tmp_path_factory.mktemp("killed")
    keys = {"model_name_or_path": str(tiny_model), "dataset_name": str(sums), "mapper": "gsm8k"}
    keys |= {"reward_funcs": ["tests.conftest:letters", "cosine"], "num_generations": 2, "seed": 1}
    keys |= {"max_completion_length": 4, "per_device_train_batch_size": 4, "use_cpu": True}
    keys |= {"max_steps": 4, "save_steps": 1, "bf16": False, "report_to": "none", "lora_r": 8}
    keys |= {"disable_tqdm": True, "logging_steps": 1, "output_dir": str(folder / "run")}
    (folder / "tiny.yaml").write_text(json.dumps(keys))
    grpo.main([str(folder / "tiny.yaml")])
    shutil.copytree(folder / "run", folder / "finished")
    unfinished(folder / "run", 2)
    return folder


@pytest.fixture
def killed(run_of_two, tmp_path):
    """The recipe's path, and a copy of the run."""
    shutil.copytree(run_of_two / "run", tmp_path / "run")
    return str(run_of_two / "tiny.yaml"), tmp_path / "run"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lora_r", "4"),
        ("optim", "adafactor"),
        ("loss_type", "grpo"),
        ("cosine_max_len", "7"),
        ("max_completion_length", "5"),
        ("system_prompt", "Think."),
    ],
)
def test_a_key_that_defines_the_run_is_refused_by_name(killed, capsys, key, value):
    path, run = killed
    before = (run / "run.json").read_text()
    assert exit_of("grpo", path, "--output_dir", str(run), f"--{key}", value) == 2
    said = capsys.readouterr().err
    assert re.search(rf"error: output_dir {run}: .*{key} was .*, is .*Fix: the old values", said)
    assert (run / "run.json").read_text() == before


def test_other_runs_and_batches_are_refused(killed, write_recipe, capsys):
    path, run = killed
    where = ["--output_dir", str(run)]
    assert exit_of("sft", write_recipe("sft"), *where) == 2
    assert exit_of("grpo", path, *where, "--gradient_accumulation_steps", "2") == 2
    said = capsys.readouterr().err
    assert "method was 'grpo', is 'sft'" in said
    assert "gradient_accumulation_steps x processes was 4, is 8. Fix: the old values" in said


@pytest.mark.parametrize("name", ["trainer_state.json", "model.safetensors", "optimizer.pt"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_torn_checkpoint_is_named_and_skipped(killed, capsys, name, damage):
    if (name, damage) != ("trainer_state.json", "missing") and damage == "missing":
        pytest.skip("trainer_state.json is written last")
    path, run = killed
    file = run / "checkpoint-2" / name
    content = file.read_bytes()
    file.unlink()
    if damage == "cut":
        file.write_bytes(content[:-100])
    recipe = load_recipe([path, "--output_dir", str(run)], "grpo")
    assert open_run(recipe).checkpoint == run / "checkpoint-1"
    files.release()
    assert (run / "_torn-checkpoint-2").is_dir() and not (run / "checkpoint-2").exists()


def test_a_checkpoint_without_its_optimizer_is_refused(killed, capsys):
    path, run = killed
    (run / "checkpoint-2" / "scheduler.pt").unlink()
    assert exit_of("grpo", path, "--output_dir", str(run)) == 2
    assert "save_only_model: " in capsys.readouterr().err


def test_a_finished_run_is_not_changed(run_of_two, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(run_of_two / "finished", run)
    path, where = str(run_of_two / "tiny.yaml"), ["--output_dir", str(run)]

    def state():
        files = [file for file in run.rglob("*") if file.is_file() and file.name != "_lock"]
        return {file: file.read_bytes() for file in files}

    before = state()
    for more in ([], ["--max_steps", "3"], ["--learning_rate", "3e-5"]):
        assert exit_of("grpo", path, *where, *more) == 0
        assert f"already done: {run}" in capsys.readouterr().err
    assert exit_of("grpo", path, *where, "--seed", "3") == 2
    assert state() == before
    grpo.main([path, *where, "--max_steps", "5"])
    assert [entry["step"] for entry in metrics(run)] == [1, 2, 3, 4, 5]


# In processes of their own, which can be killed


def launched(path, method="grpo"):
    """Start a recipe as a terminal does, slow enough to be caught."""
    environment = {**os.environ, "R1_TEST_SLEEP": "0.25", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}"
    return subprocess.Popen(
        [sys.executable, "-m", f"r1_recipes.{method}", path],
        cwd=REPOSITORY,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_group_saves(write_recipe, tmp_path, number):
    # accuracy has worker processes of its own, which a terminal's Ctrl-C reaches too.
    run = tmp_path / "run"
    path = write_recipe("grpo", max_steps=12, reward_funcs=["tests.conftest:letters", "accuracy"])
    process = launched(path)
    try:
        deadline = time.monotonic() + 120
        while not ((run / "metrics.jsonl").exists() and len(metrics(run)) >= 3):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, number)
        errors = process.communicate(timeout=60)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130 and "Traceback" not in errors, errors
    step = metrics(run)[-1]["step"]
    assert 3 <= step < 12 and (run / f"checkpoint-{step}" / "trainer_state.json").is_file()
