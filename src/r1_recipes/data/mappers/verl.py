"""veRL's preprocessed Parquet, and DAPO's mathematics, which is published in it."""

import re
from typing import Any

from r1_recipes.data.mappers.base import Mapper, SkipRow, as_text, optional_text, register_mapper, required_text
from r1_recipes.data.mappers.chats import last_question, read_turns
from r1_recipes.tasks.countdown import read_puzzle

# The instruction that DAPO's prompts are wrapped in; it asks for a line of its own, where a response format asks for its shape.
_DAPO_OPENING = re.compile(r"\A\s*Solve the following math problem step by step\.[^\n]*\n+")
_DAPO_CLOSING = "Remember to put your answer on its own line after"


@register_mapper("dapo")
class DAPO(Mapper):
    """open-r1/DAPO-Math-17k-Processed (``prompt`` a text, ``solution`` the bare gold) and BytedTsinghua-SIA/DAPO-Math-17k (veRL's columns).

    The instruction around the problem is taken off. The original set holds each problem about a hundred times: use ``max_samples``.
    """

    columns = ("prompt", "solution", "source_prompt")
    needs = ("prompt", ("solution", "reward_model"))

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        question = _DAPO_OPENING.sub("", last_question(row, "prompt")).strip()
        before, _, last = question.rpartition("\n")
        question = before.rstrip() if before and _DAPO_CLOSING in last else question
        if not question:
            raise SkipRow("column 'prompt' is empty")
        gold = optional_text(row, "solution") or as_text(_ground_truth(row), "ground_truth")
        if not gold:
            raise SkipRow("no gold in columns 'solution' and 'reward_model'")
        return {"question": question, "solution": gold}


@register_mapper("verl")
class Verl(Mapper):
    """veRL's preprocessed Parquet, TinyZero's among it: ``data_source``, ``prompt``, ``reward_model`` (with ``ground_truth``).

    The question is the last turn of the prompt, which must be the user's, verbatim: it may be a whole template that ends in an open
    ``<think>``. Earlier turns, a system message among them, go before it. ``data_source`` becomes the ``task``. A ground truth with
    ``numbers`` and ``target`` is a Countdown puzzle (column ``scorer``); a number or a text is the ``solution``.
    """

    columns = ("data_source", "prompt", "reward_model")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        turns = read_turns(row.get("prompt"), "prompt", "user")
        if turns[-1]["role"] != "user" or not turns[-1]["content"].strip():
            raise SkipRow("column 'prompt' does not end in a turn of the user's")
        mapped = {"question": turns[-1]["content"], "task": required_text(row, "data_source"), **_gold(_ground_truth(row))}
        return {**mapped, "messages": turns} if len(turns) > 1 else mapped


def _ground_truth(row: dict[str, Any]) -> Any:
    rule = row.get("reward_model")
    return rule.get("ground_truth") if isinstance(rule, dict) else None


def _gold(truth: Any) -> dict[str, str]:
    """``solution`` and, of a Countdown puzzle, ``scorer``."""
    if isinstance(truth, dict):
        puzzle = read_puzzle(truth.get("numbers"), truth.get("target"))
        if puzzle is not None:
            return {"solution": "", "scorer": puzzle.scorer}
    elif isinstance(truth, str | int | float) and not isinstance(truth, bool) and str(truth).strip():
        return {"solution": str(truth).strip()}
    raise SkipRow("column 'reward_model' has no ground_truth that is a number, a text, or numbers and a target")
