"""Mathematics problems with a gold answer."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from r1_recipes.data.mappers.base import Mapper, SkipRow, optional_text, register_mapper, required_text
from r1_recipes.data.mappers.chats import last_question
from r1_recipes.prompts.formats import boxed_spans, one_spelling_of_boxes


def last_boxed(text: str) -> str | None:
    r"""What the last balanced ``\boxed{…}`` of ``text`` holds, stripped; ``None`` where there is none."""
    content, text = None, one_spelling_of_boxes(text)
    for start, end in boxed_spans(text):
        content = text[start:end].strip()
    return content or None


@register_mapper("gsm8k")
@dataclass(frozen=True)
class GSM8K(Mapper):
    """openai/gsm8k, modelscope/gsm8k: ``question``, ``answer`` (steps with ``<<…>>`` marks, then ``#### gold``).

    The gold loses its thousands commas; the reasoning loses the calculator marks.
    """

    columns = ("question", "answer")
    hub = (("openai/gsm8k", "main"), ("openai/gsm8k", "socratic"))
    examples = (
        {"question": "Ana has 3 boxes of 4 pens. How many pens does she have?", "answer": "3*4=<<3*4=12>>12 pens.\n#### 12"},
        {
            "question": "A shop sells 40 crates of 30 lamps. How many lamps is that?",
            "answer": "One crate holds 30 lamps.\n40*30=<<40*30=1200>>1200 lamps.\n#### 1,200",
        },
    )

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        reasoning, mark, gold = required_text(row, "answer").rpartition("####")
        gold = gold.strip().replace(",", "")
        if not mark or not gold:
            raise SkipRow("no '#### gold' in column 'answer'")
        reasoning = re.sub(r"<<[^<>]*>>", "", reasoning).strip()
        return {"question": required_text(row, "question"), "solution": gold, "reasoning": reasoning}


@register_mapper("math")
@dataclass(frozen=True)
class Math(Mapper):
    r"""MATH, MATH-500, NuminaMath, OpenR1-Math-220k: ``problem`` with ``answer``, or with the gold boxed last in ``solution``.

    Attributes:
        prompt_column: column of the problem.
        solution_column: column of the gold; ``None``: ``answer`` where it is there and filled, else the last ``\boxed{}`` of ``solution``.
        reasoning_column: column of the worked solution.
    """

    prompt_column: str = "problem"
    solution_column: str | None = None
    reasoning_column: str = "solution"
    columns = ("problem",)
    named_by: ClassVar[dict[str, str]] = {"problem": "prompt_column"}
    optional = ("answer", "solution")
    hub = (
        ("DigitalLearningGmbH/MATH-lighteval", "default"),
        ("HuggingFaceH4/MATH-500", "default"),
        ("AI-MO/NuminaMath-TIR", "default"),
        ("HuggingFaceH4/aime_2024", None),
        ("MathArena/aime_2025", None),
    )
    examples = (
        {"problem": "Solve $2x=6$.", "level": "Level 1", "type": "Algebra", "solution": "Divide by 2: $x=\\boxed{3}$."},
        {"problem": "Find $\\frac12+\\frac14$.", "solution": "Over 4: $\\boxed{\\frac{3}{4}}$", "answer": "\\frac{3}{4}"},
    )

    def missing(self, columns: Collection[str]) -> list[str]:
        absent = [column for column in (self.prompt_column, self.solution_column) if column and column not in columns]
        if not self.solution_column and "answer" not in columns and self.reasoning_column not in columns:
            absent.append(f"answer (or {self.reasoning_column})")
        return absent

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        question = required_text(row, self.prompt_column)
        reasoning = optional_text(row, self.reasoning_column)
        gold = optional_text(row, self.solution_column or "answer")
        # A gold column may hold the whole worked solution, with the answer boxed.
        gold = last_boxed(gold) or gold or last_boxed(reasoning) or ""
        if not gold:
            raise SkipRow(f"no gold in column {self.solution_column or 'answer'!r} and no \\boxed{{}} in {self.reasoning_column!r}")
        return {"question": question, "solution": gold, "reasoning": reasoning}


@register_mapper("openr1_math")
@dataclass(frozen=True)
class OpenR1Math(Mapper):
    """open-r1/OpenR1-Math-220k: the first of a problem's ``generations`` that is complete and correct is the response.

    Correct is what ``correctness_math_verify`` says, or ``correctness_llama`` where the former is null. A row without such a generation
    still has question and gold, for GRPO. The set's own choice among its generations is its ``messages``: mapper ``conversations``.
    """

    columns = ("problem", "answer", "generations", "correctness_math_verify")
    optional = ("solution", "is_reasoning_complete", "correctness_llama")
    hub = (("open-r1/OpenR1-Math-220k", "default"), ("open-r1/OpenR1-Math-220k", "extended"))
    examples = (
        {
            "problem": "Find $2+2$.",
            "solution": "Two and two is $\\boxed{4}$.",
            "answer": "4",
            "problem_type": "Algebra",
            "question_type": "math-word-problem",
            "source": "olympiads",
            "uuid": "u1",
            "is_reasoning_complete": [False, True],
            "generations": ["<think>\nTwo and two", "<think>\nTwo and two is four.\n</think>\n\nThe sum is $\\boxed{4}$."],
            "correctness_math_verify": [False, True],
            "correctness_llama": None,
            "finish_reasons": None,
            "correctness_count": 1,
            "messages": [
                {"role": "user", "content": "Find $2+2$."},
                {"role": "assistant", "content": "<think>\nTwo and two is four.\n</think>\n\nThe sum is $\\boxed{4}$."},
            ],
        },
        {
            "problem": "Find $\\sqrt{81}$.",
            "solution": "It is 9.",
            "answer": "9",
            "problem_type": "Algebra",
            "question_type": "math-word-problem",
            "source": "cn_contest",
            "uuid": "u2",
            "is_reasoning_complete": [True],
            "generations": ["<think>\n9 times 9 is 81.\n</think>\n\\boxed{9}"],
            "correctness_math_verify": None,
            "correctness_llama": [True],
            "finish_reasons": ["stop"],
            "correctness_count": 1,
            "messages": [
                {"role": "user", "content": "Find $\\sqrt{81}$."},
                {"role": "assistant", "content": "<think>\n9 times 9 is 81.\n</think>\n\\boxed{9}"},
            ],
        },
    )

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        mapped = Math()(row)
        return {"question": mapped["question"], "solution": mapped["solution"], "response": _first_correct(row)}


def _first_correct(row: dict[str, Any]) -> str:
    texts = row["generations"] if isinstance(row["generations"], list) else []
    complete, verified, judged = (
        _padded(row.get(column), len(texts)) for column in ("is_reasoning_complete", "correctness_math_verify", "correctness_llama")
    )
    for text, whole, right, second in zip(texts, complete, verified, judged, strict=True):
        if not isinstance(text, str) or not text.strip():
            continue
        # Of a generation that nothing is said about, its closed reasoning says that it came to an end.
        ended = whole is True or (whole is None and "</think>" in text)
        if ended and (right if right is not None else second) is True:
            return text
    return ""


def _padded(values: Any, length: int) -> list[Any]:
    """A list that should be parallel to another one and may be null, or of another length."""
    values = values if isinstance(values, list) else []
    return (values + [None] * length)[:length]


@register_mapper("simplerl")
@dataclass(frozen=True)
class SimpleRL(Mapper):
    """hkust-nlp/SimpleRL-Zoo-Data: ``question`` and ``gt_answer``; ``prompt`` is a chat template already filled in, and is not read.

    A few rows have an empty gold; they are left out, and counted.
    """

    columns = ("question", "gt_answer")
    optional = ("answer", "level", "prompt", "data_source", "reward_model", "extra_info", "ability", "subject")
    hub = (("hkust-nlp/SimpleRL-Zoo-Data", "simplelr_qwen_level3to5/"),)
    examples = tuple(
        {
            "question": question,
            "gt_answer": gold,
            "answer": gold,
            "level": 3,
            "prompt": [{"role": "user", "content": f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"}],
            "data_source": "simplelr_qwen",
            "reward_model": {"style": "rule", "ground_truth": gold},
            "extra_info": {"question": question, "answer": gold},
        }
        for question, gold in (("Find $3^4$.", "81"), ("Simplify $\\frac{6}{8}$.", "\\frac{3}{4}"))
    )

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"question": required_text(row, "question"), "solution": required_text(row, "gt_answer")}


# The instruction that the set's prompts are wrapped in; it asks for a line of its own, where a response format asks for its shape.
_DAPO_OPENING = re.compile(r"\A\s*Solve the following math problem step by step\.[^\n]*\n+")
_DAPO_CLOSING = "Remember to put your answer on its own line after"


@register_mapper("dapo")
@dataclass(frozen=True)
class DAPO(Mapper):
    """open-r1/DAPO-Math-17k-Processed (``prompt`` a text, ``solution`` the bare gold) and BytedTsinghua-SIA/DAPO-Math-17k (veRL's columns).

    The instruction around the problem, which asks for a last line ``Answer: …``, is taken off: the response format says what is
    wanted. The original set holds each problem about a hundred times: ``max_samples``, or the processed set.
    """

    columns = ("prompt", "solution", "source_prompt")
    optional = ("data_source", "reward_model", "ability", "extra_info")
    hub = (
        ("open-r1/DAPO-Math-17k-Processed", "all"),
        ("BytedTsinghua-SIA/DAPO-Math-17k", None),
    )
    examples = tuple(
        {
            "prompt": problem,
            "solution": gold,
            "data_source": "math_dapo",
            "source_prompt": [{"role": "user", "content": problem}],
            "ability": "MATH",
            "reward_model": {"ground_truth": gold, "style": "rule"},
            "extra_info": {"index": f"a{gold}"},
        }
        for problem, gold in (("Find the least prime above 20.", "23"), ("How many subsets has a set of 5 elements?", "32"))
    )

    def missing(self, columns: Collection[str]) -> list[str]:
        absent = [] if "prompt" in columns else ["prompt"]
        return absent if {"solution", "reward_model"} & set(columns) else [*absent, "solution (or reward_model)"]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        question = _DAPO_OPENING.sub("", last_question(row.get("prompt"), "prompt")).strip()
        before, _, last = question.rpartition("\n")
        question = before.rstrip() if before and _DAPO_CLOSING in last else question
        if not question:
            raise SkipRow("column 'prompt' is empty")
        rule = row.get("reward_model")
        gold = optional_text(row, "solution") or optional_text(rule if isinstance(rule, dict) else {}, "ground_truth")
        if not gold:
            raise SkipRow("no gold in columns 'solution' and 'reward_model'")
        return {"question": question, "solution": gold}
