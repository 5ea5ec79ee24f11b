"""Generation end to end: a run killed at any moment resumes, servers that fail lose nothing."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
import yaml

from r1_recipes import generate
from r1_recipes.common import chat_client
from tests.conftest import SUMS
from tests.support.chat_server import chat_server, reply

pytestmark = pytest.mark.slow


@pytest.fixture
def recipe(tmp_path, tiny_model, sums):
    """``recipe(key=value)`` writes a generation recipe on the eight sums and gives its path."""

    def write(**changes):
        settings = {
            "model_name_or_path": str(tiny_model),
            "dataset_name": str(sums),
            "mapper": "gsm8k",
            "response_format": "think_answer",
            "system_prompt": "",
            "dtype": "float32",
            "use_cpu": True,
            "num_generations": 2,
            "max_completion_length": 8,
            "generation_batch_size": 4,
            "reward_funcs": ["accuracy"],
            "output_dir": str(tmp_path / "run"),
            "seed": 1,
        }
        path = tmp_path / "tiny.yaml"
        path.write_text(
            yaml.safe_dump({k: v for k, v in {**settings, **changes}.items() if v is not None}),
            encoding="utf-8",
        )
        return str(path)

    return write


def stored(run):
    """The record of each row; the first line says what made them."""
    lines = (run / "completions" / "completions.jsonl").read_text().splitlines()[1:]
    return [json.loads(line) for line in lines]


def texts(run):
    return {record["index"]: [c["text"] for c in record["completions"]] for record in stored(run)}


def made(run):
    lines = (run / "dataset" / "train.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def quick_retries(monkeypatch):
    import openai._base_client as client

    for name in ("INITIAL_RETRY_DELAY", "MAX_RETRY_DELAY"):
        monkeypatch.setattr(client, name, 0.01)


def test_the_same_seed_gives_the_same_completions_another_seed_others(recipe, tmp_path):
    generate.main([recipe()])
    first = texts(tmp_path / "run")
    generate.main([recipe(output_dir=str(tmp_path / "again"))])
    generate.main([recipe(output_dir=str(tmp_path / "other"), seed=2)])
    assert texts(tmp_path / "again") == first
    assert texts(tmp_path / "other") != first


@pytest.mark.parametrize(
    "change, message",
    [
        ({"system_prompt": "Think."}, "other rows"),
        ({"num_generations": 3}, "plans: [[1.0, 2]] then, [[1.0, 3]] now"),
        ({"top_p": 0.9}, "top_p"),
        ({"max_samples": 5, "dataset_train_split": "train[1:]"}, "other rows"),
    ],
)
def test_stored_completions_of_another_question_are_refused(
    recipe, tmp_path, capsys, change, message
):
    generate.main([recipe()])
    with pytest.raises(SystemExit) as stopped:
        generate.main([recipe(**change)])
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_other_rules_select_anew_from_what_is_stored(recipe, tmp_path, monkeypatch):
    generate.main([recipe()])
    monkeypatch.setattr(
        "r1_recipes.generation.get_generator", lambda *args: pytest.fail("no model is needed")
    )
    generate.main([recipe(keep={"best_of": 1}, reward_funcs=["format"])])
    assert len(made(tmp_path / "run")) == 8
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished"] is True


def test_completions_of_weights_that_have_changed_are_refused(recipe, tiny_model, tmp_path, capsys):
    model = shutil.copytree(tiny_model, tmp_path / "stage")
    path = recipe(model_name_or_path=str(model))
    generate.main([path])
    with pytest.raises(SystemExit) as done:
        generate.main([path])
    assert done.value.code == 0  # nothing has changed
    later = time.time() + 1
    os.utime(model / "model.safetensors", (later, later))
    with pytest.raises(SystemExit) as stopped:
        generate.main([path])
    assert stopped.value.code == 2 and "weights" in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_moment_it_finishes_with_no_row_lost_and_none_twice(recipe, tmp_path, seed):
    rng = random.Random(seed)

    def answer(body, before):
        time.sleep(rng.uniform(0.02, 0.1))
        return reply("<think>\nso\n</think>\n<answer>\n7\n</answer>")

    with chat_server(answer) as (url, seen):
        # A part is eight batches: of one row with two completions, four rows.
        path = recipe(backend="openai", model_name_or_path="tiny", generation_batch_size=1)
        environment = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "secret-key"}
        command = [sys.executable, "-m", "r1_recipes.generate", path]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        file = tmp_path / "run" / "completions" / "completions.jsonl"
        deadline = time.monotonic() + 120
        while not seen or len(seen) < rng.randint(3, 15):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        before = file.read_bytes().count(b"\n") - 1
        asked = len(seen)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    records = stored(tmp_path / "run")
    assert Counter(record["index"] for record in records) == dict.fromkeys(range(8), 1)
    assert all(len(record["completions"]) == 2 for record in records)
    # what was stored is not asked for again: 2 requests a row that was missing
    assert len(seen) - asked == 2 * (8 - before)
    log = (tmp_path / "run" / "run.log").read_text()
    assert "secret-key" not in done.stderr + done.stdout + log


def test_a_server_that_fails_hangs_and_cuts_loses_nothing(
    recipe, tmp_path, monkeypatch, quick_retries
):
    """Every first try of a request goes wrong in one of three ways; the second is answered."""
    ways = [500, "cut", 1.5]

    def answer(body, before):
        said = body["messages"][-1]["content"]
        return reply(f"{said} {body['seed']}") if before else ways[body["seed"] % 3]

    with chat_server(answer) as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        changes = {"model_name_or_path": "tiny", "reward_funcs": None}
        monkeypatch.setattr(chat_client, "TIMEOUT", 0.2)
        generate.main([recipe(backend="openai", **changes)])
    assert {body["seed"] % 3 for body in seen} == {0, 1, 2}  # each way came up
    found = texts(tmp_path / "run")
    assert len({text for group in found.values() for text in group}) == 16  # own seeds
    for index, (a, b) in enumerate(SUMS):
        assert all(text.startswith(f"{a}+{b}? ") for text in found[index])


def test_a_row_that_a_teacher_refuses_is_a_warning(recipe, tmp_path, monkeypatch, caplog):
    def answer(body, before):
        return 400 if body["messages"][-1]["content"] == "9+7?" else reply("fine")

    with chat_server(answer) as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        path = recipe(backend="openai", model_name_or_path="tiny", reward_funcs=None)
        generate.main([path])
        assert "the server refuses 2 of 16 requests: BadRequestError" in caplog.text
        assert len(made(tmp_path / "run")) == 14
        assert texts(tmp_path / "run")[5] == ["", ""]
        asked = len(seen)
        with contextlib.suppress(SystemExit):
            generate.main([path])
        assert len(seen) == asked  # the same command asks for nothing


def test_a_server_that_is_down_is_named(recipe, monkeypatch, capsys, quick_retries):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(SystemExit):
        generate.main([recipe(backend="openai", model_name_or_path="tiny")])
    assert "the server at http://127.0.0.1:9/v1 fails: " in capsys.readouterr().err


def test_ctrl_c_says_that_it_resumes(recipe, tmp_path, monkeypatch, capsys):
    pressed = threading.Lock()

    def answer(body, before):
        if body["messages"][-1]["content"] == "9+7?":  # asked twice
            if pressed.acquire(blocking=False):
                os.kill(os.getpid(), signal.SIGINT)
            return 5.0
        return reply("fine")

    with chat_server(answer) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        path = recipe(backend="openai", model_name_or_path="tiny", reward_funcs=None)
        with pytest.raises(SystemExit) as stopped:
            generate.main([path])
    assert stopped.value.code == 130
    assert "The same command resumes from what is saved" in capsys.readouterr().err
