"""Which reward sees which rows, what comes back for the others, and what the logs say."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r1_recipes import grpo
from r1_recipes.common.errors import RecipeError
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.rewards.call import score
from r1_recipes.rewards.routing import check_task_rewards, route
from tests.conftest import metrics

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


async def later(completions: list, **columns: Any) -> list[float]:
    await asyncio.sleep(0)
    return [float(len(text)) for text in completions]


def not_a_number(completions: list, **columns: Any) -> list[float]:
    return [float("nan")] * len(completions)


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


class Log:
    """TRL's two log calls."""

    def __init__(self) -> None:
        self.values: list[tuple[str, Any]] = []

    def __call__(self, name: str, value: Any) -> None:
        self.values.append((name, value))


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


def test_without_rows_the_reward_is_not_called() -> None:
    reward, _ = routed({"sum": ["digits"], "chat": ["ones"]}, digits, ones)
    assert reward(**batch(["chat", "chat"], ["7", "8"])) == [None, None]
    assert SEEN == []


def test_logs_cover_the_batch_and_curves_are_apart() -> None:
    reward, everywhere = routed({"sum": ["digits"], "product": ["digits"]}, digits, ones)
    call = batch(["sum", "chat", "product", "sum", "sum"], ["7", "a", "9", "x", "4"])
    extra, metric = Log(), Log()
    assert reward(**call, log_extra=extra, log_metric=metric) == [7.0, None, 9.0, None, 4.0]
    assert extra.values == [("upper", ["7", None, "9", "X", "4"])]
    # One value a row, of which TRL takes the mean: sum (7 + 4) / 2, without the row that was not
    # judged; product 9 / 1.
    assert metric.values == [
        ("digits/calls", 1.0),
        ("rewards/digits/sum", 7.0),
        ("rewards/digits/product", 9.0),
        ("rewards/digits/sum", 4.0),
    ]
    metric = Log()
    everywhere(**call, log_metric=metric)
    assert [name for name, _ in metric.values] == [
        f"rewards/ones/{task}" for task in ("sum", "chat", "product", "sum", "sum")
    ]


def test_a_batch_without_its_task_empties_the_columns_of_the_table() -> None:
    # Else TRL's completions table would show an earlier batch's values beside this batch's
    # completions.
    names = ["accuracy", "format"]
    reward, _ = route(get_reward_funcs(names), names, {"sum": ["accuracy"]}, None)
    assert reward(**batch(["sum"], ["1"]), solution=["1"], log_extra=Log()) == [0.0]
    extra = Log()
    assert reward(**batch(["chat"] * 2, ["1", "2"]), solution=["1", "2"], log_extra=extra) == [
        None,
        None,
    ]
    assert extra.values == [
        ("refused", [None] * 2),
        ("answer_parsed", [None] * 2),
        ("solution", [None] * 2),
    ]


def test_nan_is_on_no_curve() -> None:
    (reward,) = routed({"sum": ["not_a_number"]}, not_a_number)
    metric = Log()
    reward(**batch(["sum"], ["1"]), log_metric=metric)
    assert metric.values == []


@pytest.mark.parametrize(
    ("columns", "setting", "expected"),
    [
        ({"task": ["a", "b"], "data_source": ["b", "a"]}, None, [1.0, None]),
        ({"data_source": ["b", "a"]}, None, [None, 2.0]),
        ({"task": ["a", "b"], "kind": ["b", "b"]}, "kind", [None, None]),
        (
            {"task": ["1", "b"], "kind": ["a", None]},
            "kind",
            [1.0, None],
        ),  # a part of a mixture has no such column
    ],
)
def test_the_column(columns: dict, setting: str | None, expected: list) -> None:
    reward, _ = routed({"a": ["digits"]}, digits, ones, column=setting)
    assert reward(completions=["1", "2"], prompts=["p", "p"], **columns) == expected


@pytest.mark.parametrize(
    ("columns", "setting", "message"),
    [
        (
            {"solution": ["1"]},
            None,
            r"task_column: unknown column 'task'\. Available: completions, solution",
        ),
        (
            {"task": ["a"], "tasks": ["a"]},
            "taks",
            r"task_column: unknown column 'taks'\. Did you mean 'task",
        ),
    ],
)
def test_a_missing_column(columns: dict, setting: str | None, message: str) -> None:
    for reward in routed({"a": ["digits"]}, digits, ones, column=setting):
        with pytest.raises(RecipeError, match=message):
            reward(completions=["1"], **columns)


