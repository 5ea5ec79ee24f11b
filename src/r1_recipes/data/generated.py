"""What data sets share that are drawn instead of read: distinct rows of ``train`` and ``test``, and
the checks of their keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, nearest

if TYPE_CHECKING:
    from datasets import Dataset

# Rows that were drawn, each after what makes it the same as another.
Draws = Iterable[tuple[Hashable, dict[str, Any]]]


def distinct_rows(
    draw: Callable[[dict[str, Any]], Draws], split: str, config: dict[str, Any], what: str
) -> Dataset:
    """Take the first distinct rows of a split; those of ``train`` are none of ``test``."""
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
                f"task_config: {part}: only {len(rows)} distinct {what}, not {size}. Fix: a "
                f"smaller size, or a wider task"
            )
        if part == split:
            drawn = list(rows.values())  # of which one may have a key that another lacks
            columns = {key: [row.get(key) for row in drawn] for key in dict.fromkeys(chain(*drawn))}
            return Dataset.from_dict(columns, on_mixed_types="use_json")
    raise RecipeError(f"split {split!r}: there are 'train' and 'test' {what}")


def nearest_key(given: Iterable[str], known: Collection[str]) -> str:
    """Which key somebody may have meant who gave one that is not known."""
    near = [
        close[0] for key in map(str, given) if key not in known and (close := nearest(key, known))
    ]
    return f" Did you mean {near[0]!r}?" if near else ""


def whole_number(value: Any, least: int, key: str, hint: str = "") -> int:
    if not isinstance(value, int) or value < least:
        raise RecipeError(
            f"task_config: {key}: must be a whole number from {least}, got {value!r}.{hint}"
        )
    return value
