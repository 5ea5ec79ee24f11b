"""Generation end to end: a run killed at any moment goes on, servers that fail lose nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
import yaml

from r1_recipes import generate
from r1_recipes.completions.types import sample_seed
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
    """Every record of every shard, as it stands there."""
    return [
        json.loads(line)
        for path in sorted((run / "completions").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def texts(run):
    return {record["index"]: [c["text"] for c in record["completions"]] for record in stored(run)}


@pytest.fixture
def quick_retries(monkeypatch):
    import openai._base_client as client

    for name in ("INITIAL_RETRY_DELAY", "MAX_RETRY_DELAY"):
        monkeypatch.setattr(client, name, 0.01)


def test_every_row_gets_its_completions_and_a_data_set(recipe, tmp_path, capsys, offline):
    generate.main([recipe()])
    run = tmp_path / "run"
    records = stored(run)
    assert Counter(r["index"] for r in records) == dict.fromkeys(range(8), 1)
    for record, (a, b) in zip(sorted(records, key=lambda r: r["index"]), SUMS, strict=True):
        assert (
            record["question"] == f"{a}+{b}?"
            and record["columns"]["solution"] == str(a + b)
            and record["error"] is None
        )
        assert len(record["completions"]) == 2 and all(
            1 <= c["tokens"] <= 8 for c in record["completions"]
        )
    from r1_recipes.data import load_rows

    rows = load_rows(str(run / "dataset"), "train")
    assert rows["question"] == [f"{a}+{b}?" for a, b in SUMS for _ in range(2)]
    assert json.loads((run / "run.json").read_text())["finished"] is True
    assert "dataset:" in capsys.readouterr().out


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
        ({"system_prompt": "Think."}, "system_prompt: '' then, 'Think.' now"),
        (
            {"max_samples": 5},
            "holds completions of other rows, settings or weights than this run's (row 5)",
        ),
        ({"temperature": 0.5}, "temperature: None then, 0.5 now"),
        ({"num_generations": 3}, "num_generations: 2 then, 3 now"),
        ({"max_completion_length": 9}, "max_completion_length: 8 then, 9 now"),
        ({"top_p": 0.9}, "top_p: None then, 0.9 now"),
        ({"prefill": "<think>"}, "prefill: None then, '<think>' now"),
        (
            {"few_shot": [{"question": "1?", "reasoning": "1", "answer": "1"}]},
            "few_shot: None then",
        ),
    ],
)
def test_stored_completions_of_another_question_are_refused(
    recipe, tmp_path, capsys, change, message
):
    generate.main([recipe()])
    with pytest.raises(SystemExit) as stopped:
        generate.main([recipe(**change)])
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_other_rules_select_anew_from_what_is_stored(recipe, tmp_path, monkeypatch, capsys):
    generate.main([recipe()])
    monkeypatch.setattr(
        "r1_recipes.generate.get_backend", lambda *args: pytest.fail("no model is needed any more")
    )
    generate.main([recipe(keep={"best_of": 1}, reward_funcs=["format"])])
    assert len((tmp_path / "run" / "dataset" / "train.jsonl").read_text().splitlines()) == 8
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished"] is True
    capsys.readouterr()
    generate.main([recipe(keep={"best_of": 1}, reward_funcs=["format"])])
    assert "already done" in capsys.readouterr().out


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_moment_it_finishes_with_no_row_lost_and_none_twice(recipe, tmp_path, seed):
    rng = random.Random(seed)
    with chat_server(
        lambda body, before: (
            time.sleep(rng.uniform(0.02, 0.1)),
            reply("<think>\nso\n</think>\n<answer>\n7\n</answer>"),
        )[1]
    ) as (url, seen):
        path = recipe(backend="openai", model_name_or_path="tiny", generation_batch_size=2)
        environment = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "secret-key"}
        command = [sys.executable, "-m", "r1_recipes.generate", path]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        shard = tmp_path / "run" / "completions" / "shard-00000.jsonl"
        wanted = rng.randint(1, 5)
        deadline = time.monotonic() + 120
        while not shard.exists() or shard.read_bytes().count(b"\n") < wanted:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        before = (
            [record["index"] for record in stored(tmp_path / "run")]
            if shard.read_bytes().endswith(b"\n")
            else None
        )
        asked = len(seen)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    records = stored(tmp_path / "run")
    assert Counter(record["index"] for record in records) == dict.fromkeys(range(8), 1)
    assert all(len(record["completions"]) == 2 for record in records)
    if before is not None:
        assert [record["index"] for record in records][: len(before)] == before
        # what was stored is not asked for again: 2 requests a row that was missing
        assert len(seen) - asked == 2 * (8 - len(before))
    assert (
        "secret-key" not in done.stderr + done.stdout + (tmp_path / "run" / "run.log").read_text()
    )


def test_a_server_that_fails_hangs_and_cuts_loses_nothing(
    recipe, tmp_path, monkeypatch, quick_retries
):
    """Every first try of a request goes wrong in one of three ways; the second is answered."""
    ways = [500, "cut", 1.5]

    def answer(body, before):
        return (
            reply(f"{body['messages'][-1]['content']} {body['seed']}")
            if before
            else ways[body["seed"] % 3]
        )

    with chat_server(answer) as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        generate.main(
            [
                recipe(
                    backend="openai",
                    model_name_or_path="tiny",
                    request_timeout=0.5,
                    reward_funcs=None,
                )
            ]
        )
    assert {body["seed"] % 3 for body in seen} == {0, 1, 2}  # each way came up
    expected = {
        i: [f"{a}+{b}? {sample_seed(1, i, sample)}" for sample in range(2)]
        for i, (a, b) in enumerate(SUMS)
    }
    assert texts(tmp_path / "run") == expected


def test_ctrl_c_says_what_is_stored(recipe, tmp_path, monkeypatch, caplog):
    # A test run that a shell started in the background ignores SIGINT; what a terminal starts does
    # not.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _interrupt(recipe, tmp_path, monkeypatch, caplog)
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(recipe, tmp_path, monkeypatch, caplog):
    def answer(body, before):
        if body["messages"][-1]["content"] == "9+7?":
            os.kill(os.getpid(), signal.SIGINT)
            return 5.0
        return reply("fine")

    with chat_server(answer) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        with pytest.raises(SystemExit) as stopped:
            generate.main(
                [
                    recipe(
                        backend="openai",
                        model_name_or_path="tiny",
                        generation_batch_size=1,
                        reward_funcs=None,
                    )
                ]
            )
    assert stopped.value.code == 130
    assert f"stopped with {len(stored(tmp_path / 'run'))} rows stored" in caplog.text
