"""Rewards by task: each reward scores the rows of the tasks that name it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.rewards.call import is_async, warn_once
from r1_recipes.rewards.registry import Values, ignore


def check_task_rewards(task_rewards: Any, reward_funcs: Sequence[str]) -> list[str]:
    """Check ``task_rewards`` before any data are read.

    Returns:
        The rewards that no entry names. They score all rows.

    Raises:
        RecipeError: An entry is not a list of rewards in ``reward_funcs``.
    """
    if not isinstance(task_rewards, Mapping) or not task_rewards:
        raise RecipeError(
            f"task_rewards: must be a mapping {{TASK: [reward, …]}}, got {task_rewards!r}"
        )
    for_all = list(reward_funcs)
    for entry, rewards in task_rewards.items():
        if not isinstance(entry, str) or not isinstance(rewards, list | tuple):
            raise RecipeError(
                f"task_rewards: {entry!r}: must be text with a list of rewards, got {rewards!r}"
            )
        for name in rewards:
            if name not in reward_funcs:
                raise RecipeError(
                    f"task_rewards: {entry}: "
                    + unknown_name("reward in reward_funcs", name, reward_funcs)
                )
        for_all = [name for name in for_all if name not in rewards]
    return for_all


def route(
    funcs: Sequence[Callable],
    names: Sequence[str],
    task_rewards: Mapping[str, Sequence[str]],
    task_column: str | None,
) -> list[Callable[..., Values]]:
    """Return rewards that score only the rows of their tasks.

    A reward that no entry names scores all rows. The mean of a reward on a task is the metric
    ``rewards/<reward>/<task>``. Without ``task_column``, the column ``task`` or ``data_source``
    holds the task of a row.
    """
    for_all = check_task_rewards(task_rewards, names)
    routed: list[Callable[..., Values]] = []
    for func, name in zip(funcs, names, strict=True):
        kind = AsyncRoutedReward if is_async(func) else RoutedReward
        routed.append(kind(func, name, task_rewards, for_all, task_column))
    return routed


@dataclass(frozen=True)
class RoutedReward:
    """A reward that scores only the rows of its tasks."""

    reward: Callable
    name: str
    task_rewards: Mapping[str, Sequence[str]]
    for_all: Sequence[str]  # The rewards that no entry names.
    column: str | None
    # Logged columns of the completions table.
    logged: dict[str, None] = field(default_factory=dict)

    @property
    def __name__(self) -> str:
        return getattr(self.reward, "__name__", self.name)

    def judged(self, columns: Mapping[str, Any]) -> list[int]:
        """Return the rows this reward scores.

        Raises:
            RecipeError: The task column is missing, or a row has no reward.
        """
        tasks = self._tasks(columns)
        for task in sorted(set(tasks)):
            if not self.for_all and not self.task_rewards.get(task):
                raise RecipeError(
                    f"task_rewards: row {tasks.index(task)} has task {task!r}, which no reward "
                    "scores. Fix: add rewards for this task; task_rewards has "
                    f"{', '.join(sorted(self.task_rewards))}"
                )
            if task not in self.task_rewards:
                warn_once(
                    f"task_rewards: has no entry for task {task!r}. Only {', '.join(self.for_all)} "
                    f"scores its rows"
                )
        return [
            row
            for row, task in enumerate(tasks)
            if self.name in self.for_all or self.name in self.task_rewards.get(task, ())
        ]

    def _tasks(self, columns: Mapping[str, Any]) -> list[str]:
        lists = [
            name
            for name, value in columns.items()
            if isinstance(value, Sequence) and not isinstance(value, str)
        ]
        default = "task" if "task" in lists or "data_source" not in lists else "data_source"
        column = self.column or default
        if column not in lists:
            raise RecipeError("task_column: " + unknown_name("column", column, lists))
        return [str(task) for task in columns[column]]

    def __call__(self, **columns: Any) -> Values:
        # A reward that spans processes must be called in all of them, or the others wait forever.
        spans = getattr(self.reward, "spans_processes", False)
        try:
            rows = self.judged(columns)
        except RecipeError:
            if spans:
                self.reward(**self._arguments(columns, []))
            raise
        arguments = self._arguments(columns, rows)
        return self._per_row(self.reward(**arguments) if rows or spans else [], rows, columns)

    def _arguments(self, columns: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
        """Return the arguments for the rows that this reward scores."""
        count = len(columns["completions"])
        log_extra = columns.get("log_extra", ignore)

        def log_some(column: str, values: Sequence[Any]) -> None:
            self.logged[column] = None
            of_row = dict(zip(rows, values, strict=True))
            log_extra(column, [of_row.get(row) for row in range(count)])

        # Without rows, clear the columns: the completions table would show values of an old batch.
        if not rows:
            for column in self.logged:
                log_some(column, [])
        arguments = {**columns, "log_extra": log_some}
        for key, value in columns.items():
            if isinstance(value, list | tuple) and len(value) == count:
                arguments[key] = [value[row] for row in rows]
        return arguments

    def _per_row(
        self, scores: Sequence[float | None], rows: Sequence[int], columns: dict[str, Any]
    ) -> Values:
        """Return one score per row of the whole batch, and log each score under its task."""
        of_row = dict(zip(rows, scores, strict=True))
        log_metric = columns.get("log_metric", ignore)
        tasks = self._tasks(columns)
        # Log one value per row: TRL averages all logged values over all ranks. A rank that logs
        # nothing does not count.
        for row, score in of_row.items():
            if score is not None and not math.isnan(score):  # TRL reads NaN as None.
                task = tasks[row]
                if task in ("mean", "std"):  # TRL uses these names for its own metrics.
                    task = f"task {task}"
                log_metric(f"rewards/{self.__name__}/{task}", float(score))
        return [of_row.get(row) for row in range(len(tasks))]


class AsyncRoutedReward(RoutedReward):
    """A :class:`RoutedReward` for an ``async`` reward, which TRL awaits together with others."""

    async def __call__(self, **columns: Any) -> Values:  # type: ignore[override]
        rows = self.judged(columns)
        arguments = self._arguments(columns, rows)
        return self._per_row(await self.reward(**arguments) if rows else [], rows, columns)
