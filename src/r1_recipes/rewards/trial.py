"""Try rewards on a few rows before a run, and check which reference answers they can read."""

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


_MAX_ROWS_SEARCHED = 256  # Rows to search for two rows of a reward's tasks.


def judged_rows(reward: Callable, rows: Dataset) -> Sequence[int]:
    """Return the rows that a reward scores: all, or those of its tasks in ``task_rewards``."""
    if not isinstance(reward, RoutedReward):
        return range(len(rows))
    return reward.judged({key: rows[key] for key in rows.column_names})


def readable_golds(name: str, reward: Callable, rows: Dataset) -> dict[int, bool]:
    """Return, for each row that a reward scores, whether it can read the reference answer."""
    scored = judged_rows(reward, rows)
    if not scored:
        return {}
    # Leave out pictures, because to_list() would decode them.
    columns = [key for key in rows.column_names if key != "image"]
    examples = rows.select(scored).select_columns(columns).to_list()
    verdicts = score(name, reward, examples, [""] * len(examples), None)
    return {index: verdict is not None for index, verdict in zip(scored, verdicts, strict=True)}


def try_own_rewards(
    names: Sequence[str],
    rewards: Sequence[Callable],
    rows: Dataset,
    fmt: ResponseFormat,
    tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """Call each reward from outside this package on two rows.

    So a mistake in it is found in seconds, before the model is loaded.
    """
    for name, reward in zip(names, rewards, strict=True):
        inner = reward.reward if isinstance(reward, RoutedReward) else reward
        if getattr(inner, "__module__", "").startswith("r1_recipes."):
            continue
        searched = rows.select(range(min(len(rows), _MAX_ROWS_SEARCHED)))
        samples, texts = [], []
        for index in judged_rows(reward, searched)[:2]:
            row = rows[index]
            samples += [row, row]
            texts += [_rendered(fmt, right_answer(row.get("solution"))), ""]
        if samples:
            score(name, inner, samples, texts, tokenizer)


def _rendered(fmt: ResponseFormat, answer: str | None) -> str:
    with contextlib.suppress(ValueError):  # This format cannot contain the reference answer.
        return fmt.render_completion("Let me see.", answer or "1")
    return answer or "1"
