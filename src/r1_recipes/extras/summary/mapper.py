"""Map texts with a reference summary."""

import re
from typing import Any

from r1_recipes.data.mapped_row import MappedRow
from r1_recipes.data.mappers.base import (
    Mapper,
    SkipRow,
    check_template,
    register_mapper,
    required_text,
)

_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]{4,}")
# Words of four letters or more that nearly every text contains.
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


@register_mapper("summary")
class Summary(Mapper):
    """A text and its reference summary, for ``summary_facts`` and ``summary_compression``.

    ``facts`` are the numbers and content words (four letters or more) of the reference that the
    text contains too. A summary cannot know facts that only the reference has. This needs a
    language that separates words with spaces. ``document`` is the text. The default columns are
    those of mlabonne/smoltldr. ``template`` is the question.
    """

    document_column: str = "prompt"
    summary_column: str = "completion"
    template: str = (
        "Summarize this in as few words as you can, without losing a fact:\n\n{document}"
    )
    # Without ``columns``, because ``auto`` cannot tell a summary from another pair.
    needs = ("prompt", "completion")

    def __post_init__(self) -> None:
        check_template(self.template, "{document}")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        document = required_text(row, self.document_column)
        reference = required_text(row, self.summary_column)
        document_words = set(content_words(document))
        reference_words = dict.fromkeys(content_words(reference))
        facts = [word for word in reference_words if word in document_words]
        if not facts:
            raise SkipRow("the text and the reference summary share no number and no content word")
        return {
            "question": self.template.replace("{document}", document),
            "solution": reference,
            "document": document,
            "facts": facts,
        }


def content_words(text: str) -> list[str]:
    """Return the numbers and content words of a text in lower case, in order, with repetitions.

    Content words have four letters or more and are not stop words.
    """
    return [word for word in map(str.lower, _WORD.findall(text)) if word not in _STOPPED]
