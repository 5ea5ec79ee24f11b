"""Texts to make shorter, with a reference summary."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from r1_recipes.common.errors import RecipeError
from r1_recipes.data.mappers.base import Mapper, SkipRow, register_mapper, required_text

_TEMPLATE = "Summarize this in as few words as you can, without losing a fact:\n\n{document}"
_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]{4,}")
# Long enough to look like content, and in nearly every text.
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        about after again also although always another anything around aren because been before being both came come could didn does doesn
        doing done down each either else even ever every everything from gets getting give going gonna hadn hasn have haven having here
        into isn just keep know like made make many maybe might more most much must need never nothing often once only onto other over
        quite rather really said same says should since some someone something soon still such take than that their them then there these
        they thing things think this those though through together took under until upon very want wants wasn were weren what when where
        whether which while will with within without won would wouldn your yours yourself
        """,
    )
)


@register_mapper("summary")
@dataclass(frozen=True)
class Summary(Mapper):
    """A text and a reference summary: the task of shortening without losing facts (rewards ``summary_facts``, ``summary_compression``).

    ``facts`` are the numbers and the content words (four letters or more) of the reference that stand in the text too; what only the
    reference says cannot be asked for. Words are those of languages that write spaces. ``document`` is the text.

    Attributes:
        document_column: column of the text; the defaults are those of mlabonne/smoltldr.
        summary_column: column of the reference summary.
        template: the question, with ``{document}``; ``None``: a wording of ours.

    Raises:
        RecipeError: the template lacks ``{document}``.
    """

    document_column: str = "prompt"
    summary_column: str = "completion"
    template: str | None = None
    named_by: ClassVar[dict[str, str]] = {"prompt": "document_column", "completion": "summary_column"}
    hub = (("mlabonne/smoltldr", None),)
    examples = (
        {
            "prompt": "We moved to Bern in 2019 with two cats. One ran away last week, and we put up 40 posters. Nobody has called.",
            "completion": "Moved to Bern in 2019; one of two cats ran away, 40 posters brought no calls.",
        },
        {
            "prompt": "My bike was stolen outside the library on Monday. The police found it on Friday with a broken wheel.",
            "completion": "Stolen bike found by police with a broken wheel.",
        },
    )

    def __post_init__(self) -> None:
        if self.template is not None and "{document}" not in self.template:
            raise RecipeError(f"mapper_config: template: needs {{document}} where the text goes; found {self.template!r}")

    def missing(self, columns: Collection[str]) -> list[str]:
        return [column for column in (self.document_column, self.summary_column) if column not in columns]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        document, reference = required_text(row, self.document_column), required_text(row, self.summary_column)
        there = set(content_words(document))
        facts = [word for word in dict.fromkeys(content_words(reference)) if word in there]
        if not facts:
            raise SkipRow("text and reference summary share no number and no content word")
        question = (self.template or _TEMPLATE).replace("{document}", document)
        return {"question": question, "solution": reference, "document": document, "facts": facts}


def content_words(text: str) -> list[str]:
    """The numbers and the words of four letters or more that are not stop words, in lower case, in order, repeats included."""
    return [word for word in (match[0].lower() for match in _WORD.finditer(text)) if word not in _STOP_WORDS]
