"""veRL's preprocessed Parquet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from r1_recipes.data.mappers.base import Mapper, SkipRow, register_mapper, required_text
from r1_recipes.data.mappers.chats import read_turns
from r1_recipes.tasks.countdown import read_puzzle


@register_mapper("verl")
@dataclass(frozen=True)
class Verl(Mapper):
    """veRL's preprocessed Parquet, TinyZero's among it: ``data_source``, ``prompt``, ``reward_model`` (with ``ground_truth``).

    The question is the last turn of the prompt, which must be the user's, verbatim: it may be a whole template that ends in an open
    ``<think>``. Earlier turns, a system message among them, go before it. ``data_source`` becomes the ``task``. A ground truth with
    ``numbers`` and ``target`` is a Countdown puzzle (column ``scorer``); a number or a text is the ``solution``.
    """

    columns = ("data_source", "prompt", "reward_model")
    hub = (("BytedTsinghua-SIA/DAPO-Math-17k", None),)
    optional = ("ability", "extra_info")
    # One column holds one type: ground truths of other kinds are in the tests.
    examples = tuple(
        {
            "target": target,
            "nums": numbers,
            "data_source": "countdown",
            "prompt": [{"role": "user", "content": f"User: Make {target} of {numbers}.\nAssistant: Step by step.\n<think>"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": {"target": target, "numbers": numbers}},
            "extra_info": {"split": "train", "index": index},
        }
        for index, (target, numbers) in enumerate(((31, [7, 4, 3]), (24, [8, 2, 4])))
    )

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        prompt = row["prompt"]
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else read_turns(prompt, "prompt")
        if turns[-1]["role"] != "user" or not turns[-1]["content"].strip():
            raise SkipRow("column 'prompt' does not end in a turn of the user's")
        mapped = {"question": turns[-1]["content"], "task": required_text(row, "data_source"), **_ground_truth(row["reward_model"])}
        return {**mapped, "messages": turns} if len(turns) > 1 else mapped


def _ground_truth(rule: Any) -> dict[str, str]:
    """``solution`` and, of a Countdown puzzle, ``scorer``."""
    truth = rule.get("ground_truth") if isinstance(rule, dict) else None
    if isinstance(truth, dict):
        puzzle = read_puzzle(truth.get("numbers"), truth.get("target"))
        if puzzle is not None:
            return {"solution": "", "scorer": puzzle.scorer}
    elif isinstance(truth, str | int | float) and not isinstance(truth, bool) and str(truth).strip():
        return {"solution": str(truth).strip()}
    raise SkipRow("column 'reward_model' has no ground_truth that is a number, a text, or numbers and a target")
