"""A reward on rows before a run: which rows it judges, which it can read, whether it works."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.call import right_answer, score
from r1_recipes.rewards.routing import RoutedReward

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


_TRIED_FROM = 256  # rows among which two of a reward's tasks are looked for


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
