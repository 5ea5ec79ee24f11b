"""Question, reasoning and answer in columns of their own; a text and its summary."""

import re
from collections.abc import Collection
from typing import Any

from r1_recipes.data.mapped_row import MappedRow
from r1_recipes.data.mappers.base import (
    Mapper,
    SkipRow,
    check_choice,
    check_template,
    last_boxed,
    optional_text,
    register_mapper,
    required_text,
)
from r1_recipes.data.mappers.chats import last_question
from r1_recipes.prompts import FORMATS

_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]{4,}")
# Long enough to look like content, and in nearly every text.
_STOP_WORDS = """
about after again also although always another anything around aren because been before being both
came come could didn does doesn doing done down each either else even ever every everything from
gets getting give going gonna hadn hasn have haven having here into isn just keep know like made
make many maybe might more most much must need never nothing often once only onto other over quite
rather really said same says should since some someone something soon still such take than that
their them then there these they thing things think this those though through together took under
until upon very want wants wasn were weren what when where whether which while will with within
without won would wouldn your yours yourself
"""
_STOPPED = frozenset(_STOP_WORDS.split())


@register_mapper("prompt_solution")
class PromptSolution(Mapper):
    """Any dataset: the recipe names the columns. A conversation asks by its last user message.
    ``whole``: SFT's target is the solution.
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
    """Three columns; the answer is the gold, too. The defaults are those of
    FreedomIntelligence/medical-o1-reasoning-SFT.
    """

    question_column: str = "Question"
    reasoning_column: str = "Complex_CoT"
    answer_column: str = "Response"
    columns = ("Question", "Response", "Complex_CoT")


@register_mapper("medical_verifiable")
class MedicalVerifiable(Mapper):
    """FreedomIntelligence/medical-o1-verifiable-problem: an open question and a gold of a few
    words, for ``exact_match`` or a judge.
    """

    columns = ("Open-ended Verifiable Question", "Ground-True Answer")


@register_mapper("openthoughts")
class OpenThoughts(Mapper):
    """open-thoughts/OpenThoughts-114k, configuration ``metadata``: problem, DeepSeek-R1's reasoning
    and answer, and the gold, if known.

    The gold is the last box of ``ground_truth_solution``, else all of it, and empty for code.
    ``domain`` becomes the ``task``; ``domains`` are those to keep (``code``, ``math``, ``science``,
    ``puzzle``), default all.
    """

    domains: list[str] | None = None
    columns = ("problem", "deepseek_reasoning", "deepseek_solution")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
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
class Generated(Mapper):
    """What ``r1_recipes.generate`` writes: ``question``, ``response`` (not in prompt-only data),
    ``solution``, ``pass_rate`` and more.

    ``scorer`` and ``task`` go on to the rewards. ``well_formed``: the response must be in the
    recipe's response format. ``written_in``: the responses are in this other format, and are
    written anew in the recipe's.
    """

    well_formed: bool = True
    written_in: str = ""
    columns = ("question", "pass_rate")
    needs = ("question",)
    # A generation recipe writes responses in its own format, whichever that is.
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
        if "scorer" in row:
            mapped["scorer"] = optional_text(row, "scorer")
        if "task" in row:
            mapped["task"] = optional_text(row, "task")
        return mapped


@register_mapper("summary")
class Summary(Mapper):
    """A text and a reference summary: the task of shortening without losing facts (rewards
    ``summary_facts``, ``summary_compression``).

    ``facts`` are the numbers and the content words (four letters or more) of the reference that
    stand in the text too; what only the reference says cannot be asked for. Words are those of
    languages that write spaces. ``document`` is the text. The default columns are those of
    mlabonne/smoltldr. ``template`` is the question.
    """

    document_column: str = "prompt"
    summary_column: str = "completion"
    template: str = (
        "Summarize this in as few words as you can, without losing a fact:\n\n{document}"
    )
    needs = (
        "prompt",
        "completion",
    )  # no ``columns``: such pairs are many things, and ``auto`` cannot tell

    def __post_init__(self) -> None:
        check_template(self.template, "{document}")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        document, reference = (
            required_text(row, self.document_column),
            required_text(row, self.summary_column),
        )
        there = set(content_words(document))
        if not (
            facts := [word for word in dict.fromkeys(content_words(reference)) if word in there]
        ):
            raise SkipRow("text and reference summary share no number and no content word")
        return {
            "question": self.template.replace("{document}", document),
            "solution": reference,
            "document": document,
            "facts": facts,
        }


def content_words(text: str) -> list[str]:
    """The numbers and the words of four letters or more that are not stop words, in lower case, in
    order, repeats included.
    """
    return [word for word in map(str.lower, _WORD.findall(text)) if word not in _STOPPED]
