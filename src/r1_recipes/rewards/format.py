"""Rewards for the shape of a response, each read or counted by the :class:`ResponseFormat`."""

from __future__ import annotations

from dataclasses import dataclass

from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.registry import Reward, register_reward


@register_reward("format")
@dataclass(frozen=True)
class FormatReward(Reward):
    """1.0 if the whole response is one non-empty reasoning block, then one non-empty answer block, and nothing else; else 0.0.

    Range: {0, 1}. White space around blocks is free. Source: DeepSeek-R1's format reward (arXiv:2501.12948, section 2.2.2); two
    blocks, an empty block and text after the answer, which open-r1's pattern pays for, score 0 here.
    """

    def score_text(self, text: str) -> float:
        return float(self.response_format.parse(text).well_formed)


@register_reward("format_partial")
@dataclass(frozen=True)
class FormatPartialReward(Reward):
    """1.0 for the exact shape, else 0.1 for a reasoning block plus 0.5 for an answer block.

    Range: {0, 0.1, 0.5, 0.6, 1}. Source: GRPO-Zero's format reward.
    """

    def score_text(self, text: str) -> float:
        parsed = self.response_format.parse(text)
        return 1.0 if parsed.well_formed else 0.1 * (parsed.reasoning is not None) + 0.5 * (parsed.answer is not None)


@register_reward("tag_count")
@dataclass(frozen=True)
class TagCountReward(Reward):
    """An equal share of 1.0 for each of the format's tags, with its line breaks, that occurs as often as the format has it (once).

    Range: 0..1, in quarters for a format with four tags. Source: open-r1 (pull request 418).
    """

    def score_text(self, text: str) -> float:
        return tag_share(self.response_format, self.response_format.full_text(text))


def tag_share(fmt: ResponseFormat, text: str) -> float:
    """The share (0..1) of the format's tags that occur in the whole turn as often as the format has them."""
    # special_token uses one marker twice.
    return sum(text.count(tag) == fmt.tags.count(tag) for tag in fmt.tags) / len(fmt.tags)
