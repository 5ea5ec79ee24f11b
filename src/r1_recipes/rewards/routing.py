"""Which reward judges which rows: a recipe's ``task_rewards`` over a data set of several tasks.

TRL's ``GRPOTrainer`` sums rewards with ``nansum``, so ``None`` adds nothing, and a row that every reward leaves out gets advantage 0.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from r1_recipes.common.errors import RecipeError, unknown_name

logger = logging.getLogger(__name__)

_DEFAULT_COLUMNS = ("task", "data_source")
# TRL's own curves of a reward; a task of that name would be mixed into them.
_TAKEN = ("mean", "std")


def check_task_rewards(task_rewards: Any, reward_funcs: Sequence[str]) -> None:
    """Refuse a ``task_rewards`` that cannot be followed, before any data are read.

    Raises:
        RecipeError: it is no mapping ``{TASK: [reward, …]}``, ``TASK`` is not a value of the task column or a prefix of such values and
            ``*``, a reward is not in ``reward_funcs``, or no reward would judge a task.
    """
    if not isinstance(task_rewards, Mapping) or not task_rewards:
        raise RecipeError(f"task_rewards: must be a mapping {{TASK: [reward, …]}}, got {task_rewards!r}")
    for entry, rewards in task_rewards.items():
        if not isinstance(entry, str):
            raise RecipeError(f"task_rewards: a task must be text, got {entry!r} ({type(entry).__name__}). Fix: put it in quotes")
        if "*" in entry[:-1]:
            raise RecipeError(f"task_rewards: {entry!r}: '*' stands for the rest of a name, so it must be the last character")
        if not isinstance(rewards, list | tuple):
            raise RecipeError(f"task_rewards: {entry}: must be a list of rewards, got {rewards!r}")
        for name in rewards:
            if name not in reward_funcs:
                raise RecipeError(f"task_rewards: {entry}: " + unknown_name("reward in reward_funcs", name, reward_funcs))
    idle = [entry for entry, rewards in task_rewards.items() if not rewards]
    if idle and not _for_all(task_rewards, reward_funcs):
        raise RecipeError(f"task_rewards: {idle[0]}: no reward judges it. Fix: name one, or leave one of reward_funcs out of task_rewards")


def route(
    funcs: Sequence[Callable], names: Sequence[str], task_rewards: Mapping[str, Sequence[str]], task_column: str | None
) -> list[Callable[..., list[float | None]]]:
    """Let each reward judge the rows of its tasks alone.

    An entry of ``task_rewards`` that ends in ``*`` holds for every task that starts so; of several that fit, the exact one wins, then
    the longest. A reward that no entry names judges all rows. A task that no entry fits has only those rewards, with one warning.

    Each reward's mean on each task goes to the metric ``rewards/<reward>/<task>`` (a task called ``mean`` or ``std`` to ``task mean``,
    ``task std``), beside TRL's ``rewards/<reward>/mean`` over all of its rows.

    Args:
        funcs: the rewards, as :func:`r1_recipes.rewards.get_reward_funcs` builds them.
        names: what the recipe calls them, in the same order.
        task_rewards: ``{TASK: [reward, …]}``.
        task_column: the column with a row's task; ``None``: ``task`` if the data have it, else ``data_source``.

    Returns:
        One picklable callable per reward, with its ``__name__``. It raises what :meth:`TaskPlan.tasks` does.

    Raises:
        RecipeError: as :func:`check_task_rewards`.
    """
    check_task_rewards(task_rewards, names)
    plan = TaskPlan(task_rewards, names, task_column)
    return [(_AsyncRoutedReward if _is_async(func) else _RoutedReward)(func, name, plan) for func, name in zip(funcs, names, strict=True)]


def _for_all(task_rewards: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[str]:
    named = {name for rewards in task_rewards.values() for name in rewards}
    return [name for name in names if name not in named]


def _is_async(func: Callable) -> bool:
    while isinstance(func, functools.partial):
        func = func.func
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(func.__call__)


@dataclass
class TaskPlan:
    """What all routed rewards of a run share; the fields are :func:`route`'s."""

    task_rewards: Mapping[str, Sequence[str]]
    names: Sequence[str]
    column: str | None
    warned: set[str] = field(default_factory=set)

    def tasks(self, columns: Mapping[str, Any]) -> list[str]:
        """Every row's task.

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
        for task in sorted(set(tasks) - self.warned):
            if self._rewards_of(task) is None:
                judges = _for_all(self.task_rewards, self.names)
                if not judges:
                    raise RecipeError(
                        f"task_rewards: row {tasks.index(task)} of the batch has {column} {task!r}, which no reward judges; tasks known: "
                        f"{', '.join(sorted(self.task_rewards))}"
                    )
                self.warned.add(task)
                logger.warning("task_rewards: no entry for task %r; its rows are judged by %s alone", task, ", ".join(judges))
        return tasks

    def _rewards_of(self, task: str) -> Sequence[str] | None:
        if task in self.task_rewards:
            return self.task_rewards[task]
        fitting = [entry for entry in self.task_rewards if entry.endswith("*") and task.startswith(entry[:-1])]
        return self.task_rewards[max(fitting, key=len)] if fitting else None

    def rows(self, rewards: Iterable[str], columns: Mapping[str, Any]) -> list[int]:
        """The rows that one of ``rewards`` judges; raises what :meth:`tasks` does."""
        tasks = self.tasks(columns)
        for_all = _for_all(self.task_rewards, self.names)
        judges = {task: {*for_all, *(self._rewards_of(task) or ())} for task in set(tasks)}
        return [row for row, task in enumerate(tasks) if not judges[task].isdisjoint(rewards)]


@dataclass
class _RoutedReward:
    """A reward that sees the rows of its tasks alone."""

    reward: Callable
    name: str
    plan: TaskPlan
    extra_columns: list[str] = field(default_factory=list)

    @property
    def __name__(self) -> str:
        return getattr(self.reward, "__name__", self.name)

    def judged(self, columns: Mapping[str, Any]) -> list[int]:
        """The rows that this reward judges."""
        return self.plan.rows([self.name], columns)

    def __call__(self, **columns: Any) -> list[float | None]:
        rows, arguments = self._select(columns)
        # One that asks the other processes must be called in all of them, or they wait for it.
        scores = self.reward(**arguments) if rows or getattr(self.reward, "spans_processes", False) else []
        return self._spread(scores, rows, columns)

    def _select(self, columns: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
        """The rows to judge, and what the reward is called with for them."""
        count = len(columns["completions"])
        rows = self.judged(columns)
        arguments = {
            key: [value[row] for row in rows] if isinstance(value, list | tuple) and len(value) == count else value
            for key, value in columns.items()
        }
        log_extra = columns.get("log_extra")
        if log_extra is not None:

            def log_some(column: str, values: Sequence[Any]) -> None:
                of_row = dict(zip(rows, values, strict=True))
                if column not in self.extra_columns:
                    self.extra_columns.append(column)
                log_extra(column, [of_row.get(row) for row in range(count)])

            arguments["log_extra"] = log_some
            if not rows:  # the completions table would show an earlier batch's values
                for column in self.extra_columns:
                    log_some(column, [])
        return rows, arguments

    def _spread(self, scores: Sequence[float | None], rows: Sequence[int], columns: dict[str, Any]) -> list[float | None]:
        """The scores as one entry per row of the whole batch; each goes to its task's curve."""
        if len(scores) != len(rows):
            raise RecipeError(f"reward {self.name!r} returned {len(scores)} scores for the {len(rows)} rows of its tasks")
        of_row = dict(zip(rows, scores, strict=True))
        tasks = self.plan.tasks(columns)
        log_metric = columns.get("log_metric")
        # TRL takes the mean over all ranks of what was logged, so one value per row; a rank without the name does not count.
        for row, score in of_row.items():
            if log_metric is not None and score is not None and not math.isnan(score):  # TRL takes NaN for None
                task = f"task {tasks[row]}" if tasks[row] in _TAKEN else tasks[row]
                log_metric(f"rewards/{self.__name__}/{task}", float(score))
        return [of_row.get(row) for row in range(len(tasks))]


class _AsyncRoutedReward(_RoutedReward):
    """The same around an ``async`` reward, which TRL awaits together with the others."""

    async def __call__(self, **columns: Any) -> list[float | None]:
        rows, arguments = self._select(columns)
        return self._spread(await self.reward(**arguments) if rows else [], rows, columns)
