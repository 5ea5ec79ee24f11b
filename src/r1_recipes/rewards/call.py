"""Call rewards: as TRL does, outside a trainer; and each on the rows of its tasks, as a recipe's
``task_rewards`` says.

TRL's ``GRPOTrainer`` sums rewards with ``nansum``, so ``None`` adds nothing, and a row that every
reward leaves out gets advantage 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import (
    OWN_FAULTS,
    RecipeError,
    defined_at,
    first_line,
    own_place,
    unknown_name,
)
from r1_recipes.common.messages import clip
from r1_recipes.data.mappers.base import last_boxed
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.registry import Values, ignore
from r1_recipes.verification.gold import read_gold
from r1_recipes.verification.reading import read_answer, settle

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_TRIED_FROM = 256  # rows among which two of a reward's tasks are looked for
_warn = functools.cache(logger.warning)  # once per task


def score(
    name: str,
    function: Callable,
    rows: Sequence[dict[str, Any]],
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase | None,
    tokens: Sequence[int] | None = None,
) -> Values:
    """Judge one completion per row; ``None`` if the reward does not judge it.

    ``rows`` are each text's own, repeated if a row has several. Without a tokenizer, characters
    stand for tokens. ``tokens`` says how many were generated for each, if not as many as the text
    has. A reward that fails, or returns anything else, is a RecipeError.
    """
    from transformers import TrainerState

    columns = {
        key: [row[key] for row in rows]
        for key in rows[0]
        if key not in ("prompt", "completion", "completion_ids")
    }
    if "environments" in inspect.signature(function).parameters:  # which TRL's trainer alone has
        return [None] * len(texts)
    try:
        result = function(
            prompts=[row["prompt"] for row in rows],
            completions=[[{"role": "assistant", "content": text}] for text in texts],
            completion_ids=_token_ids(texts, tokenizer, tokens),
            trainer_state=TrainerState(
                epoch=0.0, max_steps=1, num_train_epochs=1
            ),  # no zero to divide by
            log_extra=ignore,
            log_metric=ignore,
            **columns,
        )
        result = asyncio.run(result) if inspect.iscoroutine(result) else result
    except OWN_FAULTS as error:
        raise _failure(name, error, columns) from error
    return _numbers(name, function, result, len(texts))


def _failure(name: str, error: BaseException, columns: Mapping[str, Any]) -> RecipeError:
    """Return the error of a reward as one line, with the reward's own place, not that of a library
    it calls.
    """
    if isinstance(error, RecipeError):
        return error
    place = own_place(error)
    if "unexpected keyword" in str(error):
        place += ". Fix: end its parameters with **columns, since every column is passed by name"
    absent = (
        isinstance(error, KeyError)
        and isinstance(error.args[0], str)
        and error.args[0] not in columns
    )
    if absent or re.search("missing .* required (positional|keyword-only) argument", str(error)):
        place += (
            f". It gets the columns {', '.join(columns)}; keep_columns in the recipe says which "
            f"of the data's others stay"
        )
    return RecipeError(f"reward {name!r} fails: {first_line(error)[:-1]}{place}")


def _numbers(name: str, function: Callable, result: Any, count: int) -> Values:
    try:
        values = list(result)
        if len(values) != count or not all(
            value is None or math.isfinite(value) for value in values
        ):
            raise ValueError
        return [None if value is None else float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        place = defined_at(getattr(function, "reward", function))  # of one for some tasks alone
        wanted = f"Fix: return a list with one finite number (or None) per completion, here {count}"
        raise RecipeError(f"reward {name!r} returned {str(result)[:80]}{place}. {wanted}") from None


def guarded(name: str, reward: Callable, note: Callable[[RecipeError], Any]) -> Callable[..., Any]:
    """Wrap a reward so that ``note`` gets its failure, and the batch is judged to its end; the
    other processes would wait forever.
    """

    def judge(**columns: Any) -> Values:
        try:
            return _numbers(name, reward, reward(**columns), len(columns["completions"]))
        except OWN_FAULTS as error:
            note(_failure(name, error, columns))
            return [0.0] * len(columns["completions"])

    async def judge_later(**columns: Any) -> Values:
        try:
            return _numbers(name, reward, await reward(**columns), len(columns["completions"]))
        except OWN_FAULTS as error:
            note(_failure(name, error, columns))
            return [0.0] * len(columns["completions"])

    return judge_later if _is_async(reward) else judge


def _is_async(reward: Callable) -> bool:
    return any(map(inspect.iscoroutinefunction, (reward, type(reward).__call__)))


def _token_ids(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase | None, tokens: Sequence[int] | None
) -> list[list[int]]:
    if tokenizer is None:
        return [[*map(ord, text)] or [0] for text in texts]
    # The token that ends an empty completion is one, too.
    ids = [
        tokenizer(text, add_special_tokens=False)["input_ids"] or [tokenizer.pad_token_id]
        for text in texts
    ]
    if tokens is None:
        return ids
    # What ended the turn, and special tokens, are not in the text; their number counts.
    return [
        (one + [tokenizer.pad_token_id] * count)[:count]
        for one, count in zip(ids, tokens, strict=True)
    ]


def right_answer(solution: Any) -> str | None:
    r"""The answer that a gold asks for: what its last ``\boxed{…}`` holds, or follows its last
    ``####``, or all of it.
    """
    gold = "" if solution is None else str(solution)
    return last_boxed(gold) or gold.rpartition("####")[2].strip() or None


def several_golds(questions: Iterable[str], golds: Iterable[Any]) -> str:
    """Say how many questions come again with a gold that says something else, and what the first
    has; ``""``: none does.
    """
    first: dict[str, str | None] = {}
    found: dict[str, str] = {}
    for question, gold in zip(questions, map(right_answer, golds), strict=True):
        known = first.setdefault(question, gold)
        if (
            known
            and gold
            and known != gold
            and (read := read_gold(known))
            and not settle(read, read_answer(gold, read))
        ):
            found.setdefault(
                question, f"{clip(question, 120)!r} has {known!r:.80} and {gold!r:.80}"
            )
    return (
        f"{len(found)} of {len(first)} questions come again with another gold: "
        f"{next(iter(found.values()))}"
        if found
        else ""
    )


def judged_rows(reward: Callable, rows: Dataset) -> Sequence[int]:
    """The rows that a reward sees: those of its tasks if ``task_rewards`` gives it some,
    else all.
    """
    if not isinstance(reward, RoutedReward):
        return range(len(rows))
    return reward.judged({key: rows[key] for key in rows.column_names})


def readable_golds(name: str, reward: Callable, rows: Dataset) -> dict[int, bool]:
    """Whether a reward that compares with a gold can read each row's, by index; rows of other tasks
    are left out.
    """
    mine = judged_rows(reward, rows)
    if not mine:
        return {}
    # Golds and tasks are text; pictures would be decoded.
    listed = (
        rows.select(mine)
        .select_columns([key for key in rows.column_names if key != "image"])
        .to_list()
    )
    verdicts = score(name, reward, listed, [""] * len(listed), None)
    return {index: verdict is not None for index, verdict in zip(mine, verdicts, strict=True)}


def try_own_rewards(
    names: Sequence[str],
    rewards: Sequence[Callable],
    rows: Dataset,
    fmt: ResponseFormat,
    tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """Call each reward from outside this package on two rows, before the model is loaded: a mistake
    in it costs seconds.
    """
    for name, reward in zip(names, rewards, strict=True):
        inner = reward.reward if isinstance(reward, RoutedReward) else reward
        if getattr(inner, "__module__", "").startswith("r1_recipes."):
            continue
        mine = [
            rows[index]
            for index in judged_rows(reward, rows.select(range(min(len(rows), _TRIED_FROM))))[:2]
        ]
        tried = [
            (row, text)
            for row in mine
            for text in (_written(fmt, right_answer(row.get("solution"))), "")
        ]
        if tried:
            score(name, inner, [row for row, _ in tried], [text for _, text in tried], tokenizer)


def _written(fmt: ResponseFormat, answer: str | None) -> str:
    with contextlib.suppress(ValueError):  # a gold that this format cannot hold
        return fmt.render_completion("Let me see.", answer or "1")
    return answer or "1"


def check_task_rewards(task_rewards: Any, reward_funcs: Sequence[str]) -> list[str]:
    """Refuse a ``task_rewards`` that cannot be followed, before any data are read; return the
    rewards that no entry names.
    """
    if not isinstance(task_rewards, Mapping) or not task_rewards:
        raise RecipeError(
            f"task_rewards: must be a mapping {{TASK: [reward, …]}}, got {task_rewards!r}"
        )
    for_all = list(reward_funcs)
    for entry, rewards in task_rewards.items():
        if not isinstance(entry, str) or not isinstance(rewards, list | tuple):
            raise RecipeError(
                f"task_rewards: {entry!r}: must be text, with a list of rewards, got {rewards!r}"
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
    """Let each reward judge the rows of its tasks alone; one that no entry names judges all rows.

    Each reward's mean on each task goes to the metric ``rewards/<reward>/<task>``. Without
    ``task_column``, a row's task stands in the column ``task``, else ``data_source``.
    """
    for_all = check_task_rewards(task_rewards, names)
    routed: list[Callable[..., Values]] = []
    for func, name in zip(funcs, names, strict=True):
        routed.append(
            (AsyncRoutedReward if _is_async(func) else RoutedReward)(
                func, name, task_rewards, for_all, task_column
            )
        )
    return routed


@dataclass(frozen=True)
class RoutedReward:
    reward: Callable
    name: str
    task_rewards: Mapping[str, Sequence[str]]
    for_all: Sequence[str]  # the rewards that no entry names
    column: str | None
    logged: dict[str, None] = field(default_factory=dict)  # columns of the completions table

    @property
    def __name__(self) -> str:
        return getattr(self.reward, "__name__", self.name)

    def judged(self, columns: Mapping[str, Any]) -> list[int]:
        """The rows that this reward judges; it is an error if there is no column of tasks, or a row
        that no reward would judge.
        """
        tasks = self._tasks(columns)
        for task in sorted({task for task in tasks if not self.task_rewards.get(task)}):
            known = ", ".join(sorted(self.task_rewards))
            if not self.for_all:
                raise RecipeError(
                    f"task_rewards: row {tasks.index(task)} has task {task!r}, which no "
                    f"reward judges; tasks known: {known}"
                )
            if task not in self.task_rewards:
                _warn(
                    f"task_rewards: no entry for task {task!r}; its rows are judged by "
                    f"{', '.join(self.for_all)} alone"
                )
        return [
            row
            for row, task in enumerate(tasks)
            if self.name in self.for_all or self.name in self.task_rewards.get(task, ())
        ]

    def _tasks(self, columns: Mapping[str, Any]) -> list[str]:
        known = [
            name
            for name, value in columns.items()
            if isinstance(value, Sequence) and not isinstance(value, str)
        ]
        column = self.column or next(
            (name for name in ("task", "data_source") if name in known), "task"
        )
        if column not in known:
            raise RecipeError("task_column: " + unknown_name("column", column, known))
        return [str(task) for task in columns[column]]

    def __call__(self, **columns: Any) -> Values:
        rows, arguments = self._select(columns)
        # One that asks the other processes must be called in all of them, or they wait for it.
        called = rows or getattr(self.reward, "spans_processes", False)
        return self._spread(self.reward(**arguments) if called else [], rows, columns)

    def _select(self, columns: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
        """The rows that this reward judges, and its arguments for them."""
        rows, count = self.judged(columns), len(columns["completions"])
        log_extra = columns.get("log_extra", ignore)

        def log_some(column: str, values: Sequence[Any]) -> None:
            self.logged[column] = None
            of_row = dict(zip(rows, values, strict=True))
            log_extra(column, [of_row.get(row) for row in range(count)])

        for column in (
            self.logged if not rows else ()
        ):  # the completions table would show an earlier batch's values
            log_some(column, [])
        arguments = {
            key: [value[row] for row in rows]
            if isinstance(value, list | tuple) and len(value) == count
            else value
            for key, value in columns.items()
        }
        return rows, {**arguments, "log_extra": log_some}

    def _spread(
        self, scores: Sequence[float | None], rows: Sequence[int], columns: dict[str, Any]
    ) -> Values:
        """The scores as one entry per row of the whole batch; each goes to its task's curve."""
        of_row, log_metric = dict(zip(rows, scores, strict=True)), columns.get("log_metric", ignore)
        tasks = self._tasks(columns)
        # TRL takes the mean over all ranks of what was logged, so one value per row; a rank without
        # the name does not count.
        for row, score in of_row.items():
            if score is not None and not math.isnan(score):  # TRL takes NaN for None
                task = (
                    f"task {tasks[row]}" if tasks[row] in ("mean", "std") else tasks[row]
                )  # TRL's own curves
                log_metric(f"rewards/{self.__name__}/{task}", float(score))
        return [of_row.get(row) for row in range(len(tasks))]


class AsyncRoutedReward(RoutedReward):
    """The same around an ``async`` reward, which TRL awaits together with the others."""

    async def __call__(self, **columns: Any) -> Values:  # type: ignore[override]
        rows, arguments = self._select(columns)
        return self._spread(await self.reward(**arguments) if rows else [], rows, columns)
