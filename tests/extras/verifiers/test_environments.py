"""Environments of verifiers: their rows, what a completion scores, and which are refused.

``site`` is a substitute for the package. tests/elsewhere has the package itself.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sys
import textwrap
from pathlib import Path

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import get_mapper, load_rows
from r1_recipes.data.load import load_dataset
from r1_recipes.extras.verifiers import environment, reward, rows
from r1_recipes.models.tokenizer import recipe_format
from r1_recipes.recipe import load_recipe
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.rewards.call import guarded, warn_once
from tests.conftest import REPOSITORY, metrics
from tests.support.environments import TASKSET

PAGE = REPOSITORY / "docs" / "howto_elsewhere.md"
HEAD = """
    import math
    import verifiers as vf
    from datasets import Dataset

    ROWS = Dataset.from_list([{"question": "1 + 1?", "answer": "2"}])


    def environment(*funcs, kind=vf.SingleTurnEnv, **keys):
        return kind(dataset=ROWS, system_prompt="Add.", rubric=vf.Rubric([*funcs], **keys))


    def text(completion):
        return completion[-1].content
"""


def snippet(language, name):
    (text,) = re.findall(rf"```{language} {name}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return text


@pytest.fixture
def install(tmp_path, monkeypatch):
    """``install("my_env", source)`` makes a module importable, beside the substitute."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "site")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(environment, "LOADED", {})
    monkeypatch.setattr("r1_recipes.extras.verifiers.reward.LOADED", environment.LOADED)
    warn_once.cache_clear()
    names = ["verifiers"]

    def write(name, source):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        importlib.invalidate_caches()
        names.append(name)

    yield write
    for module in [key for key in sys.modules if key.partition(".")[0] in names]:
        del sys.modules[module]


@pytest.fixture
def define(install):
    """``define("…")`` installs ``my_env`` with this ``load_environment``; return its row."""

    def write(body):
        install("my_env", textwrap.dedent(HEAD) + textwrap.dedent(body))
        return load_rows("verifiers:my-env", "train")["verifiers"][0]

    return write


def score(spec, *texts):
    (reward,) = get_reward_funcs(["verifiers"])
    return reward(completions=list(texts), verifiers=[spec] * len(texts))


def test_the_environment_of_the_page(install):
    install("sums", snippet("python", "sums.py"))
    config = {"largest": 3}
    rows = [
        get_mapper("auto", ["verifiers"])(row)
        for row in load_rows("verifiers:sums", "train", task_config=config)
    ]
    assert len(rows) == 9
    assert all(eval(row["question"].rstrip("?")) == int(row["solution"]) for row in rows)
    assert rows[0]["messages"][0]["content"] == r"Put the sum into \boxed{}."
    held_out = load_rows("verifiers:sums", "train[-2:]", task_config=config)["verifiers"]
    assert list(held_out) == [row["verifiers"] for row in rows[-2:]]
    right, wrong = (rf"\boxed{{{int(rows[0]['solution']) + more}}}" for more in (0, 1))
    assert score(rows[0]["verifiers"], right, wrong) == [1.0, 0.0]


def test_the_recipe_of_the_page_keeps_the_environment_s_prompt(install, tmp_path):
    install("sums", snippet("python", "sums.py"))
    path = tmp_path / "sums.yaml"
    path.write_text(snippet("yaml", "sums.yaml"), encoding="utf-8")
    recipe = load_recipe([str(path)], "grpo")
    rows, _ = load_dataset(recipe.script, recipe_format(recipe), "grpo", split="test")
    assert len(rows) == 64
    assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]
    assert rows[0]["prompt"][0]["content"] == r"Put the sum into \boxed{}."


def test_the_evaluation_set_is_the_split_test(define):
    define(
        """
        def load_environment(more=0):
            rows = Dataset.from_list([{"question": f"{n}?", "answer": "1"} for n in range(2 + more)])
            rubric = vf.Rubric([lambda: 1.0])
            return vf.SingleTurnEnv(dataset=ROWS, eval_dataset=rows, rubric=rubric)
        """
    )
    rows = load_rows("verifiers:my-env", "test", task_config={"more": 3})
    assert len(rows) == 5
    assert json.loads(rows["verifiers"][4])["row"]["question"] == "4?"


def test_weights_and_functions_that_await(define):
    spec = define(
        """
        import asyncio


        async def right(completion, answer):
            await asyncio.sleep(0.01)
            return text(completion) == answer


        def short(completion, state, question):
            assert state["answer"] == "2" and question == "1 + 1?"
            return len(text(completion)) < 2


        def load_environment():
            return environment(right, short, weights=[1.0, 0.25])
        """
    )
    assert score(spec, "2", "3", "20") == [1.25, 0.25, 0.0]
    assert score(spec, "2") == [1.25]  # the loop of the first batch is used again


