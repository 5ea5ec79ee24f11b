"""A run that is interrupted goes on with the same command and ends as if nothing had happened; one folder holds one run."""

import os
import signal

import pytest

from conftest import PYTHON, metrics, read, recipe

CURVE = ("reward", "loss", "kl", "grad_norm", "learning_rate", "num_tokens")
SETTINGS = {"max_steps": 8, "save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "linear"}


def start(commands, lab, name, pause="0.4"):
    return commands.start([PYTHON, "-m", "r1_recipes.grpo", recipe(lab, name, **SETTINGS)], cwd=lab, env={"PAUSE": pause})


def steps(run):
    return len(metrics(run)) if (run / "metrics.jsonl").exists() else 0


@pytest.fixture(scope="module")
def whole(commands, lab):
    commands("grpo", recipe(lab, "whole", **SETTINGS), cwd=lab).ok()
    return lab / "whole"


@pytest.fixture(scope="module")
def same(whole, ask):
    """Whether a run ended with the steps, figures and weights of the run that was never stopped."""

    def same(run):
        ours, theirs = metrics(run), metrics(whole)
        assert [row["step"] for row in ours] == list(range(1, 9))
        for one, other in zip(ours, theirs, strict=True):
            assert [one[key] for key in CURVE] == pytest.approx([other[key] for key in CURVE], rel=1e-4, abs=1e-6), one["step"]
        assert (
            ask(
                """
            from safetensors.torch import load_file
            one, other = (load_file(folder + "/model.safetensors") for folder in data)
            answer = max(float((one[name] - other[name]).abs().max()) for name in one)""",
                [str(run), str(whole)],
            )
            < 1e-6
        )

    return same


@pytest.fixture(scope="module")
def interrupted(commands, lab):
    """A run that Ctrl-C ended between two checkpoints."""
    running, run = start(commands, lab, "interrupted"), lab / "interrupted"
    running.wait_for(lambda: steps(run) >= 3)
    running.signal(signal.SIGINT)
    result = running.result(60)
    return run, result, steps(run)


def test_ctrl_c_saves_and_the_same_command_goes_on(commands, lab, interrupted, same):
    run, result, reached = interrupted
    assert result.code not in (0, -9) and "Traceback" not in result.text, result.text[-2000:]
    assert 3 <= reached < 8
    newest = max(int(path.name.split("-")[1]) for path in run.glob("checkpoint-*"))
    assert newest >= 3  # more than the checkpoint of step 2
    before = read(run / "metrics.jsonl")
    commands("grpo", lab / "interrupted.yaml", cwd=lab).ok()
    assert read(run / "metrics.jsonl").startswith(before[:200])
    same(run)


def test_kill_9_loses_nothing(commands, lab, same):
    run, running = lab / "killed", start(commands, lab, "killed")
    running.wait_for(lambda: steps(run) >= 5)
    os.killpg(running.process.pid, signal.SIGKILL)
    assert running.result(60).code == -signal.SIGKILL
    assert not (run / "model.safetensors").exists()
    commands("grpo", lab / "killed.yaml", cwd=lab).ok()
    same(run)


def test_a_torn_checkpoint_is_left_out(commands, lab, same):
    run, running = lab / "torn_checkpoint", start(commands, lab, "torn_checkpoint")
    running.wait_for(lambda: steps(run) >= 5)
    os.killpg(running.process.pid, signal.SIGKILL)
    running.result(60)
    newest = max(run.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    commands("grpo", lab / "torn_checkpoint.yaml", cwd=lab).ok().says(newest.name)
    same(run)


def test_a_finished_run_is_not_trained_again(commands, lab, whole):
    def state():
        return [(whole / name).stat().st_mtime_ns for name in ("model.safetensors", "metrics.jsonl", "recipe.yaml", "run.json", "report.html")]

    before = state()
    commands("grpo", lab / "whole.yaml", cwd=lab).ok().says("whole")
    assert state() == before


def test_a_second_run_in_the_folder_is_refused(commands, lab):
    running, run = start(commands, lab, "shared", "4"), lab / "shared"
    running.wait_for(lambda: steps(run) >= 1)
    commands("grpo", lab / "shared.yaml", cwd=lab).refused("shared", running.process.pid)
    running.wait_for(lambda: steps(run) >= 3)  # the first one is not disturbed
    running.close()


REFUSED = {
    "another seed": ("seed", 2),
    "another reward": ("reward_funcs", "accuracy"),
    "another format": ("response_format", "boxed"),
    "another model": ("model_name_or_path", "./copy"),
}


@pytest.mark.parametrize("key, value", REFUSED.values(), ids=REFUSED)
def test_another_experiment_in_the_folder_is_refused(commands, lab, whole, key, value):
    commands("grpo", lab / "whole.yaml", f"--{key}", value, cwd=lab).refused("whole", key)


def test_a_typed_rate_is_taken_by_the_steps_that_remain(commands, lab):
    path = recipe(lab, "rate", max_steps=2, save_strategy="steps", save_steps=1)
    commands("grpo", path, cwd=lab).ok()
    commands("grpo", path, "--max_steps", 4, "--learning_rate", "3e-7", cwd=lab).ok().says("learning_rate")
    assert [row["learning_rate"] for row in metrics(lab / "rate")] == pytest.approx([1e-3, 1e-3, 3e-7, 3e-7])


def test_changed_rows_are_not_trained_on_in_silence(commands, lab):
    path, rows = recipe(lab, "edited", dataset_name="edited.jsonl", max_steps=2, save_strategy="steps", save_steps=1), lab / "edited.jsonl"
    rows.write_text(read(lab / "rows.jsonl"))
    commands("grpo", path, cwd=lab).ok()
    rows.write_text(read(rows).replace("What is 2", "What is 1"))
    result = commands("grpo", path, "--max_steps", 4, cwd=lab)
    assert result.says("edited.jsonl") and (result.code == 2 or "changed" in result.text)  # refused, or one line of warning
