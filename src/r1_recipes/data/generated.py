"""Draw the distinct rows of a generated data set, and check its keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, nearest

if TYPE_CHECKING:
    from datasets import Dataset

# Drawn rows, each with the key that identifies it. Rows with equal keys are duplicates.
Draws = Iterable[tuple[Hashable, dict[str, Any]]]


def distinct_rows(
    draw: Callable[[dict[str, Any]], Draws], split: str, config: dict[str, Any], what: str
) -> Dataset:
    """Return the first distinct rows of a split. No row of ``train`` is in ``test``."""
    from datasets import Dataset  # heavy

    taken: set[Hashable] = set()
    for part in ("test", "train"):
        settings = config[part] if isinstance(config.get(part), dict) else {}
        hint = nearest_key(settings, ("size", "seed"))
        size = whole_number(settings.get("size"), 1, f"{part}: size", hint)
        whole_number(settings.get("seed"), 0, f"{part}: seed", hint)
        rows: list[dict[str, Any]] = []
        for key, row in draw(settings):
            if key not in taken:
                taken.add(key)
                rows.append(row)
            if len(rows) == size:
                break
        else:
            raise RecipeError(
                f"task_config: {part}: size: there are only {len(rows)} distinct {what}, "
                f"not {size}. Fix: a smaller size, or a task with more variants"
            )
        if part == split:
            names = dict.fromkeys(chain(*rows))  # Rows may have different keys.
            columns = {name: [row.get(name) for row in rows] for name in names}
            return Dataset.from_dict(columns, on_mixed_types="use_json")
    raise RecipeError(f"split {split!r}: {what} have only the splits 'train' and 'test'")


def nearest_key(given: Iterable[str], known: Collection[str]) -> str:
    """Return a hint for the first misspelt key, or "" if no given key resembles a known one."""
    for key in given:
        close = nearest(str(key), known)
        if close and key not in known:
            return f" Did you mean {close[0]!r}?"
    return ""


def whole_number(value: Any, least: int, key: str, hint: str = "") -> int:
    """Return ``value``, or raise if it is not a whole number of at least ``least``."""
    if not isinstance(value, int) or value < least:
        raise RecipeError(
            f"task_config: {key}: must be a whole number, at least {least}, got {value!r}.{hint}"
        )
    return value