def test_it_scores_in_a_thread_whose_loop_runs(define):
    spec = define("def load_environment(): return environment(lambda answer: float(answer))")

    async def later():
        return score(spec, "any")

    assert asyncio.run(later()) == score(spec, "any") == [2.0]


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("1 / 0", r"Error calling reward function fails: division by zero \(.*my_env.py:\d+\)"),
        ("len(text(completion))['x']", "'int' object is not subscriptable"),
        ("float('nan')", "the sum must be finite, got nan"),
        ("math.inf", "got inf"),
    ],
)
def test_a_function_that_fails_gives_no_reward_and_a_warning(define, caplog, value, cause):
    spec = define(
        f"""
        def fails(completion):
            return 1.0 if text(completion) == "good" else {value}


        def load_environment():
            return environment(fails)
        """
    )
    assert score(spec, "good", "bad", "good") == [1.0, None, 1.0]
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith("reward_funcs: verifiers: environment 'my-env': ")
    assert re.search(cause, message) and ". Fix: " in message


def test_a_function_that_exits_ends_nothing(define):
    spec = define(
        """
        def leaves(completion):
            raise SystemExit(3)


        def load_environment():
            return environment(leaves)
        """
    )
    errors = []
    reward = guarded("verifiers", get_reward_funcs(["verifiers"])[0], errors.append)
    assert reward(prompts=[[]], completions=["x"], verifiers=[spec]) == [None]
    assert errors == []


@pytest.mark.parametrize(
    ("body", "needed"),
    [
        ("environment(len, kind=vf.MultiTurnEnv)", "the turns of MultiTurnEnv"),
        ("environment(len, kind=vf.ToolEnv)", "the turns of ToolEnv"),
        ("environment(lambda completions: [1.0])", "other completions, which a reward function"),
    ],
)
def test_what_a_completion_alone_does_not_decide_is_refused(define, body, needed):
    with pytest.raises(RecipeError, match=f"dataset_name: verifiers:my-env: .*{needed}.* Fix: "):
        define(f"def load_environment(): return {body}")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"size": 3}, "unexpected keyword argument 'size'"),
        ({"fail": True}, r"KeyError: 'NO_KEY' \(.*my_env.py:\d+\)"),
    ],
)
def test_an_environment_that_cannot_be_made(define, config, problem):
    define(
        """
        def load_environment(fail=False):
            return {}["NO_KEY"] if fail else environment(len)
        """
    )
    with pytest.raises(RecipeError, match=f"dataset_name: verifiers:my-env fails: .*{problem}"):
        load_rows("verifiers:my-env", "train", task_config=config)


def test_a_missing_package_is_named(install, monkeypatch):
    with pytest.raises(RecipeError, match=r"no_such_env.*Fix: install verifiers"):
        load_rows("verifiers:owner/no-such-env", "train")
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(RecipeError, match=r"verifiers:sums fails: .*Fix: install verifiers"):
        load_rows("verifiers:sums", "train")


@pytest.mark.parametrize(
    ("split", "problem"),
    [
        ("test", "must be train, got 'test'. Fix: dataset_train_split: 'train"),
        ("train[a:]", "Unrecognized instruction format"),
    ],
)
def test_a_split_that_is_not_there(define, split, problem):
    define("def load_environment(): return environment(len)")
    with pytest.raises(RecipeError, match=re.escape(problem)):
        load_rows("verifiers:my-env", split)


def test_rows_without_an_environment_have_no_reward(define):
    examples = get_mapper("verifiers").examples
    assert score(examples[0]["verifiers"], "72") == score(None, "72") == [None]
    (reward,) = get_reward_funcs(["verifiers"])
    with pytest.raises(RecipeError, match="needs the column 'verifiers', which dataset_name"):
        reward(completions=["72"], solution=["72"])


def test_a_row_cannot_name_what_is_imported(install):
    install("evil", "raise SystemExit('imported')")
    spec = json.dumps({"environment": "evil", "arguments": "{}", "row": {}})
    with pytest.raises(RecipeError, match="a row names the environment 'evil'"):
        score(spec, "x")
    assert "evil" not in sys.modules


def test_a_taskset_of_v1(install):
    install("sum_tasks", TASKSET)
    rows = load_rows("verifiers:sum-tasks", "train[:2]", task_config={"largest": 4})["verifiers"]
    assert len(rows) == 2
    mapped = get_mapper("auto", ["verifiers"])({"verifiers": rows[1]})
    assert (mapped["question"], mapped["solution"]) == ("1 + 1?", "2")
    assert mapped["messages"][0] == {"role": "system", "content": "Write the sum alone."}
    assert score(rows[1], "2", "3") == [1.5, 0.5]