def test_a_task_that_no_reward_judges() -> None:
    rewards = routed({"a": ["digits"], "b": ["ones"]}, digits, ones)
    for reward in rewards:
        with pytest.raises(
            RecipeError, match=r"task_rewards: row 2 has task 'c', .* task_rewards has a, b"
        ):
            reward(**batch(["a", "b", "c"], ["1", "2", "3"]))


def test_a_task_whose_entry_is_empty() -> None:
    for reward in routed({"a": ["digits", "ones"], "b": []}, digits, ones):
        with pytest.raises(RecipeError, match="task_rewards: row 1 has task 'b'"):
            reward(**batch(["a", "b"], ["1", "2"]))


def test_a_task_without_an_entry_is_warned_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reward, everywhere = routed({"a": ["digits"]}, digits, ones)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert reward(**batch(["c", "a"], ["1", "2"])) == [None, 2.0]
            assert everywhere(**batch(["c", "a"], ["1", "2"])) == [1.0, 1.0]
    (record,) = caplog.records
    assert "task_rewards: has no entry for task 'c'. Only ones" in record.message


def test_an_entry_may_be_empty_where_other_rewards_judge_all() -> None:
    reward, everywhere = routed({"a": ["digits"], "b": []}, digits, ones)
    assert reward(**batch(["a", "b"], ["1", "2"])) == [1.0, None]
    assert everywhere(**batch(["a", "b"], ["1", "2"])) == [1.0, 1.0]


def test_rules_of_the_package_s_own_rewards_still_hold() -> None:
    names = ["accuracy", "format"]
    accuracy, shape = route(get_reward_funcs(names), names, {"sum": ["accuracy"]}, None)
    right = "<think>\n2+2\n</think>\n<answer>\n4\n</answer>"
    extra = Log()
    call = batch(["sum", "chat", "sum"], [right, right, "no"])
    # The chat row's gold is no mathematics and would be an error or a guess; it is not asked about.
    assert accuracy(**call, solution=["4", None, "4"], log_extra=extra) == [1.0, None, 0.0]
    assert extra.values[1:] == [("answer_parsed", ["4", None, ""]), ("solution", ["4", None, "4"])]
    assert shape(**call) == [1.0, 1.0, 0.0]
    with pytest.raises(RecipeError, match=r"reward 'accuracy' needs a column 'solution'"):
        accuracy(**call)
    with pytest.raises(RecipeError, match=r"reward 'accuracy' needs a column 'solution'"):
        accuracy(**call, solution=None)
    assert accuracy(**batch(["chat"], [right]), solution=[None]) == [
        None
    ]  # a batch, or a rank, without sums


def test_async_rewards_stay_async() -> None:
    from trl.trainer.utils import is_async_callable

    reward, sync = routed({"a": ["later"], "b": ["ones"]}, later, ones)
    assert (is_async_callable(reward), is_async_callable(sync)) == (True, False)
    assert asyncio.run(reward(**batch(["a", "b", "a"], ["xyz", "1", ""]))) == [3.0, None, 0.0]


def test_pickles() -> None:
    names = ["accuracy", "format"]
    for reward in route(get_reward_funcs(names), names, {"sum": ["accuracy"]}, None):
        copy = pickle.loads(pickle.dumps(reward))
        assert copy.__name__ == reward.__name__
        assert (
            copy(**batch(["sum"], ["no"], solution=["4"]))
            == reward(**batch(["sum"], ["no"], solution=["4"]))
            == [0.0]
        )


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "other"]), st.text("0123x", max_size=2)), max_size=12
    )
)
def test_routing_changes_no_score(rows: list[tuple[str, str]]) -> None:
    tasks, texts = [task for task, _ in rows], [text for _, text in rows]
    plain = digits(texts)
    reward, everywhere = routed({"a": ["digits"], "b": []}, digits, ones)
    assert reward(**batch(tasks, texts)) == [
        score if task == "a" else None for task, score in zip(tasks, plain, strict=True)
    ]
    assert everywhere(**batch(tasks, texts)) == [1.0] * len(rows)


