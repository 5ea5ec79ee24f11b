"""Rows for environments: the mapper ``environment``, and rows that an environment draws."""

import json
from random import Random
from typing import Any

from r1_recipes.common.errors import own_code
from r1_recipes.data.mappers import MappedRow, register_mapper, text
from r1_recipes.extras.agents.build import ENVIRONMENTS
from r1_recipes.extras.generated import Draws, distinct_rows


@register_mapper("environment", "question", "environment")
def environment_row(row: dict[str, Any]) -> MappedRow:
    """Map a row for an environment: ``question``, and the columns that ``reset`` needs.

    The column ``environment`` names the environment that plays the row. TRL selects it by that.
    """
    mapped = {
        "question": text(row, "question"),
        "environment": text(row, "environment", needed=False),
    }
    return mapped | ({"solution": text(row, "solution", needed=False)} if "solution" in row else {})


def environment_rows(name: str, split: str, config: dict[str, Any]) -> Any:
    """Return rows that an environment's class method ``draw(rng, **keys)`` draws.

    ``config`` has the keys of ``draw``, and the size and seed of each split.
    """
    kind = ENVIRONMENTS.resolve(name)
    options = {key: value for key, value in config.items() if key not in ("train", "test")}

    def draw(seed: int, size: int) -> Draws:
        rng = Random(seed)
        for _ in range(20 * size + 1000):  # A small game repeats rows.
            with own_code(
                f"environment {name!r}: draw",
                "return {'question': …} and the arguments of reset; task_config has draw's keys",
            ):
                row = {"environment": name, **kind.draw(rng, **options)}
            yield json.dumps(row, sort_keys=True, default=str), row

    return distinct_rows(draw, split, config, f"rows of environment {name!r}")
