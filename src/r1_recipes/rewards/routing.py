"""Which reward judges which rows: a recipe's ``task_rewards`` over a data set of several tasks.

TRL's ``GRPOTrainer`` sums rewards with ``nansum``, so ``None`` adds nothing, and a row that every reward leaves out gets advantage 0.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.rewards.registry import Values, ignore

logger = logging.getLogger(__name__)

_DEFAULT_COLUMNS = ("task", "data_source")


def check_task_rewards(task_rewards: Any, reward_funcs: Sequence[str]) -> None:
    """Refuse a ``task_rewards`` that cannot be followed, before any data are read."""
    if not isinstance(task_rewards, Mapping) or not task_rewards:
        raise RecipeError(f"task_rewards: must be a mapping {{TASK: [reward, …]}}, got {task_rewards!r}")
    for entry, rewards in task_rewards.items():
        if not isinstance(entry, str) or "*" in entry[:-1] or not isinstance(rewards, list | tuple):
            raise RecipeError(f"task_rewards: {entry!r}: must be text, with no '*' but at its end, and a list of rewards, got {rewards!r}")
        for name in rewards:
            if name not in reward_funcs:
                raise RecipeError(f"task_rewards: {entry}: " + unknown_name("reward in reward_funcs", name, reward_funcs))
        if not rewards and not _for_all(task_rewards, reward_funcs):
            raise RecipeError(f"task_rewards: {entry}: no reward judges it. Fix: name one, or leave one of reward_funcs out")


def route(
    funcs: Sequence[Callable], names: Sequence[str], task_rewards: Mapping[str, Sequence[str]], task_column: str | None
) -> list[Callable[..., Values]]:
    """Let each reward judge the rows of its tasks alone.

    An entry of ``task_rewards`` that ends in ``*`` holds for every task that starts so; of several that fit, the exact one wins, then
    the longest. A reward that no entry names judges all rows. A task that no entry fits has only those rewards, with one warning.

    Each reward's mean on each task goes to the metric ``rewards/<reward>/<task>`` (a task called ``mean`` or ``std`` to ``task mean``,
    ``task std``). Without ``task_column``, a row's task stands in the column ``task``, else ``data_source``.
    """
    check_task_rewards(task_rewards, names)
    plan = _Plan(task_rewards, _for_all(task_rewards, names), task_column)
    return [(_AsyncRoutedReward if _is_async(func) else _RoutedReward)(func, name, plan) for func, name in zip(funcs, names, strict=True)]


def _for_all(task_rewards: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[str]:
    """The rewards that no entry names."""
    named = {name for rewards in task_rewards.values() for name in rewards}
    return [name for name in names if name not in named]


def _is_async(func: Callable) -> bool:
    return any(map(inspect.iscoroutinefunction, (func, type(func).__call__)))


@dataclass
class _Plan:
    """Which rewards judge which task; all routed rewards of a run share one."""

    task_rewards: Mapping[str, Sequence[str]]
    for_all: Sequence[str]
    column: str | None
    warned: set[str] = field(default_factory=set)

    def tasks(self, columns: Mapping[str, Any]) -> list[str]:
        """Every row's task; it is an error if there is no such column, or a row that no reward would judge."""
        # A data set's column is a sequence, read only where it is asked for.
        known = sorted(name for name, value in columns.items() if isinstance(value, Sequence) and not isinstance(value, str))
        column = self.column or next((name for name in _DEFAULT_COLUMNS if name in known), "task")
        if column not in known:
            raise RecipeError("task_column: " + unknown_name("column", column, known))
        tasks = [str(task) for task in columns[column]]
        for task in sorted(task for task in set(tasks) - self.warned if self.rewards_of(task) is None):
            if not self.for_all:
                raise RecipeError(
                    f"task_rewards: row {tasks.index(task)} of the batch has {column} {task!r}, which no reward judges; tasks known: "
                    f"{', '.join(sorted(self.task_rewards))}"
                )
            self.warned.add(task)
            logger.warning("task_rewards: no entry for task %r; its rows are judged by %s alone", task, ", ".join(self.for_all))
        return tasks

    def rewards_of(self, task: str) -> Sequence[str] | None:
        """What the entry of a task names; ``None`` if there is no entry."""
        fitting = [entry for entry in self.task_rewards if entry.endswith("*") and task.startswith(entry[:-1])]
        return self.task_rewards.get(task if task in self.task_rewards else max(fitting, key=len, default=""))


@dataclass
class _RoutedReward:
    """A reward that sees the rows of its tasks alone."""

    reward: Callable
    name: str
    plan: _Plan
    extra_columns: list[str] = field(default_factory=list)

    @property
    def __name__(self) -> str:
        return getattr(self.reward, "__name__", self.name)

    def judged(self, columns: Mapping[str, Any]) -> list[int]:
        """The rows that this reward judges."""
        tasks = self.plan.tasks(columns)
        mine = {task for task in set(tasks) if self.name in [*self.plan.for_all, *(self.plan.rewards_of(task) or ())]}
        return [row for row, task in enumerate(tasks) if task in mine]

    def __call__(self, **columns: Any) -> Values:
        rows, arguments = self._select(columns)
        # One that asks the other processes must be called in all of them, or they wait for it.
        scores = self.reward(**arguments) if rows or getattr(self.reward, "spans_processes", False) else []
        return self._spread(scores, rows, columns)

    def _select(self, columns: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
        count = len(columns["completions"])
        rows = self.judged(columns)
        arguments = {
            key: [value[row] for row in rows] if isinstance(value, list | tuple) and len(value) == count else value
            for key, value in columns.items()
        }
        log_extra = columns.get("log_extra", ignore)

        def log_some(column: str, values: Sequence[Any]) -> None:
            of_row = dict(zip(rows, values, strict=True))
            if column not in self.extra_columns:
                self.extra_columns.append(column)
            log_extra(column, [of_row.get(row) for row in range(count)])

        if not rows:  # the completions table would show an earlier batch's values
            for column in self.extra_columns:
                log_some(column, [])
        return rows, {**arguments, "log_extra": log_some}

    def _spread(self, scores: Sequence[float | None], rows: Sequence[int], columns: dict[str, Any]) -> Values:
        """The scores as one entry per row of the whole batch; each goes to its task's curve."""
        of_row = dict(zip(rows, scores, strict=True))
        tasks = self.plan.tasks(columns)
        log_metric = columns.get("log_metric", ignore)
        # TRL takes the mean over all ranks of what was logged, so one value per row; a rank without the name does not count.
        for row, score in of_row.items():
            if score is not None and not math.isnan(score):  # TRL takes NaN for None
                task = f"task {tasks[row]}" if tasks[row] in ("mean", "std") else tasks[row]  # TRL's own curves
                log_metric(f"rewards/{self.__name__}/{task}", float(score))
        return [of_row.get(row) for row in range(len(tasks))]


class _AsyncRoutedReward(_RoutedReward):
    """The same around an ``async`` reward, which TRL awaits together with the others."""

    async def __call__(self, **columns: Any) -> Values:  # type: ignore[override]
        rows, arguments = self._select(columns)
        return self._spread(await self.reward(**arguments) if rows else [], rows, columns)
