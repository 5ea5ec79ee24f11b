"""Which reward sees which rows, what comes back for the others, and what the logs say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from r1_recipes import grpo
from r1_recipes.common.errors import RecipeError
from r1_recipes.rewards.tasks import check_task_rewards, route

SEEN: list[dict[str, Any]] = []


def digits(
    completions: list, log_extra: Any = None, log_metric: Any = None, **columns: Any
) -> list[float | None]:
    """A reward that remembers what it was called with; a completion that is no number is not its to
    judge.
    """
    SEEN.append({"completions": completions, **columns})
    if log_extra is not None:
        log_extra("upper", [text.upper() for text in completions])
    if log_metric is not None:
        log_metric("digits/calls", 1.0)
    return [float(text) if text.isdecimal() else None for text in completions]


def ones(completions: list, **columns: Any) -> list[float]:
    return [1.0] * len(completions)


@pytest.fixture(autouse=True)
def forget() -> None:
    SEEN.clear()


def batch(tasks: list, completions: list[str], **columns: Any) -> dict[str, Any]:
    """A reward call as TRL makes it."""
    count = len(completions)
    return {
        "prompts": [f"p{i}" for i in range(count)],
        "completions": completions,
        "completion_ids": [[i] for i in range(count)],
        "task": tasks,
        "trainer_state": "state",
        **columns,
    }


def routed(task_rewards: dict, *funcs: Callable, column: str | None = None) -> list[Callable]:
    return route(list(funcs), [func.__name__ for func in funcs], task_rewards, column)


async def later(completions: list, **columns: Any) -> list[float]:
    return [2.0] * len(completions)


def test_a_reward_may_be_asynchronous_here_too() -> None:
    (reward,) = routed({"sum": ["later"], "talk": []}, later)
    assert reward(**batch(["sum", "sum"], ["1", "2"])) == [2.0, 2.0]


def test_a_reward_sees_the_rows_of_its_tasks() -> None:
    reward, everywhere = routed({"sum": ["digits"]}, digits, ones)
    call = batch(
        ["sum", "chat", "sum"],
        ["7", "8", "x"],
        solution=[1, 2, 3],
        weights=[[1], [2], [3]],
        version="v1",
    )
    assert reward(**call) == [7.0, None, None]  # not its task; its task, and not its to judge
    assert SEEN == [
        {
            "completions": ["7", "x"],
            "prompts": ["p0", "p2"],
            "completion_ids": [[0], [2]],
            "task": ["sum", "sum"],
            "trainer_state": "state",
            "solution": [1, 3],
            "weights": [[1], [3]],
            "version": "v1",  # no list, so nobody's column
        }
    ]
    assert everywhere(**call) == [1.0, 1.0, 1.0]
    assert (reward.__name__, everywhere.__name__) == ("digits", "ones")


def test_a_task_that_no_reward_judges() -> None:
    rewards = routed({"a": ["digits"], "b": ["ones"]}, digits, ones)
    for reward in rewards:
        with pytest.raises(
            RecipeError, match=r"task_rewards: row 2 has task 'c', .* task_rewards has a, b"
        ):
            reward(**batch(["a", "b", "c"], ["1", "2", "3"]))


@pytest.mark.parametrize(
    ("task_rewards", "message"),
    [
        ({"sum": "accuracy"}, "task_rewards: 'sum': must be a list of rewards, got 'accuracy'"),
        ({"sum": ["cosine"]}, r"reward_funcs 'cosine'\. Available: accuracy, format"),
    ],
)
def test_what_is_refused(task_rewards: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check_task_rewards(task_rewards, ["accuracy", "format"])


def test_the_column_of_tasks() -> None:
    (reward,) = routed({"a": ["ones"]}, ones)
    call = {"completions": ["x", "y"], "data_source": ["a", "b"]}
    with pytest.raises(RecipeError, match="row 1 has task 'b'"):
        reward(**call)
    assert reward(**call, task=["a", "a"]) == [1.0, 1.0]
    with pytest.raises(RecipeError, match="task_column: unknown column 'task'"):
        reward(completions=["x"])


@pytest.mark.slow
def test_a_task_of_the_test_split_alone_is_refused_before_the_run(
    write_recipe: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    rows = [{"question": f"{i}?", "answer": "#### 1", "task": "sum"} for i in range(4)]
    rows[-1]["task"] = "poem"
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = {"dataset_train_split": "train[:3]", "dataset_test_split": "train[3:]"}
    keys |= {"eval_strategy": "steps", "task_rewards": {"sum": ["accuracy"]}}
    keys |= {"reward_funcs": ["accuracy"]}
    with pytest.raises(SystemExit) as stopped:
        grpo.main([write_recipe("grpo", dataset_name=str(data), **keys)])
    assert stopped.value.code == 2 and "has task 'poem'" in capsys.readouterr().err
