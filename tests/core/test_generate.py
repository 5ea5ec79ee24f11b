"""Generation end to end: backends agree, a run killed at any moment goes on, servers that fail lose
nothing.
"""

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


def test_seeds_differ_and_stay_in_range():
    seeds = [sample_seed(1, index, sample) for index in range(100) for sample in range(4)]
    assert len(set(seeds)) == 400 and all(0 <= seed < 2**31 for seed in seeds)


def test_a_second_call_generates_nothing(recipe, tmp_path, monkeypatch):
    generate.main([recipe()])
    before = (tmp_path / "run" / "completions" / "shard-00000.jsonl").read_bytes()
    monkeypatch.setattr(
        "r1_recipes.generate.get_backend", lambda *args: pytest.fail("no model is needed any more")
    )
    generate.main([recipe()])
    assert (tmp_path / "run" / "completions" / "shard-00000.jsonl").read_bytes() == before


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


def test_a_refused_call_leaves_the_run_as_it_was(recipe, tmp_path):
    generate.main([recipe()])
    before = [(tmp_path / "run" / name).read_bytes() for name in ("run.json", "recipe.yaml")]
    for change in ({"max_samples": 5}, {"temperature": 0.5}):
        with pytest.raises(SystemExit):
            generate.main([recipe(**change)])
    assert [
        (tmp_path / "run" / name).read_bytes() for name in ("run.json", "recipe.yaml")
    ] == before


def test_other_weights_or_reference_answers_under_the_same_name_are_noticed(
    recipe, tmp_path, tiny_model, sums, capsys
):
    import shutil

    model, data = tmp_path / "model", tmp_path / "data.jsonl"
    shutil.copytree(tiny_model, model)
    shutil.copy(sums, data)
    path = recipe(model_name_or_path=str(model), dataset_name=str(data))
    generate.main([path])
    data.write_text(data.read_text().replace("#### 4", "#### 5"), encoding="utf-8")
    with pytest.raises(SystemExit):
        generate.main([path])
    assert (
        "holds completions of other rows, settings or weights than this run's (row 0)"
        in capsys.readouterr().err
    )
    shutil.copy(sums, data)
    os.utime(model / "model.safetensors")  # which says nothing
    generate.main([path])
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[:-4] + b"\x00" * 4)
    with pytest.raises(SystemExit):
        generate.main([path])
    assert f"started from the weights in {model}, which changed since" in capsys.readouterr().err


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


