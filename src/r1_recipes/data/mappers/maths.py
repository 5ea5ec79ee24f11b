"""Mathematics problems with a gold answer."""

import re
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar

from r1_recipes.data.mappers.base import Mapper, SkipRow, last_boxed, optional_text, register_mapper, required_text


@register_mapper("gsm8k")
class GSM8K(Mapper):
    """openai/gsm8k, modelscope/gsm8k: ``question``, ``answer`` (steps with the calculator's ``<<…>>``, then ``#### gold``)."""

    columns = ("question", "answer")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        reasoning, mark, gold = required_text(row, "answer").rpartition("####")
        gold = gold.strip().replace(",", "")
        if not mark or not gold:
            raise SkipRow("no '#### gold' in column 'answer'")
        return {"question": required_text(row, "question"), "solution": gold, "reasoning": re.sub(r"<<[^<>]*>>", "", reasoning).strip()}


@register_mapper("math")
@dataclass(frozen=True)
class Math(Mapper):
    r"""MATH, MATH-500, AIME, NuminaMath, OpenR1-Math-220k: ``problem`` with ``answer``, or with the gold boxed last in ``solution``.

    Attributes:
        solution_column: column of the gold; ``None``: ``answer`` if it is there and filled, else the last ``\boxed{}`` of ``solution``.
        reasoning_column: column of the worked solution.
    """

    prompt_column: str = "problem"
    solution_column: str | None = None
    reasoning_column: str = "solution"
    columns = ("problem",)
    needs = ("problem", ("answer", "solution"))
    named_by: ClassVar[dict[str, str]] = {"problem": "prompt_column", "answer": "solution_column", "solution": "reasoning_column"}

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        question = required_text(row, self.prompt_column)
        reasoning = optional_text(row, self.reasoning_column)
        gold = optional_text(row, self.solution_column or "answer")
        # A gold column may hold the whole worked solution, with the answer boxed.
        gold = last_boxed(gold) or gold or last_boxed(reasoning)
        if not gold:
            raise SkipRow(f"no gold in column {self.solution_column or 'answer'!r} and no \\boxed{{}} in {self.reasoning_column!r}")
        return {"question": question, "solution": gold, "reasoning": reasoning}


@register_mapper("openr1_math")
class OpenR1Math(Mapper):
    """open-r1/OpenR1-Math-220k: the first of a problem's ``generations`` that is complete and correct is the response.

    Correct is what ``correctness_math_verify`` says, or ``correctness_llama`` if the former is null. A row without such a generation
    still has question and gold, for GRPO.
    """

    columns = ("problem", "answer", "generations", "correctness_math_verify")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        mapped = Math()(row)
        return {"question": mapped["question"], "solution": mapped["solution"], "response": _first_correct(row)}


def _first_correct(row: dict[str, Any]) -> str:
    # Parallel lists, each of which may be null, or of another length.
    columns = [row.get(name) for name in ("generations", "is_reasoning_complete", "correctness_math_verify", "correctness_llama")]
    for text, complete, verified, judged in zip_longest(*(values if isinstance(values, list) else [] for values in columns)):
        if not isinstance(text, str) or not text.strip():
            continue
        # Of a generation that nothing is said about, its closed reasoning says that it came to an end.
        ended = complete is True or (complete is None and "</think>" in text)
        if ended and (judged if verified is None else verified) is True:
            return text
    return ""


@register_mapper("simplerl")
class SimpleRL(Mapper):
    """hkust-nlp/SimpleRL-Zoo-Data: ``question`` and ``gt_answer``; ``prompt`` is a chat template already filled in, and is not read."""

    columns = ("question", "gt_answer")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"question": required_text(row, "question"), "solution": required_text(row, "gt_answer")}
