"""Read the rows of an environment of verifiers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError, located, require
from r1_recipes.data.sources import split_fix
from r1_recipes.extras.verifiers.environment import MADE, load, seeded, stamp

if TYPE_CHECKING:
    from datasets import Dataset


def verifiers_rows(name: str, split: str, config: dict[str, Any]) -> Dataset:
    """Return rows as JSON in the column ``verifiers``: environment, arguments and row.

    Args:
        name: The name of an installed environment.
        split: ``"train"``, ``"test"`` (its evaluation set) or a part of one: ``"train[-128:]"``. A
            taskset of ``verifiers.v1`` has only ``"train"``.
        config: The arguments of ``load_environment``, or the config of a taskset.
    """
    from datasets import Dataset, ReadInstruction  # heavy

    arguments = json.dumps(config, default=str)
    environment = load(name, arguments)
    with seeded():
        splits = environment.splits()
    lengths = {key: len(rows) for key, rows in splits.items()}
    [only, *_] = lengths
    fix = split_fix(lengths[only]).replace("'train", f"'{only}")
    whole = split.partition("[")[0]
    require(whole in splits, f"split of verifiers:{name}", " or ".join(splits), whole, fix)
    with located(f"split of verifiers:{name}"):
        [part] = ReadInstruction.from_spec(split).to_absolute(lengths)
    specs = [
        json.dumps({"environment": name, "arguments": arguments, "row": row}, default=str)
        for row in list(splits[part.splitname])[part.from_ : part.to]
    ]
    stamps = [stamp(spec) for spec in specs]
    MADE.update(stamps)
    if len({*processes.gather([b"".join(stamps)])}) > 1:
        raise RecipeError(
            f"dataset_name: verifiers:{name}: the processes got different rows. Fix: give "
            f"load_environment a seed"
        )
    return Dataset.from_dict({"verifiers": specs})
