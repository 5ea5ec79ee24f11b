"""Texts to make shorter, with a reference summary."""

import re
from dataclasses import dataclass
from typing import Any

from r1_recipes.data.mappers.base import Mapper, SkipRow, check_template, register_mapper, required_text

_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]{4,}")
# Long enough to look like content, and in nearly every text.
_STOP_WORDS = """
about after again also although always another anything around aren because been before being both came come could didn does doesn doing
done down each either else even ever every everything from gets getting give going gonna hadn hasn have haven having here into isn just
keep know like made make many maybe might more most much must need never nothing often once only onto other over quite rather really said
same says should since some someone something soon still such take than that their them then there these they thing things think this
those though through together took under until upon very want wants wasn were weren what when where whether which while will with within
without won would wouldn your yours yourself
"""
_STOPPED = frozenset(_STOP_WORDS.split())


@register_mapper("summary")
@dataclass(frozen=True)
class Summary(Mapper):
    """A text and a reference summary: the task of shortening without losing facts (rewards ``summary_facts``, ``summary_compression``).

    ``facts`` are the numbers and the content words (four letters or more) of the reference that stand in the text too; what only the
    reference says cannot be asked for. Words are those of languages that write spaces. ``document`` is the text. The default columns
    are those of mlabonne/smoltldr. ``template`` is the question.
    """

    document_column: str = "prompt"
    summary_column: str = "completion"
    template: str = "Summarize this in as few words as you can, without losing a fact:\n\n{document}"
    needs = ("prompt", "completion")  # no ``columns``: such pairs are many things, and ``auto`` cannot tell

    def __post_init__(self) -> None:
        check_template(self.template, "{document}")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        document, reference = required_text(row, self.document_column), required_text(row, self.summary_column)
        there = set(content_words(document))
        facts = [word for word in dict.fromkeys(content_words(reference)) if word in there]
        if not facts:
            raise SkipRow("text and reference summary share no number and no content word")
        return {"question": self.template.replace("{document}", document), "solution": reference, "document": document, "facts": facts}


def content_words(text: str) -> list[str]:
    """The numbers and the words of four letters or more that are not stop words, in lower case, in order, repeats included."""
    return [word for word in map(str.lower, _WORD.findall(text)) if word not in _STOPPED]
