"""Which reward judges which rows: a recipe's ``task_rewards`` over a dataset of several tasks.

What TRL 1.16's ``GRPOTrainer`` does with the results, read in its source:

- ``None`` becomes NaN. Rewards are summed with ``nansum``, so a reward that leaves a row out adds nothing to it. A row that every
  reward leaves out gets advantage 0, and one warning a batch. All completions of a prompt have the prompt's task, so within a group
  a reward judges all or none.
- ``rewards/<name>/mean`` is a mean over the rows that the reward judged, on all ranks; a batch without any is left out of the logged
  mean.
- ``log_metric``: the ranks exchange the names first and gather each name of the union in sorted order, a rank without the name with
  a sum and a count of 0. So a rank whose batch lacks a task neither hangs nor distorts the others. What is reported is the mean of
  all values logged on all ranks; one value a row therefore gives the mean over the rows, and that is what is logged here.
- ``log_extra``: a column that no rank logs in a batch keeps its rows of an earlier batch in the completions table. So a routed reward
  logs the columns it has logged before in every batch, empty where it judges no row.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from r1_recipes.common.errors import RecipeError, unknown_name

logger = logging.getLogger(__name__)

_DEFAULT_COLUMNS = ("task", "data_source")
# TRL's own curves of a reward; a task of that name would be mixed into them.
_TAKEN = ("mean", "std")


def check_task_rewards(task_rewards: Any, reward_funcs: Sequence[str]) -> None:
    """Refuse a ``task_rewards`` that cannot be followed, before any data are read.

    Args:
        task_rewards: ``{TASK: [reward, …]}``. ``TASK`` is a value of the task column, or a prefix of such values and ``*``.
        reward_funcs: the recipe's rewards.

    Raises:
        RecipeError: no such mapping, a reward that ``reward_funcs`` does not name, a ``*`` that is not the last character, or a task
            that no reward would judge.
    """
    if not isinstance(task_rewards, Mapping) or not task_rewards:
        raise RecipeError(f"task_rewards: found {task_rewards!r}; expected a mapping {{TASK: [reward, …]}}")
    for entry, rewards in task_rewards.items():
        if not isinstance(entry, str):
            raise RecipeError(f"task_rewards: the task {entry!r} is read as {type(entry).__name__}, not text; put it in quotes")
        if "*" in entry[:-1]:
            raise RecipeError(f"task_rewards: {entry!r}: '*' stands for the rest of a name, so only at its end")
        if not isinstance(rewards, list | tuple):
            raise RecipeError(f"task_rewards: {entry}: found {rewards!r}; expected a list of rewards")
        for name in rewards:
            if name not in reward_funcs:
                raise RecipeError(f"task_rewards: {entry}: " + unknown_name("reward in reward_funcs", name, reward_funcs))
    if not _for_all(task_rewards, reward_funcs):
        for entry, rewards in task_rewards.items():
            if not rewards:
                raise RecipeError(f"task_rewards: {entry}: no reward judges it; name one, or leave one of reward_funcs out of task_rewards")


def route(
    funcs: Sequence[Callable], names: Sequence[str], task_rewards: Mapping[str, Sequence[str]], task_column: str | None
) -> list[Callable[..., list[float | None]]]:
    """Let each reward judge the rows of its tasks alone.

    An entry of ``task_rewards`` that ends in ``*`` holds for every task that starts so; of several that fit, the exact one wins, then
    the longest. A reward that no entry names judges all rows. A task that no entry fits has only those rewards, with one warning.

    Each reward's mean on each task goes to the metric ``rewards/<reward>/<task>``, beside TRL's ``rewards/<reward>/mean`` over all of
    its rows (a task called ``mean`` or ``std`` goes to ``task mean``, ``task std``).

    Args:
        funcs: the rewards, as :func:`r1_recipes.rewards.get_reward_funcs` builds them.
        names: what the recipe calls them, in the same order.
        task_rewards: ``{TASK: [reward, …]}``.
        task_column: the column with a row's task; ``None``: ``task`` where the data have it, else ``data_source``.

    Returns:
        One picklable callable a reward, with its ``__name__``. It raises :class:`RecipeError` where the data have no such column, or
        a row has a task that no reward judges.

    Raises:
        RecipeError: as :func:`check_task_rewards`.
    """
    check_task_rewards(task_rewards, names)
    plan = _Plan(dict(task_rewards), _for_all(task_rewards, names), task_column)
    return [(_AsyncRoutedReward if _is_async(func) else _RoutedReward)(func, name, plan) for func, name in zip(funcs, names, strict=True)]


def _for_all(task_rewards: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[str]:
    named = {name for rewards in task_rewards.values() for name in rewards}
    return [name for name in names if name not in named]


def _is_async(func: Callable) -> bool:
    while isinstance(func, functools.partial):
        func = func.func
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(func.__call__)


@dataclass
class _Plan:
    """What all routed rewards of a run share."""

    task_rewards: dict[str, Sequence[str]]
    for_all: list[str]
    column: str | None
    warned: set[str] = field(default_factory=set)

    def tasks(self, columns: Mapping[str, Any]) -> list[str]:
        """Every row's task, each with at least one reward.

        Raises:
            RecipeError: no such column, or a row that no reward would judge.
        """
        # A data set's column is a sequence, read only where it is asked for.
        known = sorted(name for name, value in columns.items() if isinstance(value, Sequence) and not isinstance(value, str))
        column = self.column or next((name for name in _DEFAULT_COLUMNS if name in known), None)
        if column is None:
            raise RecipeError(
                f"task_rewards needs a column with each row's task: task_column, or one of {', '.join(_DEFAULT_COLUMNS)}; the columns "
                f"here are: {', '.join(known)}"
            )
        if column not in known:
            raise RecipeError("task_column: " + unknown_name("column", column, known))
        tasks = [str(task) for task in columns[column]]
        for row, task in enumerate(tasks):
            if self.entry(task) is not None or task in self.warned:
                continue
            if not self.for_all:
                raise RecipeError(
                    f"task_rewards: row {row} of the batch has {column} {task!r}, which no reward judges; tasks known: "
                    f"{', '.join(sorted(self.task_rewards))}"
                )
            self.warned.add(task)
            logger.warning("task_rewards: no entry for task %r; its rows are judged by %s alone", task, ", ".join(self.for_all))
        return tasks

    def entry(self, task: str) -> str | None:
        """The entry of ``task_rewards`` that holds for a task."""
        if task in self.task_rewards:
            return task
        fitting = [entry for entry in self.task_rewards if entry.endswith("*") and task.startswith(entry[:-1])]
        return max(fitting, key=len, default=None)

    def rows(self, name: str, tasks: Sequence[str]) -> list[int]:
        """The rows that the reward ``name`` judges."""
        if name in self.for_all:
            return list(range(len(tasks)))
        entries = {task: self.entry(task) for task in set(tasks)}
        mine = {task for task, entry in entries.items() if entry is not None and name in self.task_rewards[entry]}
        return [row for row, task in enumerate(tasks) if task in mine]


@dataclass
class _RoutedReward:
    """A reward that sees the rows of its tasks alone."""

    reward: Callable
    name: str
    plan: _Plan
    extra_columns: dict[str, None] = field(default_factory=dict)

    @property
    def __name__(self) -> str:
        return getattr(self.reward, "__name__", self.name)

    def judged(self, columns: Mapping[str, Any]) -> list[int]:
        """The rows that this reward judges."""
        return self.plan.rows(self.name, self.plan.tasks(columns))

    def __call__(self, **columns: Any) -> list[float | None]:
        tasks, rows, arguments = self._select(columns)
        # One that asks the other processes must be called in all of them, or they wait for it.
        scores = self.reward(**arguments) if rows or getattr(self.reward, "spans_processes", False) else []
        return self._spread(scores, tasks, rows, columns)

    def _select(self, columns: dict[str, Any]) -> tuple[list[str], list[int], dict[str, Any]]:
        """Every row's task, the rows to judge, and what the reward is called with for them."""
        count = len(columns["completions"])
        tasks = self.plan.tasks(columns)
        rows = self.plan.rows(self.name, tasks)
        arguments = {
            key: [value[row] for row in rows] if isinstance(value, list | tuple) and len(value) == count else value
            for key, value in columns.items()
        }
        log_extra = columns.get("log_extra")
        if log_extra is not None:

            def log_some(column: str, values: Sequence[Any]) -> None:
                padded: list[Any] = [None] * count
                for row, value in zip(rows, values, strict=True):
                    padded[row] = value
                self.extra_columns[column] = None
                log_extra(column, padded)

            arguments["log_extra"] = log_some
            if not rows:
                for column in self.extra_columns:
                    log_extra(column, [None] * count)
        return tasks, rows, arguments

    def _spread(
        self, scores: Sequence[float | None], tasks: Sequence[str], rows: Sequence[int], columns: dict[str, Any]
    ) -> list[float | None]:
        """The scores as one entry a row of the whole batch; each goes to its task's curve."""
        if len(scores) != len(rows):
            raise RecipeError(f"reward {self.name!r} returned {len(scores)} scores for the {len(rows)} rows of its tasks")
        log_metric = columns.get("log_metric")
        spread: list[float | None] = [None] * len(tasks)
        for row, score in zip(rows, scores, strict=True):
            spread[row] = score
            # TRL takes NaN for None.
            if log_metric is not None and score is not None and not math.isnan(score):
                task = f"task {tasks[row]}" if tasks[row] in _TAKEN else tasks[row]
                log_metric(f"rewards/{self.__name__}/{task}", float(score))
        return spread


class _AsyncRoutedReward(_RoutedReward):
    """The same around an ``async`` reward, which TRL awaits together with the others."""

    async def __call__(self, **columns: Any) -> list[float | None]:
        tasks, rows, arguments = self._select(columns)
        scores = await self.reward(**arguments) if rows else []
        return self._spread(scores, tasks, rows, columns)
