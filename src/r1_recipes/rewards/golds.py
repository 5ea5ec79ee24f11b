"""Which golds a reward can judge by."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from r1_recipes.rewards.call import score

if TYPE_CHECKING:
    from datasets import Dataset


def readable_golds(name: str, reward: Callable, rows: Dataset) -> dict[int, bool]:
    """Return whether a reward that compares with a gold can read each row's, by index; rows of other tasks are left out.

    Raises:
        RecipeError: the reward fails.
    """
    judged = getattr(reward, "judged", None)  # a routed reward's
    mine = range(len(rows)) if judged is None else judged({key: rows[key] for key in rows.column_names})
    if not mine:
        return {}
    # Golds and tasks are text; pictures would be decoded.
    listed = rows.select(mine).select_columns([key for key in rows.column_names if key != "image"]).to_list()
    verdicts = score(name, reward, listed, [""] * len(listed), None)
    return {index: verdict is not None for index, verdict in zip(mine, verdicts, strict=True)}
