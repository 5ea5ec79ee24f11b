"""Rewards for the surface of the text: visible steps, repetition, and those of the GSM8K GRPO demo for TRL (grpo_demo)."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

import regex

from r1_recipes.common.scripts import UNSPACED
from r1_recipes.rewards.accuracy import parsed_answer
from r1_recipes.rewards.format import tag_share
from r1_recipes.rewards.registry import Reward, register_reward

# Every repeat is bounded or runs over characters that what follows cannot match, so that a search is linear in the text.
_STEP = re.compile(
    r"""
      (?<![A-Za-z]) Step [ ]? \d{1,4} [ ]? [:：]                   # Step 1:
    | (?<![A-Za-z]) (?: First | Second | Next | Finally ) ,        # capital and comma, as open-r1 writes them
    | ^[ \t]* \d{1,3} (?: [.)][ \t] | [.)](?=[^\W\d_]) | [、．] )   # "1. ", "1) ", "1.先", "1、", but not "1.5"
    | ^[ \t]* [-*•] [ \t]                                          # a bullet, but neither "-3" nor "**bold**"
    | 第 [一二三四五六七八九十\d]{1,3} 步 | 首先 | 其次 | 然后 | 最后
    """,
    re.MULTILINE | re.VERBOSE,
)


@register_reward("reasoning_steps")
@dataclass(frozen=True)
class ReasoningStepsReward(Reward):
    """A third for each visible step marker in the whole completion, up to 1.0.

    Range: {0, 1/3, 2/3, 1}. Markers: ``Step 1:``; numbered lines; bullets; ``First,`` ``Second,`` ``Next,`` ``Finally,``; 第一步,
    首先, 其次, 然后, 最后. Source: open-r1, which counts the English ones; here numbers count on every line and a bullet needs
    a space, so that a line that starts with a decimal or a negative number is not a step.
    """

    def score_text(self, text: str) -> float:
        return min(1.0, len(_STEP.findall(text)) / 3)


# One character of a script without spaces stands for a word.
_UNITS = regex.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")


@register_reward("repetition_penalty")
@dataclass(frozen=True)
class RepetitionPenaltyReward(Reward):
    """``(1 - distinct / all) * repetition_max_penalty`` over the completion's n-grams; 0.0 if it has fewer than n words.

    Range: ``repetition_max_penalty``..0. Words stand between white space, in lower case; a character of Chinese, Japanese, Thai, Lao,
    Burmese or Khmer is a word of its own, unless ``repetition_language`` is ``en``.

    Source: "Demystifying Long Chain-of-Thought Reasoning" (arXiv:2502.03373, appendix C.2), by way of open-r1, which needs the
    segmenter jieba for ``repetition_language: zh``.
    """

    repetition_n_grams: int = 3
    repetition_max_penalty: float = -1.0
    repetition_language: str | None = None

    def __post_init__(self) -> None:
        self.must("repetition_max_penalty", self.repetition_max_penalty <= 0, "0 or below")
        self.must("repetition_n_grams", self.repetition_n_grams >= 1, "1 or more")
        self.must("repetition_language", self.repetition_language in (None, "en", "zh"), "en or zh")

    def score_text(self, text: str) -> float:
        words = text.lower().split() if self.repetition_language == "en" else _UNITS.findall(text.lower())
        total = len(words) - self.repetition_n_grams + 1
        if total < 1:
            return 0.0
        distinct = len(set(zip(*(words[i:] for i in range(self.repetition_n_grams)), strict=False)))
        # Never -0.0, which is what (1 - 1) * -1.0 gives.
        return (1 - distinct / total) * self.repetition_max_penalty if distinct < total else 0.0


@register_reward("xml_soft_format")
@dataclass(frozen=True)
class XmlSoftFormatReward(Reward):
    """1.0 if a reasoning block and, with only white space between, an answer block stand anywhere in the text; else 0.0.

    Range: {0, 1}. Both blocks hold something, and no further tag. Text around them, and more blocks, are free: that is what sets it
    apart from ``format``. For a format without answer tags: a reasoning and one answer can be read. Source: the GSM8K GRPO demo for
    TRL (grpo_demo), whose pattern also takes empty blocks and, unlike its intention, no line breaks and nothing in front.
    """

    def score_text(self, text: str) -> float:
        fmt = self.response_format
        if not (fmt.reasoning_tags and fmt.answer_tags):
            parsed = fmt.parse(text)
            return float(parsed.reasoning is not None and parsed.answer is not None)
        opening, closing, answer_opening, answer_closing = map(re.escape, (*fmt.reasoning_tags, *fmt.answer_tags))
        # A block ends at the next tag: a lazy ".*?" would be quadratic in unclosed tags.
        no_tag = f"(?!{opening}|{closing}|{answer_opening}|{answer_closing})"
        block = rf"\s*+{no_tag}(?:{no_tag}.)++"
        blocks = rf"{opening}{block}{closing}\s*{answer_opening}{block}{answer_closing}"
        return float(re.search(blocks, fmt.full_text(text), re.DOTALL) is not None)


@register_reward("xml_strict_format")
@dataclass(frozen=True)
class XmlStrictFormatReward(Reward):
    """1.0 if the whole completion is, line break by line break, what the format's layout writes; else 0.0.

    Range: {0, 1}. One line break after the end is free. Source: the GSM8K GRPO demo for TRL (grpo_demo), whose pattern wants that
    last line break and pays for empty blocks.
    """

    def score_text(self, text: str) -> float:
        parsed = self.response_format.parse(text)
        if parsed.reasoning and parsed.answer and parsed.well_formed:
            with contextlib.suppress(ValueError):  # what was read cannot be written, so it was not written in this layout
                return float(text.removesuffix("\n") == self.response_format.render_completion(parsed.reasoning, parsed.answer))
        return 0.0


@register_reward("xml_count")
@dataclass(frozen=True)
class XmlCountReward(Reward):
    """An equal share of 1.0 for each of the format's tags that occurs exactly once, with its line breaks, less a penalty for what follows.

    Each character after the last closing answer tag, but for one line break, costs ``xml_count_trailing_penalty``. Range: at most 1.0, no
    lower bound. A format without answer tags has no such penalty.

    Source: the GSM8K GRPO demo for TRL (grpo_demo), which pays 0.125 per tag and takes 0.001 per character twice: a weight of 0.5 gives
    its value for a completion that ends in a line break.
    """

    xml_count_trailing_penalty: float = 0.004

    def __post_init__(self) -> None:
        self.must("xml_count_trailing_penalty", self.xml_count_trailing_penalty >= 0, "0 or above")

    def score_text(self, text: str) -> float:
        fmt = self.response_format
        text = fmt.full_text(text)
        share = tag_share(fmt, text)
        if not fmt.answer_tags or fmt.answer_tags[1] not in text:
            return share
        return share - self.xml_count_trailing_penalty * len(text.rpartition(fmt.answer_tags[1])[2].removeprefix("\n"))


_INTEGER = re.compile(r"[-+]?(?:[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)")


@register_reward("integer_answer")
@dataclass(frozen=True)
class IntegerAnswerReward(Reward):
    """1.0 if the answer is a whole number and nothing else, right or wrong; else 0.0.

    Range: {0, 1}. A sign and thousands commas are part of the number. Source: the GSM8K GRPO demo for TRL (grpo_demo), which takes
    digits alone.
    """

    def score_text(self, text: str) -> float:
        answer = parsed_answer(self.response_format, text)
        return float(answer is not None and _INTEGER.fullmatch(answer.strip()) is not None)