def test_a_task_that_fails_gives_no_reward_and_a_warning(install, caplog):
    install("sum_tasks", TASKSET)
    (row,) = load_rows("verifiers:sum-tasks", "train[:1]")["verifiers"]
    assert score(row, "a long answer", "1") == [None, 1.5]
    assert "ZeroDivisionError" in caplog.text and "Fix: " in caplog.text


@pytest.mark.parametrize(
    ("before", "after", "needed"),
    [
        ("class SumTask(vf.Task[SumData]):", "    NEEDS_CONTAINER = True", "a container"),
        ("class SumTask(vf.Task[SumData]):", "    async def setup(self, trace): 1", "setup"),
        ("class SumTask(vf.Task[SumData]):", "    async def finalize(self, trace): 1", "finalize"),
        ("class SumTask(vf.Task[SumData]):", "    toolsets = None", "tools"),
        (
            "class Sums(vf.Taskset[SumTask, SumConfig]):",
            "    toolsets = None",
            "tools of all tasks",
        ),
        ("class Sums(vf.Taskset[SumTask, SumConfig]):", "    INFINITE = True", "an end"),
        (
            "class SumTask(vf.Task[SumData]):",
            "    @vf.reward()\n    async def tests(self, trace, runtime): 1",
            "a runtime for tests",
        ),
    ],
)
def test_a_taskset_that_needs_more_is_refused(install, before, after, needed):
    install("sum_tasks", TASKSET.replace(before, f"{before}\n{after}"))
    with pytest.raises(RecipeError, match=f"verifiers:sum-tasks: .*: {needed}.*Fix: write a class"):
        load_rows("verifiers:sum-tasks", "train")


def test_a_taskset_with_agents_of_its_own_is_refused(install):
    own = 'class Pair(vf.SingleAgentEnv): 1\n\n\n__all__ = ["Sums", "Pair"]'
    install("sum_tasks", TASKSET.replace('__all__ = ["Sums"]', own))
    with pytest.raises(RecipeError, match="agents of its own"):
        load_rows("verifiers:sum-tasks", "train")


def test_a_key_that_a_taskset_does_not_have_is_named(install):
    install("sum_tasks", TASKSET)
    with pytest.raises(RecipeError, match=r"smallest Extra inputs .* input_value=3.*Fix: "):
        load_rows("verifiers:sum-tasks", "train", task_config={"smallest": 3})


@pytest.mark.e2e
def test_a_run_trains_on_an_environment(install, write_recipe, tmp_path, monkeypatch):
    install("sums", snippet("python", "sums.py"))
    path = write_recipe(
        "grpo",
        dataset_name="verifiers:sums",
        mapper="auto",
        task_config={"largest": 4},
        reward_funcs=["verifiers", "tests.conftest:letters"],
        max_steps=2,
    )
    importlib.import_module("r1_recipes.grpo").main([path])
    assert all("rewards/verifiers/mean" in entry for entry in metrics(tmp_path / "run"))


def test_a_row_that_only_looks_like_one_of_the_environment_is_refused(define):
    """Of a mixture, another part may hold rows with tests or answers of their own."""
    spec = json.loads(
        define(
            """
            def right(completion, answer):
                return text(completion) == answer


            def load_environment():
                return environment(right)
            """
        )
    )
    spec["row"]["answer"] = "anything"
    with pytest.raises(RecipeError, match="which did not make it"):
        score(json.dumps(spec), "anything")


def test_a_judge_that_never_answers_gives_no_reward(define, monkeypatch, caplog):
    spec = define(
        """
        import asyncio


        async def waits(completion):
            await asyncio.sleep(3600)


        def load_environment():
            return environment(waits)
        """
    )
    monkeypatch.setattr(reward, "SECONDS", 0.05)
    warn_once.cache_clear()
    assert score(spec, "2") == [None]
    assert "TimeoutError" in caplog.text


def test_an_environment_without_a_seed_draws_alike_in_every_process(define, monkeypatch):
    body = """
        import random


        def load_environment():
            rows = [{"question": f"{random.random()}?", "answer": ""} for _ in range(3)]
            return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric([len]))
        """
    first = define(body)
    environment.LOADED.clear()
    assert load_rows("verifiers:my-env", "train")["verifiers"][0] == first
    monkeypatch.setattr(rows.processes, "gather", lambda items: [*items, b"another process's"])
    with pytest.raises(RecipeError, match="the processes got different rows"):
        load_rows("verifiers:my-env", "train")
