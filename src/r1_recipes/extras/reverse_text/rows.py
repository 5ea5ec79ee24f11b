"""Draw the rows of a data set of texts to write backwards."""

from __future__ import annotations

import string
from random import Random
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.data.generated import Draws, distinct_rows, whole_number

if TYPE_CHECKING:
    from datasets import Dataset

ALPHABETS = {"digits": string.digits, "letters": string.ascii_lowercase}


def reverse_text_rows(alphabet: str, split: str, config: dict[str, Any]) -> Dataset:
    """Return random texts in the column ``prompt``, as in PrimeIntellect/Reverse-Text-RL.

    Args:
        alphabet: ``"digits"`` or ``"letters"``.
        split: ``"train"`` or ``"test"``.
        config: ``min_length`` and ``max_length`` in characters, and ``size`` and ``seed`` of
            ``train`` and ``test``.
    """
    if alphabet not in ALPHABETS:
        name = unknown_name("alphabet of reverse_text", alphabet, ALPHABETS)
        raise RecipeError(f"dataset_name: {name}")
    known = {"min_length", "max_length", "train", "test"}
    for key in config.keys() - known:
        raise RecipeError("task_config: " + unknown_name("key of reverse_text", key, known))
    shortest = whole_number(config.get("min_length"), 2, "min_length")
    longest = whole_number(config.get("max_length"), shortest, "max_length")

    def draw(part: dict[str, Any]) -> Draws:
        rng = Random(part["seed"])
        # Short texts repeat.
        for _ in range(20 * part["size"] + 1000):
            text = "".join(rng.choices(ALPHABETS[alphabet], k=rng.randint(shortest, longest)))
            # The model could copy a text that reads the same backwards.
            if text != text[::-1]:
                yield text, {"prompt": text}

    return distinct_rows(draw, split, config, f"texts of reverse_text:{alphabet}")
