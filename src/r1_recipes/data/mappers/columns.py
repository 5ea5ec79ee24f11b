"""Map rows with separate columns for question, reasoning and answer."""

from collections.abc import Collection
from typing import Any

from r1_recipes.data.mapped_row import MappedRow
from r1_recipes.data.mappers.base import (
    Mapper,
    SkipRow,
    check_choice,
    last_boxed,
    optional_text,
    register_mapper,
    required_text,
)
from r1_recipes.data.mappers.chats import last_question, read_messages
from r1_recipes.prompts import FORMATS


@register_mapper("prompt_solution")
class PromptSolution(Mapper):
    """Any dataset: the recipe names the columns.

    The question is the text of ``prompt_column``, or its last user message. With ``whole``, the
    solution is the target of SFT.
    """

    prompt_column: str = "prompt"
    solution_column: str = "solution"
    reasoning_column: str | None = None
    whole: bool = False
    columns = ("prompt", "solution")

    def missing(self, columns: Collection[str]) -> list[str]:
        return [
            name
            for name in (self.prompt_column, self.solution_column, self.reasoning_column)
            if name and name not in columns
        ]

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        mapped: MappedRow = {
            "question": last_question(row, self.prompt_column).strip(),
            "solution": required_text(row, self.solution_column),
        }
        if self.whole:
            return {**mapped, "response": mapped["solution"], "well_formed": False}
        if self.reasoning_column:
            mapped["reasoning"] = required_text(row, self.reasoning_column)
        return mapped


@register_mapper("reasoning_columns")
class ReasoningColumns(Mapper):
    """Question, reasoning and answer. The answer is also the reference answer.

    The default columns are those of FreedomIntelligence/medical-o1-reasoning-SFT.
    """

    question_column: str = "Question"
    reasoning_column: str = "Complex_CoT"
    answer_column: str = "Response"
    columns = ("Question", "Response", "Complex_CoT")


@register_mapper("medical_verifiable")
class MedicalVerifiable(Mapper):
    """FreedomIntelligence/medical-o1-verifiable-problem: open questions with short answers.

    Score them with ``exact_match`` or a judge.
    """

    columns = ("Open-ended Verifiable Question", "Ground-True Answer")


@register_mapper("openthoughts")
class OpenThoughts(Mapper):
    """Rows of open-thoughts/OpenThoughts-114k, ``metadata``: problems with answers of DeepSeek-R1.

    The reference answer is the last box of ``ground_truth_solution``, or the entire text without a
    box. It is empty for code. ``domain`` becomes the ``task``. ``domains`` are the domains to keep
    (``code``, ``math``, ``science``, ``puzzle``), by default all.
    """

    domains: list[str] | None = None
    columns = ("problem", "deepseek_reasoning", "deepseek_solution")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        domain = optional_text(row, "domain")
        if self.domains is not None and domain not in self.domains:
            raise SkipRow(f"domain {domain!r} is not one of mapper_config's domains")
        solution = optional_text(row, "ground_truth_solution")
        return {
            "question": required_text(row, "problem"),
            "reasoning": required_text(row, "deepseek_reasoning"),
            "answer": required_text(row, "deepseek_solution"),
            "solution": last_boxed(solution) or solution,
            "task": domain,
        }


@register_mapper("generated")
class Generated(Mapper):
    """The output of ``r1_recipes.generate``: ``question``, ``solution``, ``pass_rate`` and more.

    The column ``response`` is absent in prompt-only data. ``earlier_messages`` are the turns before
    the question. The rewards get ``scorer`` and ``task``.

    Attributes:
        well_formed: Whether the response must be in the recipe's response format.
        written_in: The response format of the source. Its responses are rewritten in the recipe's
            response format.
    """

    well_formed: bool = True
    written_in: str = ""
    columns = ("question", "pass_rate")
    needs = ("question",)
    # A generation recipe may write responses in any format, so there is an example of each.
    examples = tuple(
        {
            "question": f"What do you get if you add {number} to the number {number}?",
            "response": fmt.render(f"{number} and {number} is {2 * number}.", str(2 * number)),
            "solution": str(2 * number),
            "pass_rate": 0.5,
            "tokens": 20,
            "scores": {"accuracy": 1.0, "format": 1.0},
        }
        for number, fmt in enumerate(FORMATS.values(), start=2)
    )

    def __post_init__(self) -> None:
        if self.written_in:
            check_choice("written_in", self.written_in, FORMATS)

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        mapped: MappedRow = {
            "question": required_text(row, "question"),
            "solution": optional_text(row, "solution"),
            "well_formed": self.well_formed,
        }
        if self.written_in:
            parsed = FORMATS[self.written_in].parse(optional_text(row, "response"))
            if not parsed.well_formed:
                raise SkipRow(f"response is not in format {self.written_in!r}")
            mapped["reasoning"] = parsed.reasoning or ""
            mapped["answer"] = parsed.answer or ""
        elif "response" in row:
            mapped["response"] = row["response"] if isinstance(row["response"], str) else ""
        if row.get("earlier_messages"):
            earlier = read_messages(row["earlier_messages"], "earlier_messages")
            mapped["messages"] = [*earlier, {"role": "user", "content": mapped["question"]}]
        if "scorer" in row:
            mapped["scorer"] = optional_text(row, "scorer")
        if "task" in row:
            mapped["task"] = optional_text(row, "task")
        return mapped
