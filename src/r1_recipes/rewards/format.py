"""Rewards for the shape of a response. Every one reads or counts what the :class:`ResponseFormat` defines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.messages import completion_texts
from r1_recipes.rewards.registry import Reward, register_reward


@register_reward("format")
@dataclass(frozen=True)
class FormatReward(Reward):
    """1.0 where the whole response is one non-empty reasoning block, then one non-empty answer block, and nothing else; else 0.0.

    Range: {0, 1}. White space around blocks is free. Source: DeepSeek-R1's format reward (arXiv:2501.12948, section 2.2.2); two
    blocks, an empty block and text after the answer, which open-r1's pattern pays for, score 0 here.
    """

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return [float(parsed.well_formed) for parsed in self.parse(completions)]


@register_reward("format_partial")
@dataclass(frozen=True)
class FormatPartialReward(Reward):
    """1.0 for the exact shape, else 0.1 for a reasoning block plus 0.5 for an answer block.

    Range: {0, 0.1, 0.5, 0.6, 1}. Source: GRPO-Zero's format reward.
    """

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return [
            1.0 if parsed.well_formed else 0.1 * (parsed.reasoning is not None) + 0.5 * (parsed.answer is not None)
            for parsed in self.parse(completions)
        ]


@register_reward("tag_count")
@dataclass(frozen=True)
class TagCountReward(Reward):
    """An equal share of 1.0 for each of the format's tags that occurs exactly as often as the format has it (once), with its
    line breaks.

    Range: 0..1, in quarters for a format with four tags. Source: open-r1 (pull request 418).
    """

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        tags = self.response_format.tags
        texts = map(self.response_format.full_text, completion_texts(completions))
        # A format may use one marker twice (special_token); then twice is what is asked for.
        return [sum(text.count(tag) == tags.count(tag) for tag in tags) / len(tags) for text in texts]
