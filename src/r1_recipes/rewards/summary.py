"""What a completion says after its reasoning, and rewards for saying it in few words (mapper
``summary``).
"""

from typing import Any

from r1_recipes.common.messages import completion_texts
from r1_recipes.data.mappers.columns import content_words
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.registry import Column, Reward, Values, register_reward


def summary(fmt: ResponseFormat, completion: str) -> str | None:
    """What a completion says after its reasoning, without answer tags, stripped; ``None`` if the
    reasoning is open or nothing follows.
    """
    body = fmt.full_text(completion)
    if fmt.reasoning_tags:
        opening, closing = fmt.reasoning_tags
        before, closed, body = body.rpartition(closing)
        if opening in body or (opening == closing and closed and opening not in before):
            return None
    for tag in fmt.answer_tags or ():
        body = body.replace(tag, "")
    return body.strip() or None


@register_reward("summary_facts")
class SummaryFactsReward(Reward):
    """The share of the row's ``facts`` that the summary mentions; ``None`` if the row has none.

    Range: 0..1. A fact is a number or a content word, found as a whole word in any case. Only what
    follows the reasoning counts.
    """

    judges = "answer"

    def __call__(self, completions: Column, facts: Column | None = None, **columns: Any) -> Values:
        if facts is None:
            raise self.missing("a column 'facts' with a list of words per row", columns)
        said = [
            set(content_words(summary(self.response_format, text) or ""))
            for text in completion_texts(completions)
        ]
        return [
            sum(fact in own for fact in wanted) / len(wanted) if wanted else None
            for own, wanted in zip(said, facts, strict=True)
        ]


@register_reward("summary_compression")
class SummaryCompressionReward(SummaryFactsReward):
    """How much shorter than the row's ``document`` the summary is, in characters; 0.0 if it keeps
    too few of the ``facts``.

    Range: 0..1: 0.9 is a tenth of the length. ``summary_min_facts`` is the share that must be kept.
    ``None`` without facts or document.
    """

    judges = ""

    summary_min_facts: float = 0.5

    def __post_init__(self) -> None:
        self.require(0 <= self.summary_min_facts <= 1, "summary_min_facts", "a share from 0 to 1")

    def __call__(
        self,
        completions: Column,
        facts: Column | None = None,
        document: Column | None = None,
        **columns: Any,
    ) -> Values:
        if document is None:
            raise self.missing("a column 'document' with the text", columns)
        shares = super().__call__(completions, facts, **columns)
        return [
            None
            if share is None or not whole
            else self._score(summary(self.response_format, text) or "", share, len(whole))
            for text, whole, share in zip(
                completion_texts(completions), document, shares, strict=True
            )
        ]

    def _score(self, short: str, share: float, length: int) -> float:
        return (
            max(0.0, 1.0 - len(short) / length)
            if short and share >= self.summary_min_facts
            else 0.0
        )
