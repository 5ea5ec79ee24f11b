"""Question, reasoning and answer in columns of their own."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from r1_recipes.data.mappers.base import Mapper, SkipRow, last_boxed, optional_text, register_mapper, required_text
from r1_recipes.data.mappers.chats import last_question
from r1_recipes.prompts import FORMATS


@register_mapper("prompt_solution")
@dataclass(frozen=True)
class PromptSolution(Mapper):
    """Any dataset: the recipe names the columns. Of a prompt that is a conversation, the last user message is the question."""

    prompt_column: str = "prompt"
    solution_column: str = "solution"
    reasoning_column: str | None = None
    columns = ("prompt", "solution")

    def missing(self, columns: Collection[str]) -> list[str]:
        return [name for name in (self.prompt_column, self.solution_column, self.reasoning_column) if name and name not in columns]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        mapped = {"question": last_question(row, self.prompt_column).strip(), "solution": required_text(row, self.solution_column)}
        if self.reasoning_column:
            mapped["reasoning"] = required_text(row, self.reasoning_column)
        return mapped


@register_mapper("reasoning_columns")
@dataclass(frozen=True)
class ReasoningColumns(Mapper):
    """Three columns; the answer is the gold, too. The defaults are those of FreedomIntelligence/medical-o1-reasoning-SFT."""

    question_column: str = "Question"
    reasoning_column: str = "Complex_CoT"
    answer_column: str = "Response"
    columns = ("Question", "Complex_CoT", "Response")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {
            "question": required_text(row, self.question_column),
            "reasoning": required_text(row, self.reasoning_column),
            "solution": required_text(row, self.answer_column),
        }


@register_mapper("medical_verifiable")
class MedicalVerifiable(Mapper):
    """FreedomIntelligence/medical-o1-verifiable-problem: an open question and a gold of a few words, for ``exact_match`` or a judge."""

    columns = ("Open-ended Verifiable Question", "Ground-True Answer")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        question, gold = self.columns
        return {"question": required_text(row, question), "solution": required_text(row, gold)}


@register_mapper("openthoughts")
@dataclass(frozen=True)
class OpenThoughts(Mapper):
    """open-thoughts/OpenThoughts-114k, configuration ``metadata``: problem, DeepSeek-R1's reasoning and answer, and the gold, if known.

    The gold is the last box of ``ground_truth_solution``, else all of it, and empty for code. ``domain`` becomes the ``task``;
    ``domains`` are those to keep (``code``, ``math``, ``science``, ``puzzle``), default all.
    """

    domains: list[str] | None = None
    columns = ("problem", "deepseek_reasoning", "deepseek_solution")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        domain = optional_text(row, "domain")
        if self.domains is not None and domain not in self.domains:
            raise SkipRow(f"domain {domain!r} is not one of mapper_config's domains")
        gold = optional_text(row, "ground_truth_solution")
        return {
            "question": required_text(row, "problem"),
            "reasoning": required_text(row, "deepseek_reasoning"),
            "answer": required_text(row, "deepseek_solution"),
            "solution": last_boxed(gold) or gold,
            "task": domain,
        }


@register_mapper("generated")
@dataclass(frozen=True)
class Generated(Mapper):
    """What ``r1_recipes.generate`` writes: ``question``, ``response`` (not in prompt-only data), ``solution``, ``pass_rate`` and more.

    ``scorer`` and ``task`` go on to the rewards. ``well_formed``: the response must be in the recipe's response format.
    """

    well_formed: bool = True
    columns = ("question", "pass_rate")
    needs = ("question",)
    # A generation recipe writes responses in its own format, whichever that is.
    examples = tuple(
        {
            "question": f"What is {number}+{number}?",
            "response": fmt.render(f"{number} and {number} is {2 * number}.", str(2 * number)),
            "solution": str(2 * number),
            "pass_rate": 0.5,
            "tokens": 20,
            "scores": {"accuracy": 1.0, "format": 1.0},
        }
        for number, fmt in enumerate(FORMATS.values(), start=2)
    )

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        mapped = {"question": required_text(row, "question"), "solution": optional_text(row, "solution"), "well_formed": self.well_formed}
        if "response" in row:
            mapped["response"] = row["response"] if isinstance(row["response"], str) else ""
        return mapped | {column: optional_text(row, column) for column in ("scorer", "task") if column in row}
