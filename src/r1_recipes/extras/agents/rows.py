"""Draw the rows of a data set with an environment."""

from __future__ import annotations

import inspect
import json
from random import Random
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, defined_at, own_code
from r1_recipes.extras.agents.build import ENVIRONMENTS
from r1_recipes.extras.generated import Draws, distinct_rows

if TYPE_CHECKING:
    from datasets import Dataset


def environment_rows(name: str, split: str, config: dict[str, Any]) -> Dataset:
    """Return rows that an environment's class method ``draw(rng, **keys)`` draws.

    ``config`` has the keys of ``draw``, and the size and seed of each split.
    """
    kind = ENVIRONMENTS.resolve(name)
    if not hasattr(kind, "draw"):
        raise RecipeError(
            f"dataset_name: environment:{name}: has no class method draw(rng) that returns "
            f"rows. Fix: write draw, or use your own rows"
        )
    place = defined_at(kind.draw)
    options = {key: value for key, value in config.items() if key not in ("train", "test")}
    try:
        inspect.signature(kind.draw).bind(Random(0), **options)
    except TypeError as error:
        raise RecipeError(f"task_config of {name!r}: {error}{place}") from error

    def draw(seed: int, size: int) -> Draws:
        rng = Random(seed)
        for _ in range(20 * size + 1000):  # A small game repeats rows.
            with own_code(f"environment {name!r}: draw", kind.draw):
                values = kind.draw(rng, **options)
            if not isinstance(values, dict) or values.get("question") is None:
                fix = "Fix: return {'question': …} and the arguments of reset"
                raise RecipeError(
                    f"environment {name!r}: draw{place}: must return a dict with a "
                    f"'question', got {values!r:.80}. {fix}"
                )
            row = {"environment": name, **values}
            yield json.dumps(row, sort_keys=True, default=str), row

    return distinct_rows(draw, split, config, f"rows of environment {name!r}")
