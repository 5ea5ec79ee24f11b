"""Rewards for summaries that are short and keep the facts (mapper ``summary``)."""

from typing import Any

from r1_recipes.common.messages import completion_texts
from r1_recipes.extras.summary.mapper import content_words
from r1_recipes.rewards.registry import Column, Reward, Values, register_reward
from r1_recipes.rewards.text import shown_text


@register_reward("summary_facts")
class SummaryFactsReward(Reward):
    """Return the share of the row's ``facts`` that the summary mentions.

    Range: 0..1. Return ``None`` if the row has no facts. A fact is a number or a content word. It
    must be a whole word of the summary, in upper or lower case. Only the text after the reasoning
    counts.
    """

    judges = "answer"

    def __call__(self, completions: Column, facts: Column | None = None, **columns: Any) -> Values:
        if facts is None:
            raise self.missing("a column 'facts' with a list of words per row", columns)
        mentioned = [
            set(content_words(shown_text(self.response_format, text) or ""))
            for text in completion_texts(completions)
        ]
        return [
            sum(fact in words for fact in expected) / len(expected) if expected else None
            for words, expected in zip(mentioned, facts, strict=True)
        ]


@register_reward("summary_compression")
class SummaryCompressionReward(SummaryFactsReward):
    """Return how much shorter the summary is than ``document``, in characters.

    Range: 0..1. A summary with a tenth of the length scores 0.9. It scores 0.0 if it keeps less
    than ``summary_min_facts``, a share of the ``facts``. Return ``None`` without facts or document.
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
        texts = completion_texts(completions)
        scores: Values = []
        for text, whole, share in zip(texts, document, shares, strict=True):
            score = None
            if share is not None and whole:
                short = shown_text(self.response_format, text) or ""
                kept = short and share >= self.summary_min_facts
                score = max(0.0, 1.0 - len(short) / len(whole)) if kept else 0.0
            scores.append(score)
        return scores
