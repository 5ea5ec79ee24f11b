"""Mathematics problems with a gold answer, and veRL's Parquet, in which many of them are
published.
"""

import re
from itertools import zip_longest
from typing import Any

from r1_recipes.common import extras
from r1_recipes.data.mapped_row import MappedRow
from r1_recipes.data.mappers.base import (
    Mapper,
    SkipRow,
    last_boxed,
    optional_text,
    register_mapper,
    required_text,
)
from r1_recipes.data.mappers.chats import last_question, read_turns

# The instruction that DAPO's prompts are wrapped in; it asks for a line of its own, where a
# response format asks for its shape.
_DAPO_OPENING = re.compile(r"\A\s*Solve the following math problem step by step\.[^\n]*\n+")
_DAPO_CLOSING = "Remember to put your answer on its own line after"


@register_mapper("gsm8k")
class GSM8K(Mapper):
    """openai/gsm8k, modelscope/gsm8k: ``question``, ``answer`` (steps with the calculator's
    ``<<…>>``, then ``#### gold``).
    """

    columns = ("question", "answer")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        reasoning, mark, gold = required_text(row, "answer").rpartition("####")
        gold = gold.strip().replace(",", "")
        if not mark or not gold:
            raise SkipRow("no '#### gold' in column 'answer'")
        return {
            "question": required_text(row, "question"),
            "solution": gold,
            "reasoning": re.sub(r"<<[^<>]*>>", "", reasoning).strip(),
        }


@register_mapper("math")
class Math(Mapper):
    """MATH, MATH-500, AIME, NuminaMath, OpenR1-Math-220k: ``problem`` with ``answer``, or with the
    gold boxed last in ``solution``.
    """

    prompt_column: str = "problem"
    solution_column: str = "answer"
    reasoning_column: str = "solution"
    columns = ("problem",)
    needs = ("problem", ("answer", "solution"))

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        question = required_text(row, self.prompt_column)
        reasoning = optional_text(row, self.reasoning_column)
        gold = optional_text(row, self.solution_column)
        # A gold column may hold the whole worked solution, with the answer boxed.
        gold = last_boxed(gold) or gold or last_boxed(reasoning)
        if not gold:
            raise SkipRow(
                f"no gold in column {self.solution_column or 'answer'!r} and no \\boxed{{}} "
                f"in {self.reasoning_column!r}"
            )
        return {"question": question, "solution": gold, "reasoning": reasoning}


@register_mapper("openr1_math")
class OpenR1Math(Mapper):
    """open-r1/OpenR1-Math-220k: the first of a problem's ``generations`` that is complete and
    correct is the response.

    Correct is what ``correctness_math_verify`` says, or else ``correctness_llama``. A row without
    one has question and gold, for GRPO.
    """

    columns = ("problem", "answer", "generations", "correctness_math_verify")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        mapped = Math()(row)
        return {
            "question": mapped["question"],
            "solution": mapped["solution"],
            "response": _first_correct(row),
        }


def _first_correct(row: dict[str, Any]) -> str:
    # Parallel lists, each of which may be null, or of another length.
    columns = [
        row.get(name)
        for name in (
            "generations",
            "is_reasoning_complete",
            "correctness_math_verify",
            "correctness_llama",
        )
    ]
    for text, complete, verified, judged in zip_longest(
        *(values if isinstance(values, list) else [] for values in columns)
    ):
        if not isinstance(text, str) or not text.strip():
            continue
        # Of a generation that nothing is said about, its closed reasoning says that it came to an
        # end.
        ended = complete is True or (complete is None and "</think>" in text)
        if ended and (judged if verified is None else verified) is True:
            return text
    return ""


@register_mapper("simplerl")
class SimpleRL(Mapper):
    """hkust-nlp/SimpleRL-Zoo-Data: ``question`` and ``gt_answer``; ``prompt`` is a chat template
    already filled in, and is not read.
    """

    columns = ("question", "gt_answer")


@register_mapper("dapo")
class DAPO(Mapper):
    """open-r1/DAPO-Math-17k-Processed: ``prompt`` without the instruction around the problem,
    ``solution`` the bare gold.
    """

    columns = ("prompt", "solution", "source_prompt")
    needs = ("prompt", "solution")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        question = _DAPO_OPENING.sub("", last_question(row, "prompt")).strip()
        before, _, last = question.rpartition("\n")
        question = before.rstrip() if before and _DAPO_CLOSING in last else question
        if not question:
            raise SkipRow("column 'prompt' is empty")
        return {"question": question, "solution": required_text(row, "solution")}


@register_mapper("verl")
class Verl(Mapper):
    """veRL's preprocessed Parquet, TinyZero's among it: ``data_source``, ``prompt``,
    ``reward_model`` (with ``ground_truth``).

    The question is the last turn of the prompt, which must be the user's, verbatim: it may be a
    whole template that ends in an open ``<think>``. Earlier turns, a system message among them, go
    before it. ``data_source`` becomes the ``task``. A ground truth with ``numbers`` and ``target``
    is a Countdown puzzle (column ``scorer``); a number or a text is the ``solution``.
    """

    columns = ("data_source", "prompt", "reward_model")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        turns = read_turns(row.get("prompt"), "prompt", "user")
        if turns[-1]["role"] != "user" or not turns[-1]["content"].strip():
            raise SkipRow("column 'prompt' does not end in a turn of the user's")
        task = required_text(row, "data_source")
        gold = _gold(row.get("reward_model"))
        mapped: MappedRow = {"question": turns[-1]["content"], "task": task, **gold}
        if len(turns) > 1:
            mapped["messages"] = turns
        return mapped


def _gold(rule: Any) -> MappedRow:
    """``solution`` and, of a Countdown puzzle, ``scorer``."""
    truth = rule.get("ground_truth") if isinstance(rule, dict) else None
    if isinstance(truth, dict):
        countdown = extras.part("countdown")
        puzzle = (
            countdown.read_puzzle(truth.get("numbers"), truth.get("target")) if countdown else None
        )
        if puzzle:
            return {"solution": "", "scorer": puzzle.scorer}
    elif (
        isinstance(truth, str | int | float) and not isinstance(truth, bool) and str(truth).strip()
    ):
        return {"solution": str(truth).strip()}
    raise SkipRow(
        "column 'reward_model' has no ground_truth that is a number, a text, or numbers and "
        "a target"
    )
