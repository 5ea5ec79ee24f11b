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

    rows: dict[Hashable, dict[str, Any]] = {}
    for part in ("test", "train"):
        taken, rows = rows, {}
        settings = config[part] if isinstance(config.get(part), dict) else {}
        hint = nearest_key(settings, ("size", "seed"))
        size = whole_number(settings.get("size"), 1, f"{part}: size", hint)
        whole_number(settings.get("seed"), 0, f"{part}: seed", hint)
        for key, row in draw(settings):
            if key not in taken:
                rows.setdefault(key, row)
            if len(rows) == size:
                break
        else:
            raise RecipeError(
                f"task_config: {part}: size: there are only {len(rows)} distinct {what}, "
                f"not {size}. Fix: a smaller size, or a task with more variants"
            )
        if part == split:
            drawn = list(rows.values())  # Rows may have different keys.
            columns = {key: [row.get(key) for row in drawn] for key in dict.fromkeys(chain(*drawn))}
            return Dataset.from_dict(columns, on_mixed_types="use_json")
    raise RecipeError(f"split {split!r}: {what} have only the splits 'train' and 'test'")


def nearest_key(given: Iterable[str], known: Collection[str]) -> str:
    """Return a hint for the first misspelt key, or "" if no given key resembles a known one."""
    near = [
        close[0] for key in map(str, given) if key not in known and (close := nearest(key, known))
    ]
    return f" Did you mean {near[0]!r}?" if near else ""


def whole_number(value: Any, least: int, key: str, hint: str = "") -> int:
    """Return ``value``, or raise if it is not a whole number of at least ``least``."""
    if not isinstance(value, int) or value < least:
        raise RecipeError(
            f"task_config: {key}: must be a whole number, at least {least}, got {value!r}.{hint}"
        )
    return value
