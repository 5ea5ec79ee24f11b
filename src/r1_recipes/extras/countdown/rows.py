"""Countdown puzzles that are drawn."""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.data.generated import Draws, distinct_rows, whole_number
from r1_recipes.extras.countdown.puzzle import draw as draw_puzzle

if TYPE_CHECKING:
    from datasets import Dataset


def countdown_rows(count: str, split: str, config: dict[str, Any]) -> Dataset:
    """Draw Countdown puzzles: ``nums``, ``target`` (as in Jiayi-Pan/Countdown-Tasks-3to4) and
    ``expression``, a solution.

    ``count`` is ``"3-4"`` or ``"3"`` numbers, 2 to 6; ``config`` has ``min_value``, ``max_value``,
    ``min_target``, ``max_target``, each from 1, and ``size`` and ``seed`` of ``train`` and
    ``test``.
    """
    bounds = re.fullmatch(r"([2-6])(?:-([2-6]))?", count)
    if bounds is None or bounds[1] > (bounds[2] or bounds[1]):
        raise RecipeError(
            f"dataset_name: countdown:{count}: how many numbers a puzzle has, from 2 to 6, "
            f"such as countdown:3-4"
        )
    settings = {"min_numbers": int(bounds[1]), "max_numbers": int(bounds[2] or bounds[1])}
    for name in ("value", "target"):
        low = settings[f"min_{name}"] = whole_number(config.get(f"min_{name}"), 1, f"min_{name}")
        settings[f"max_{name}"] = whole_number(config.get(f"max_{name}"), low, f"max_{name}")
    keys = {"min_value", "max_value", "min_target", "max_target", "train", "test"}
    for key in config.keys() - keys:
        raise RecipeError("task_config: " + unknown_name("key of countdown", key, keys))

    def draw(part: dict[str, Any]) -> Draws:
        rng = Random(part["seed"])
        for _ in range(
            100 * part["size"] + 1000
        ):  # a narrow range repeats itself, or seldom meets a target
            if found := draw_puzzle(rng, settings):
                (numbers, target), expression = found
                yield (
                    (*sorted(numbers), target),
                    {"nums": list(numbers), "target": target, "expression": expression},
                )

    return distinct_rows(draw, split, config, f"puzzles of countdown:{count}")
