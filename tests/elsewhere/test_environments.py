"""Environments of verifiers as a source of rows and as a reward, with verifiers itself."""

from __future__ import annotations

import importlib
import json
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import get_mapper, load_rows
from r1_recipes.rewards import get_reward_funcs
from tests.support.environments import TASKSET

PAGE = Path(__file__).parents[2] / "docs" / "howto_elsewhere.md"
(SUMS,) = re.findall(r"```python sums.py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
OTHERS = """
import verifiers as vf
from datasets import Dataset

ROWS = Dataset.from_list([{"question": "1 + 1?", "answer": "2", "info": {"limit": 3}}])


async def right(completion, answer, **more):
    return completion[-1]["content"] == answer


def short(completion, info):
    return 1 / (len(completion[-1].content) < info["limit"])


def alike(completions):
    return [1.0] * len(completions)


def search(word: str) -> str:
    return word


def load_environment(kind="single"):
    rubric = vf.Rubric(funcs=[right, short], weights=[1.0, 0.25])
    if kind == "tools":
        return vf.ToolEnv(tools=[search], dataset=ROWS, rubric=rubric)
    if kind == "group":
        return vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[alike]))
    if kind == "envs":
        return vf.EnvGroup([vf.SingleTurnEnv(dataset=ROWS, rubric=rubric)])
    if kind == "maths":
        return vf.SingleTurnEnv(dataset=ROWS, rubric=vf.MathRubric())
    return vf.SingleTurnEnv(eval_dataset=ROWS, rubric=rubric)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, name, raising=False)

    return write


def score(spec: str, *texts: str) -> list[float | None]:
    (reward,) = get_reward_funcs(["verifiers"])
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    return reward(completions=messages, verifiers=[spec] * len(texts))


def test_the_environment_of_the_page(install: Callable[[str, str], None]) -> None:
    install("sums", SUMS)
    rows = load_rows("verifiers:sums", "train[-4:]", task_config={"largest": 3})["verifiers"]
    mapped = get_mapper("auto", ["verifiers"])({"verifiers": rows[0]})
    assert mapped["messages"][0] == {"role": "system", "content": r"Put the sum into \boxed{}."}
    assert eval(mapped["question"].rstrip("?")) == int(mapped["solution"])
    right = rf"It is \boxed{{{mapped['solution']}}}."
    assert len(rows) == 4 and score(rows[0], right, r"\boxed{100}") == [1.0, 0.0]


def test_weights_info_and_an_error(
    install: Callable[[str, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    install("other_sums", OTHERS)
    (row,) = load_rows("verifiers:other-sums", "test")["verifiers"]
    assert json.loads(row)["row"]["info"] == {"limit": 3}
    assert score(row, "2", "3", "too long") == [1.25, 0.25, None]
    assert "Error calling reward function short: division by zero" in caplog.text
    with pytest.raises(RecipeError, match="must be test, got 'train'"):
        load_rows("verifiers:other-sums", "train")


def test_a_rubric_with_a_process_of_its_own(install: Callable[[str, str], None]) -> None:
    install("other_sums", OTHERS)
    (row,) = load_rows("verifiers:other-sums", "train", task_config={"kind": "maths"})["verifiers"]
    assert score(row, r"\boxed{4/2}", r"\boxed{3}") == [1.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "needed"),
    [("tools", "the turns of ToolEnv"), ("envs", "EnvGroup"), ("group", "other completions")],
)
def test_what_is_refused(install: Callable[[str, str], None], kind: str, needed: str) -> None:
    install("other_sums", OTHERS)
    with pytest.raises(RecipeError, match=f"dataset_name: verifiers:other-sums: .*{needed}"):
        load_rows("verifiers:other-sums", "train", task_config={"kind": kind})


def test_a_taskset(install: Callable[[str, str], None], caplog: pytest.LogCaptureFixture) -> None:
    install("sum_tasks", TASKSET)
    rows = load_rows("verifiers:sum-tasks", "train[:2]", task_config={"largest": 4})["verifiers"]
    mapped = get_mapper("auto", ["verifiers"])({"verifiers": rows[1]})
    assert (mapped["question"], mapped["solution"]) == ("1 + 1?", "2")
    assert score(rows[1], "2", "3", "a long answer") == [1.5, 0.5, None]
    assert "division by zero" in caplog.text
    with pytest.raises(RecipeError, match="smallest Extra inputs are not permitted"):
        load_rows("verifiers:sum-tasks", "train", task_config={"smallest": 3})


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("    NEEDS_CONTAINER = True", "a container"),
        ("    async def setup(self, trace, runtime): ...", "setup"),
        ("    @vf.reward\n    async def tests(self, trace, runtime): ...", "a runtime for tests"),
    ],
)
def test_a_taskset_that_is_refused(
    install: Callable[[str, str], None], line: str, needed: str
) -> None:
    head = "class SumTask(vf.Task[SumData]):"
    install("sum_tasks", TASKSET.replace(head, f"{head}\n{line}"))
    with pytest.raises(RecipeError, match=f"verifiers:sum-tasks: .*: {needed}"):
        load_rows("verifiers:sum-tasks", "train", task_config={"largest": 9})


def test_nothing_imports_torch() -> None:
    assert "torch" not in sys.modules
