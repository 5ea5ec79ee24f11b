"""Any dataset whose question, reasoning and answer stand in columns of their own, which the recipe names."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from r1_recipes.data.mappers.base import Mapper, register_mapper, required_text
from r1_recipes.data.mappers.chats import last_question


@register_mapper("prompt_solution")
@dataclass(frozen=True)
class PromptSolution(Mapper):
    """Any dataset: the recipe names the columns. A prompt that is a conversation contributes its last user message.

    Attributes:
        prompt_column: column of the question.
        solution_column: column of the gold.
        reasoning_column: column of the worked solution, for SFT.
    """

    prompt_column: str = "prompt"
    solution_column: str = "solution"
    reasoning_column: str | None = None
    columns = ("prompt", "solution")
    named_by: ClassVar[dict[str, str]] = {"prompt": "prompt_column", "solution": "solution_column", "reasoning": "reasoning_column"}
    examples = (
        {"prompt": "Find the least prime above 20.", "solution": "23", "reasoning": "21 and 22 are composite, 23 is prime."},
        {"prompt": [{"role": "user", "content": "What is 7 - 9?"}], "solution": "-2", "reasoning": "9 - 7 = 2, so 7 - 9 = -2."},
    )

    def missing(self, columns: Collection[str]) -> list[str]:
        return [c for c in (self.prompt_column, self.solution_column, self.reasoning_column) if c and c not in columns]

    def example_rows(self) -> list[dict[str, Any]]:
        return super().example_rows()[:1]  # one column holds one type: the plain-text example stands for all

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        question = last_question(row.get(self.prompt_column), self.prompt_column).strip()
        mapped = {"question": question, "solution": required_text(row, self.solution_column)}
        if self.reasoning_column:
            mapped["reasoning"] = required_text(row, self.reasoning_column)
        return mapped


@register_mapper("reasoning_columns")
@dataclass(frozen=True)
class ReasoningColumns(Mapper):
    """Question, reasoning and answer in columns of their own; the response format joins them. The answer is the gold, too.

    Attributes:
        question_column: column of the question; the defaults are those of FreedomIntelligence/medical-o1-reasoning-SFT.
        reasoning_column: column of the reasoning.
        answer_column: column of the answer.
    """

    question_column: str = "Question"
    reasoning_column: str = "Complex_CoT"
    answer_column: str = "Response"
    columns = ("Question", "Complex_CoT", "Response")
    named_by: ClassVar[dict[str, str]] = {"Question": "question_column", "Complex_CoT": "reasoning_column", "Response": "answer_column"}
    hub = tuple(("FreedomIntelligence/medical-o1-reasoning-SFT", config) for config in ("en", "zh", "en_mix", "zh_mix"))
    examples = (
        {
            "Question": "Which vitamin deficiency causes scurvy?",
            "Complex_CoT": "Bleeding gums point to weak collagen. Its synthesis needs vitamin C.",
            "Response": "Vitamin C.",
        },
        {
            "Question": "Which organ makes insulin?",
            "Complex_CoT": "Insulin comes from the islets of Langerhans.\nThose lie in the pancreas.",
            "Response": "The pancreas.",
        },
    )

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {
            "question": required_text(row, self.question_column),
            "reasoning": required_text(row, self.reasoning_column),
            "solution": required_text(row, self.answer_column),
        }