def test_other_code_of_a_reward_selects_anew(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    code = "def judge(completions, **columns):\n    return [{}] * len(completions)\n"
    (tmp_path / "judge_of_test.py").write_text(code.format(1.0))
    path = recipe(reward_funcs=["judge_of_test:judge"], keep={"correct": True})
    generate.main([path])
    kept = (tmp_path / "run" / "dataset" / "train.jsonl").read_text().splitlines()
    (tmp_path / "judge_of_test.py").write_text(code.format(0.5) + "# other\n")
    sys.modules.pop("judge_of_test")
    capsys.readouterr()
    with pytest.raises(SystemExit):  # no row is left
        generate.main([path])
    said = capsys.readouterr()
    assert kept and "already done" not in said.out and "selected again" in said.err


def test_rows_that_cannot_be_used_are_named_in_the_log_of_a_run_as_users_start_it(
    recipe, tmp_path, sums
):
    data = tmp_path / "data.jsonl"
    data.write_text(
        sums.read_text() + json.dumps({"question": "why?", "answer": "because"}) + "\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "r1_recipes.generate", recipe(dataset_name=str(data))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for text in (done.stderr, (tmp_path / "run" / "run.log").read_text()):
        assert (
            "8 of 9 rows kept; 1 dropped: no '#### NUMBER' in column 'answer' (first: row 8)"
            in text
        )


def test_few_shot_and_template_reach_the_model_and_not_the_data_set(recipe, tmp_path):
    turn = {"question": "1+1?", "reasoning": "1+1=2", "answer": "2"}
    generate.main(
        [
            recipe(
                few_shot=[turn],
                prompt_template="{question} Show steps in {x}, then verify. Gold {solution}.",
            )
        ]
    )
    prompt = stored(tmp_path / "run")[0]["prompt"]
    assert [m["role"] for m in prompt] == ["user", "assistant", "user"]
    record = stored(tmp_path / "run")[0]
    a, b = SUMS[record["index"]]
    # {x} is no column, so it stays; LaTeX braces must
    assert prompt[-1]["content"] == f"{a}+{b}? Show steps in {{x}}, then verify. Gold {a + b}."
    line = json.loads((tmp_path / "run" / "dataset" / "train.jsonl").read_text().splitlines()[0])
    assert line["question"] == "2+2?"


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment_it_finishes_with_no_row_lost_and_none_twice(recipe, tmp_path, seed):
    rng = random.Random(seed)
    with chat_server(
        lambda body, before: (
            time.sleep(rng.uniform(0.02, 0.1)),
            reply("<think>\nso\n</think>\n<answer>\n7\n</answer>"),
        )[1]
    ) as (
        url,
        seen,
    ):
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


def test_a_failed_row_is_stored_with_its_error_and_tried_again_on_request(
    recipe, tmp_path, monkeypatch, quick_retries, caplog
):
    broken = True

    def answer(body, before):
        return 500 if broken and body["messages"][-1]["content"] == "2+3?" else reply("fine")

    with chat_server(answer) as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        path = recipe(
            backend="openai", model_name_or_path="tiny", request_retries=1, reward_funcs=None
        )
        generate.main([path])
        records = {record["index"]: record for record in stored(tmp_path / "run")}
        assert (
            len(records) == 8
            and records[1]["error"].startswith("InternalServerError")
            and records[1]["completions"] == []
        )
        assert [record["error"] for index, record in records.items() if index != 1] == [None] * 7
        broken, asked = False, len(seen)
        generate.main([path])
        assert len(seen) == asked  # not unless told to
        generate.main([path, "--retry_failed", "true"])
        assert len(seen) == asked + 2
    assert texts(tmp_path / "run")[1] == ["fine", "fine"]


def test_rows_of_a_server_that_writes_rubbish_fail_and_the_others_do_not(
    recipe, tmp_path, monkeypatch, quick_retries
):
    def cut():
        answered = reply("4 and m")
        answered["choices"][0]["finish_reason"] = "abort"
        return answered

    def deep():
        answered = reply("4")
        answered["choices"][0]["message"]["reasoning_content"] = {"so": 1}
        return answered

    rubbish = {"2+3?": cut(), "2+5?": {"choices": []}, "9+5?": deep()}

    with chat_server(
        lambda body, before: rubbish.get(body["messages"][-1]["content"], reply("fine"))
    ) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        generate.main(
            [
                recipe(
                    backend="openai",
                    model_name_or_path="tiny",
                    request_retries=1,
                    reward_funcs=None,
                )
            ]
        )
    errors = {r["question"]: r["error"] for r in stored(tmp_path / "run")}
    assert {question for question, error in errors.items() if error} == set(rubbish) and len(
        errors
    ) == 8
    assert "finish_reason 'abort'" in errors["2+3?"] and "not a chat completion" in errors["2+5?"]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished"] is True


def test_a_server_that_refuses_everything_does_not_use_the_rows_up(
    recipe, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("r1_recipes.completions.openai.MAX_FAILURES_IN_A_ROW", 3)
    refusing = True
    with chat_server(lambda body, before: 400 if refusing else reply("fine")) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        path = recipe(
            backend="openai", model_name_or_path="tiny", generation_batch_size=1, reward_funcs=None
        )
        with pytest.raises(SystemExit) as stopped:
            generate.main([path])
        error = capsys.readouterr().err
        assert (
            stopped.value.code == 2
            and "3 rows failed in a row" in error
            and "BadRequestError" in error
        )
        assert stored(tmp_path / "run") == []
        refusing = False
        generate.main([path])
    assert texts(tmp_path / "run") == {index: ["fine", "fine"] for index in range(8)}


def test_a_prefill_that_the_server_s_template_writes_is_read_in_front(
    recipe, tmp_path, monkeypatch
):
    with chat_server(lambda body, before: reply("2 and 2\n</think>\n<answer>\n4\n</answer>")) as (
        url,
        _,
    ):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        settings = {
            "backend": "openai",
            "model_name_or_path": "tiny",
            "prefill": "<think>\n",
            "max_samples": 1,
        }
        generate.main([recipe(**settings, keep={"correct": True, "filters": {"malformed": True}})])
    (row,) = [
        json.loads(line)
        for line in (tmp_path / "run" / "dataset" / "train.jsonl").read_text().splitlines()
    ]
    assert row["response"] == "<think>\n2 and 2\n</think>\n<answer>\n4\n</answer>"


def test_reasoning_that_the_server_split_off_is_put_back(recipe, tmp_path, monkeypatch):
    def answer(body, before):
        answered = reply("<answer>\n4\n</answer>")
        answered["choices"][0]["message"]["reasoning_content"] = "2 and 2"
        return answered

    with chat_server(answer) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        generate.main([recipe(backend="openai", model_name_or_path="tiny", max_samples=1)])
    assert texts(tmp_path / "run")[0] == ["<think>\n2 and 2\n</think>\n<answer>\n4\n</answer>"] * 2


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


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"backend": "vllm"}, "vLLM is not installed"),
        ({"backend": "tgi"}, "unknown value 'tgi'"),
        ({"temperature": 0}, "temperature: 0 gives 2 identical completions"),
        ({"keep": {"correct": True}, "reward_funcs": None}, "need reward_funcs"),
        ({"backend": "openai"}, "OPENAI_BASE_URL: must start with"),
        ({"keep": {"best": 1}}, "unknown"),
        ({"learning_rate": 1e-5}, "unknown key 'learning_rate' for generate"),
        ({"prompt_template": "Solve."}, "{question}"),
        ({"top_p": 0}, "top_p: must be in (0, 1], got 0"),
        ({"repetition_penalty": 0}, "repetition_penalty: must be in (0, inf), got 0"),
        ({"load_in_4bit": True}, "load_in_4bit: no effect on generation"),
        ({"seed": "none"}, "seed"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused_by_name(
    recipe, capsys, monkeypatch, changes, message
):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    if changes.get("backend") == "vllm":
        import importlib.util

        found = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, *a: None if name == "vllm" else found(name, *a),
        )
    with pytest.raises(SystemExit) as stopped:
        generate.main([recipe(**changes)])
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_a_judge_that_sees_the_reference_answer_selects(recipe, tmp_path, monkeypatch, offline):
    """DeepSeek-R1, section 2.3.3: ground truth and prediction go to a model, which says what is
    right.
    """
    judge = {
        "model": "openai:judge",
        "scope": "full",
        "prompt": "{prompt}\nGold: {solution}\nSaid: {response}\nEnd with 'Score: x'.",
    }

    def answer(body, before):
        gold = body["messages"][0]["content"].split("\nGold: ")[1].split("\n")[0]
        return reply("Score: 1" if int(gold) % 2 else "Score: 0")

    with chat_server(answer) as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        generate.main(
            [
                recipe(
                    reward_funcs=["judge"],
                    reward_models={"judge": judge},
                    keep={"at_least": {"judge": 1}},
                )
            ]
        )
    rows = [
        json.loads(line)
        for line in (tmp_path / "run" / "dataset" / "train.jsonl").read_text().splitlines()
    ]
    golds = {record["columns"]["solution"] for record in stored(tmp_path / "run")}
    assert {row["solution"] for row in rows} == {gold for gold in golds if int(gold) % 2}
    assert {row["scores"] for row in rows} == {'{"judge": 1.0}'}
    assert seen and all(
        f"Gold: {gold}" in str([body["messages"] for body in seen]) for gold in golds
    )


def test_a_judge_needs_an_address_before_anything_is_generated(
    recipe, tmp_path, monkeypatch, capsys
):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(SystemExit) as ended:
        generate.main(
            [
                recipe(
                    reward_funcs=["judge"],
                    reward_models={
                        "judge": {"model": "openai:judge", "prompt": "Rate {response}."}
                    },
                )
            ]
        )
    assert ended.value.code == 2
    assert "OPENAI_BASE_URL: must start with" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
