"""Draw the rows of a data set of Countdown puzzles."""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, require, unknown_name
from r1_recipes.extras.countdown.puzzle import draw as draw_puzzle
from r1_recipes.extras.generated import Draws, distinct_rows

if TYPE_CHECKING:
    from datasets import Dataset


def countdown_rows(count: str, split: str, config: dict[str, Any]) -> Dataset:
    """Return random Countdown puzzles with a solution, ``expression``.

    The columns ``nums`` and ``target`` are those of Jiayi-Pan/Countdown-Tasks-3to4.

    Args:
        count: How many numbers a puzzle has: ``"3-4"`` or ``"3"``, from 2 to 6.
        split: ``"train"`` or ``"test"``.
        config: ``min_value``, ``max_value``, ``min_target`` and ``max_target``, each 1 or more, and
            ``size`` and ``seed`` of ``train`` and ``test``.
    """
    bounds = re.fullmatch(r"([2-6])(?:-([2-6]))?", count)
    if bounds is None or bounds[1] > (bounds[2] or bounds[1]):
        raise RecipeError(
            f"dataset_name: countdown:{count}: must name the count of numbers, from 2 to 6. "
            f"Fix: for example countdown:3-4"
        )
    keys = {"min_value", "max_value", "min_target", "max_target", "train", "test"}
    for key in config.keys() - keys:
        raise RecipeError("task_config: " + unknown_name("key of countdown", key, keys))
    settings: dict[str, Any] = {
        "min_numbers": int(bounds[1]),
        "max_numbers": int(bounds[2] or bounds[1]),
    }
    for name in ("value", "target"):
        low, high = config.get(f"min_{name}"), config.get(f"max_{name}")
        fits = isinstance(low, int) and isinstance(high, int) and 1 <= low <= high
        allowed = "whole numbers from 1, the lower one first"
        require(fits, f"task_config: min_{name}, max_{name}", allowed, (low, high))
        settings |= {f"min_{name}": low, f"max_{name}": high}

    def draw(seed: int, size: int) -> Draws:
        rng = Random(seed)
        # A narrow range repeats puzzles, or rarely meets a target.
        for _ in range(100 * size + 1000):
            if drawn := draw_puzzle(rng, settings):
                (numbers, target), expression = drawn
                yield (
                    (*sorted(numbers), target),
                    {"nums": list(numbers), "target": target, "expression": expression},
                )

    return distinct_rows(draw, split, config, f"puzzles of countdown:{count}")
