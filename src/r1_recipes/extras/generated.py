"""Draw the distinct rows of a generated data set."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from r1_recipes.common.errors import RecipeError, require

# Drawn rows, each with the key that identifies it. Rows with equal keys are duplicates.
Draws = Iterable[tuple[Hashable, dict[str, Any]]]


def task_keys(config: dict[str, Any], *names: str) -> list[Any]:
    """Return the values of these keys of ``task_config``, which has no others but the splits."""
    require(
        {*names} <= config.keys() <= {*names, "train", "test"},
        "task_config",
        f"a mapping of {', '.join(names)}, train and test",
        config,
    )
    return [config[name] for name in names]


def distinct_rows(
    draw: Callable[[int, int], Draws], split: str, config: dict[str, Any], what: str
) -> Any:
    """Return the first distinct rows of a split as a data set. No row of ``train`` is in ``test``.

    ``draw`` takes a seed and a size; ``config`` has both for ``train`` and for ``test``.
    """
    from datasets import Dataset  # heavy

    taken: dict[Hashable, dict[str, Any]] = {}
    for part in ("test", "train"):
        settings = config.get(part) or {}
        require(
            settings.keys() == {"size", "seed"} and settings["size"] > 0,
            f"task_config: {part}",
            "{size: …, seed: …}",
            settings,
        )
        rows: dict[Hashable, dict[str, Any]] = {}
        for key, row in draw(settings["seed"], settings["size"]):
            if key not in taken:
                rows.setdefault(key, row)
            if len(rows) == settings["size"]:
                break
        else:
            raise RecipeError(
                f"task_config: {part}: size: there are only {len(rows)} distinct {what}, not "
                f"{settings['size']}. Fix: a smaller size, or a task with more variants"
            )
        if part == split:
            return Dataset.from_list([*rows.values()], on_mixed_types="use_json")
        taken |= rows
    raise RecipeError(f"split {split!r}: {what} have only the splits 'train' and 'test'")
