"""Rewards by task: each reward scores the rows of the tasks that name it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

from r1_recipes.common.errors import RecipeError, require, unknown_name
from r1_recipes.common.messages import say_once
from r1_recipes.rewards.answers import Values, ignore
from r1_recipes.rewards.call import numbers


def check_task_rewards(task_rewards: Any, reward_funcs: Sequence[str]) -> list[str]:
    """Check ``task_rewards`` before any data are read.

    Returns:
        The rewards that no entry names. They score all rows.

    Raises:
        RecipeError: An entry is not a list of rewards in ``reward_funcs``.
    """
    for task, rewards in task_rewards.items():
        require(
            isinstance(rewards, list | tuple),
            f"task_rewards: {task!r}",
            "a list of rewards",
            rewards,
        )
        for name in rewards:
            if name not in reward_funcs:
                unknown = unknown_name("reward in reward_funcs", name, reward_funcs)
                raise RecipeError(f"task_rewards: {task}: {unknown}")
    named = [name for rewards in task_rewards.values() for name in rewards]
    return [name for name in reward_funcs if name not in named]


def route(
    funcs: Sequence[Callable],
    names: Sequence[str],
    task_rewards: Mapping[str, Sequence[str]],
    task_column: str | None,
) -> list[Callable[..., Values]]:
    """Return rewards that score only the rows of their tasks, and ``None`` for the others.

    A reward that no entry names scores all rows. The mean of a reward on a task is the metric
    ``rewards/<reward>/<task>``. Without ``task_column``, the column ``task`` or ``data_source``
    holds the task of a row.

    Raises:
        RecipeError: ``task_rewards`` names another reward.
    """
    for_all = check_task_rewards(task_rewards, names)
    return [
        _of_its_tasks(func, partial(_rows_of, name, task_rewards, for_all, task_column))
        for func, name in zip(funcs, names, strict=True)
    ]


def _rows_of(
    name: str,
    task_rewards: Mapping[str, Sequence[str]],
    for_all: Sequence[str],
    column: str | None,
    columns: Mapping[str, Any],
) -> dict[int, str]:
    """Return the rows that a reward scores, with their tasks. Raise if a row has no reward."""
    if column is None:
        column = "data_source" if "task" not in columns and "data_source" in columns else "task"
    if column not in columns:
        raise RecipeError("task_column: " + unknown_name("column", column, columns))
    tasks = [str(task) for task in columns[column]]
    for task in dict.fromkeys(tasks):
        if not for_all and not task_rewards.get(task):
            raise RecipeError(
                f"task_rewards: row {tasks.index(task)} has task {task!r}, which no reward "
                "scores. Fix: add rewards for this task; task_rewards has "
                f"{', '.join(sorted(task_rewards))}"
            )
        if task not in task_rewards:
            say_once(
                f"task_rewards: has no entry for task {task!r}. Only {', '.join(for_all)} scores "
                "its rows"
            )
    return {
        row: task
        for row, task in enumerate(tasks)
        if name in for_all or name in task_rewards.get(task, ())
    }


def _of_its_tasks(
    reward: Callable, rows_of: Callable[[Mapping[str, Any]], dict[int, str]]
) -> Callable[..., Values]:
    """Return a function that calls a reward with its rows, and logs each score under its task."""

    @wraps(reward)  # TRL logs it under the name of the reward.
    def of_its_tasks(**columns: Any) -> Values:
        count, tasks = len(columns["completions"]), rows_of(columns)

        def log_some(column: str, values: Sequence[Any]) -> None:
            of_row = dict(zip(tasks, values, strict=True))
            columns.get("log_extra", ignore)(column, [of_row.get(row) for row in range(count)])

        arguments = {**columns, "log_extra": log_some}
        for key, value in columns.items():
            if isinstance(value, list | tuple) and len(value) == count:
                arguments[key] = [value[row] for row in tasks]
        # In the reward length, other processes wait for this one, so call it without rows, too.
        if not tasks and not hasattr(reward, "spans_processes"):
            return [None] * count
        values = numbers(of_its_tasks.__name__, reward, reward(**arguments), len(tasks))
        scores = dict(zip(tasks, values, strict=True))
        for row, score in scores.items():
            # One value per row: TRL averages what all processes logged.
            if score is not None:
                metric = f"rewards/{of_its_tasks.__name__}/{tasks[row]}"
                columns.get("log_metric", ignore)(metric, float(score))
        return [scores.get(row) for row in range(count)]

    of_its_tasks.rows_of = rows_of  # type: ignore[attr-defined]
    return of_its_tasks
