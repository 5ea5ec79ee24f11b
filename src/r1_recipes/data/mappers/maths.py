"""Map mathematics problems with a reference answer, and the Parquet files of veRL."""

import re
from itertools import zip_longest
from typing import Any

from r1_recipes.data.mapped_row import MappedRow
from r1_recipes.data.mappers.base import (
    THOUSANDS,
    Mapper,
    SkipRow,
    last_boxed,
    optional_text,
    register_mapper,
    required_text,
)
from r1_recipes.data.mappers.chats import last_question, read_messages

# Parallel lists of OpenR1-Math-220k. Each may be null or have a different length.
_GENERATION_COLUMNS = (
    "generations",
    "is_reasoning_complete",
    "correctness_math_verify",
    "correctness_llama",
)
# The instruction around DAPO's problems. It asks for the answer on its own line, which would
# contradict the instruction of a response format.
_DAPO_OPENING = re.compile(r"\A\s*Solve the following math problem step by step\.[^\n]*\n+")
_DAPO_CLOSING = "Remember to put your answer on its own line after"


@register_mapper("gsm8k")
class GSM8K(Mapper):
    """Rows of openai/gsm8k: ``question``, and ``answer`` with steps and ``#### 72``.

    The ``<<…>>`` of the calculator are removed from the steps.
    """

    columns = ("question", "answer")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        reasoning, mark, solution = required_text(row, "answer").rpartition("####")
        # "1,5" is a decimal in some notations, and "(1,2)" is a pair.
        solution = THOUSANDS.sub(lambda number: number[0].replace(",", ""), solution.strip())
        if not mark or not solution:
            raise SkipRow("no '#### NUMBER' in column 'answer'")
        return {
            "question": required_text(row, "question"),
            "solution": solution,
            "reasoning": re.sub(r"<<[^<>]*>>", "", reasoning).strip(),
        }


@register_mapper("math")
class Math(Mapper):
    """MATH, MATH-500, AIME, NuminaMath and OpenR1-Math-220k: ``problem`` with ``answer``.

    Without ``answer``, the reference answer is the last box in ``solution``.
    """

    prompt_column: str = "problem"
    solution_column: str = "answer"
    reasoning_column: str = "solution"
    columns = ("problem",)
    needs = ("problem", ("answer", "solution"))

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        question = required_text(row, self.prompt_column)
        reasoning = optional_text(row, self.reasoning_column)
        solution = optional_text(row, self.solution_column)
        if solution.casefold() == "notfound":  # of NuminaMath-1.5
            solution = ""
        # The column may hold the whole worked solution, with the reference answer in a box.
        solution = last_boxed(solution) or solution or last_boxed(reasoning)
        if solution.casefold() == "proof":
            raise SkipRow("a proof, which has no reference answer")
        if not solution:
            raise SkipRow(
                f"no reference answer in column {self.solution_column or 'answer'!r} and no "
                f"\\boxed{{}} in {self.reasoning_column!r}"
            )
        return {"question": question, "solution": solution, "reasoning": reasoning}


@register_mapper("openr1_math")
class OpenR1Math(Mapper):
    """Rows of open-r1/OpenR1-Math-220k, with the first complete and correct generation.

    ``correctness_math_verify`` decides what is correct, or ``correctness_llama`` where it is null.
    That generation is the response. A row without one has only question and reference answer, for
    GRPO.
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
    columns = []
    for name in _GENERATION_COLUMNS:
        values = row.get(name)
        columns.append(values if isinstance(values, list) else [])
    for text, complete, verified, judged in zip_longest(*columns):
        if not isinstance(text, str) or not text.strip():
            continue
        # Without a flag, a generation is complete if its reasoning is closed.
        ended = "</think>" in text if complete is None else complete
        correct = judged if verified is None else verified
        if ended is True and correct is True:
            return text
    return ""


@register_mapper("simplerl")
class SimpleRL(Mapper):
    """Rows of hkust-nlp/SimpleRL-Zoo-Data: ``question`` and ``gt_answer``.

    ``prompt`` is not read, because it is already rendered with a chat template.
    """

    columns = ("question", "gt_answer")


@register_mapper("dapo")
class DAPO(Mapper):
    """Rows of open-r1/DAPO-Math-17k-Processed, with ``prompt`` without DAPO's instruction."""

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
    """Parquet files of veRL and TinyZero: ``data_source``, ``prompt`` and ``reward_model``.

    The question is the last message of the prompt, which must be a user message. It stays
    unchanged, even if it is a whole template that ends in an open ``<think>``. Earlier messages
    come before it. ``data_source`` becomes the ``task``. A ``ground_truth`` that is a number or
    text becomes the ``solution``. One with ``numbers`` and ``target`` is a Countdown puzzle and
    becomes the ``scorer``.
    """

    columns = ("data_source", "prompt", "reward_model")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        messages = read_messages(row.get("prompt"), "prompt", "user")
        if messages[-1]["role"] != "user" or not messages[-1]["content"].strip():
            raise SkipRow("column 'prompt' does not end in a user message")
        task = required_text(row, "data_source")
        reference = _reference(row.get("reward_model"))
        mapped: MappedRow = {"question": messages[-1]["content"], "task": task, **reference}
        if len(messages) > 1:
            mapped["messages"] = messages
        return mapped


def _reference(rule: Any) -> MappedRow:
    """Return ``solution`` and, for a Countdown puzzle, ``scorer``."""
    truth = rule.get("ground_truth") if isinstance(rule, dict) else None
    if isinstance(truth, dict):
        from r1_recipes.extras.countdown.puzzle import read_puzzle

        puzzle = read_puzzle(truth.get("numbers"), truth.get("target"))
        if puzzle:
            return {"solution": "", "scorer": puzzle.scorer}
    elif isinstance(truth, str | int | float) and not isinstance(truth, bool):
        solution = str(truth).strip()
        if solution:
            return {"solution": solution}
    raise SkipRow(
        "column 'reward_model' has no ground_truth that is a number, text, or numbers and a target"
    )