@pytest.mark.parametrize(
    ("task_rewards", "message"),
    [
        (None, "task_rewards: must be a mapping .*, got None"),
        ({}, "must be a mapping"),
        (["accuracy"], "must be a mapping"),
        ({"sum": "accuracy"}, "task_rewards: 'sum': must be .* a list of rewards, got 'accuracy'"),
        ({"sum": None}, "task_rewards: 'sum': must be .* a list of rewards, got None"),
        (
            {"sum": ["acuracy"]},
            r"task_rewards: sum: unknown reward in reward_funcs 'acuracy'\. Did you mean "
            r"'accuracy'\? Available: accuracy, format",
        ),
        (
            {"sum": ["cosine"]},
            r"unknown reward in reward_funcs 'cosine'\. Available: accuracy, format",
        ),
        ({"sum": [{"accuracy": 1}]}, "unknown reward in reward_funcs"),
        ({1: ["accuracy"]}, "task_rewards: 1: must be text"),
    ],
)
def test_what_is_refused(task_rewards: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check_task_rewards(task_rewards, ["accuracy", "format"])


@pytest.mark.parametrize(
    "task_rewards",
    [{"sum": ["accuracy"]}, {"sum": ["accuracy"], "chat": []}],
)
def test_what_is_accepted(task_rewards: dict) -> None:
    check_task_rewards(task_rewards, ["accuracy", "format"])


@pytest.mark.usefixtures("offline")
def test_a_training_run(write_recipe: Callable[..., str], tmp_path: Path) -> None:
    """Two tasks, a batch of one task at a time: curves apart, the other's absent where the batch
    has none of it.
    """
    data = tmp_path / "mixed.jsonl"
    rows = [
        {"question": f"{i}+1?", "answer": f"#### {i + 1}", "task": "sum" if i % 2 else "chat"}
        for i in range(8)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    recipe = write_recipe(
        "grpo",
        dataset_name=str(data),
        reward_funcs=["accuracy", "tests.conftest:letters"],
        task_rewards={"sum": ["accuracy"], "chat": ["tests.conftest:letters"]},
        per_device_train_batch_size=2,
        max_steps=4,
        log_completions=True,
    )
    grpo.main([recipe])
    entries = metrics(tmp_path / "run")
    assert len(entries) == 4
    for entry in entries:
        # A batch of two completions is one prompt's group, so of one task; a random model's answers
        # are all wrong.
        names = {name for name in entry if name in ("rewards/accuracy/sum", "rewards/letters/chat")}
        assert len(names) == 1
        assert {
            name
            for name in entry
            if name.startswith("rewards/") and not name.endswith(("/mean", "/std"))
        } == names
        (name,) = names
        reward = name.split("/")[1]
        assert entry[name] == pytest.approx(entry[f"rewards/{reward}/mean"])
        assert entry["reward"] == pytest.approx(entry[name])  # the other reward adds nothing
    assert {name for entry in entries for name in entry} >= {
        "rewards/accuracy/sum",
        "rewards/letters/chat",
    }


def needs_level(completions: list, level: list, **columns: Any) -> list[float]:
    return [1.0] * len(completions)


def looks_up_level(completions: list, **columns: Any) -> list[float]:
    return [1.0 for _ in columns["level"]]


def looks_up_task(completions: list, task: list, **columns: Any) -> list[float]:
    return [{"other": 1.0}[one] for one in task]


@pytest.mark.parametrize(
    ("reward", "hint"), [(needs_level, True), (looks_up_level, True), (looks_up_task, False)]
)
def test_a_column_that_is_not_kept_gets_a_hint(reward: Callable, hint: bool) -> None:
    rows = [{"prompt": [{"role": "user", "content": "?"}], "task": "task"}]
    with pytest.raises(RecipeError) as refused:
        score("own", reward, rows, ["x"], None)
    assert ("It gets the columns task. Fix: " in str(refused.value)) == hint


def test_scoring_outside_training_waits_for_no_other_process(monkeypatch):
    """Rank 0 alone scores an evaluation; ``length`` gathers its group from all ranks."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("accelerate.utils.gather_object", lambda items: pytest.fail("waits"))
    (length,) = get_reward_funcs(["length"], "boxed")
    rows = [{"prompt": [{"role": "user", "content": "1?"}], "solution": "1"}] * 2
    texts = ["\\boxed{1}", "so \\boxed{1}"]
    assert score("length", length, rows, texts, None) == [0.5, -0.5]
