"""Rewards for the form of a response: formats, visible steps, repetition."""

import contextlib
import re
from typing import ClassVar

import regex

from r1_recipes.common.messages import UNSPACED
from r1_recipes.prompts.formats import ResponseFormat, between
from r1_recipes.rewards.accuracy import parsed_answer
from r1_recipes.rewards.registry import Reward, register_reward


@register_reward("format")
class FormatReward(Reward):
    """Return 1.0 if the response is a reasoning block, an answer block and nothing else, else 0.0.

    Range: {0, 1}. There must be one block of each, and neither may be empty. White space around
    blocks does not count. Source: the format reward of DeepSeek-R1 (arXiv:2501.12948, section
    2.2.2). The pattern of open-r1 is less strict. It also rewards two blocks, an empty block, or
    text after the answer.
    """

    judges = "shape"
    full_marks = 1.0

    def score_text(self, text: str) -> float:
        return float(self.response_format.parse(text).well_formed)


@register_reward("format_partial")
class FormatPartialReward(Reward):
    """Return 1.0 for the exact format, else 0.1 for a reasoning block and 0.5 for an answer block.

    Range: {0, 0.1, 0.5, 0.6, 1}. With ``countdown_answer_anywhere``, an answer block inside the
    reasoning counts too. Source: GRPO-Zero.
    """

    judges = "shape"
    full_marks = 1.0

    countdown_answer_anywhere: bool = False

    def score_text(self, text: str) -> float:
        parsed = self.response_format.parse(text)
        if parsed.well_formed:
            return 1.0
        answer = parsed.answer
        tags = self.response_format.answer_tags
        if self.countdown_answer_anywhere and tags:
            answer = between(self.response_format.full_text(text), *tags)[1].strip()
        return 0.1 * (parsed.reasoning is not None) + 0.5 * bool(answer)


@register_reward("tag_count")
class TagCountReward(Reward):
    """Return the share of the format's tags that occur exactly as often as the format has them.

    Range: 0..1, in quarters for a format with four tags. Source: open-r1 (pull request 418), which
    wants a line break beside a tag, and also rewards the tags of an empty block. Here these tags
    score nothing.
    """

    judges = "shape"
    full_marks: ClassVar[float | None] = 1.0

    def score_text(self, text: str) -> float:
        fmt = self.response_format
        text = fmt.full_text(text)
        hollow: set[str] = set()
        for opening, closing in filter(None, (fmt.reasoning_tags, fmt.answer_tags)):
            if re.search(rf"{re.escape(opening)}\s*{re.escape(closing)}", text):
                hollow |= {opening, closing}
        # The format special_token uses the same tag twice.
        counted = [tag not in hollow and text.count(tag) == fmt.tags.count(tag) for tag in fmt.tags]
        return sum(counted) / len(counted)


# Every repetition is bounded, or cannot match what follows it, so a search is linear in the text.
_STEP = re.compile(
    r"""
      (?<![A-Za-z]) Step [ ]? \d{1,4} [ ]? [:：]                   # Step 1:
    | (?<![A-Za-z]) (?: First | Second | Next | Finally ) ,     # as in open-r1
    | ^[ \t]* \d{1,3} (?: [.)][ \t]++(?=\S) | [.)](?=[^\W\d_]) | [、．] ) # "1. a", "1.先"
    | ^[ \t]* [-*•] [ \t]++ (?=\S)                             # a bullet, not "-3" or "**bold**"
    | 第 [一二三四五六七八九十\d]{1,3} 步 | 首先 | 其次 | 然后 | 最后
    """,
    re.MULTILINE | re.VERBOSE,
)


@register_reward("reasoning_steps")
class ReasoningStepsReward(Reward):
    """Return a third for each visible step marker in the completion, up to 1.0.

    Range: {0, 1/3, 2/3, 1}. Source: open-r1, which counts English markers. Here Chinese markers
    count too, and so do numbers at the start of every line. A bullet needs a space after it, so a
    decimal or a negative number is not a step.
    """

    judges = "style"
    full_marks = 1.0

    def score_text(self, text: str) -> float:
        return min(1.0, len(_STEP.findall(text)) / 3)


# In a script without spaces, each character counts as a word.
_UNITS = regex.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")


@register_reward("repetition_penalty")
class RepetitionPenaltyReward(Reward):
    """Return ``(1 - distinct / all) * repetition_max_penalty`` over the completion's n-grams.

    Range: ``repetition_max_penalty``..0. A completion with fewer than n words scores 0.0. White
    space separates words, and case does not count, as in open-r1. So "abcabc" is a single word. In
    Chinese, Japanese, Thai, Lao, Burmese and Khmer, each character is a word. Source: "Demystifying
    Long Chain-of-Thought Reasoning" (arXiv:2502.03373, appendix C.2), by way of open-r1.
    """

    judges = "style"
    full_marks = 0.0

    repetition_n_grams: int = 3
    repetition_max_penalty: float = -1.0

    def __post_init__(self) -> None:
        self.require(self.repetition_max_penalty <= 0, "repetition_max_penalty", "0 or below")
        self.require(self.repetition_n_grams >= 1, "repetition_n_grams", "1 or more")

    def score_text(self, text: str) -> float:
        words = _UNITS.findall(text.lower())
        total = len(words) - self.repetition_n_grams + 1
        if total < 1:
            return 0.0
        shifted = [words[i:] for i in range(self.repetition_n_grams)]
        distinct = len(set(zip(*shifted, strict=False)))
        if distinct == total:
            return 0.0  # instead of -0.0, which is (1 - 1) * -1.0
        return (1 - distinct / total) * self.repetition_max_penalty


@register_reward("xml_soft_format")
class XmlSoftFormatReward(Reward):
    """Return 1.0 if the text has a reasoning block followed by an answer block, else 0.0.

    Range: {0, 1}. Only white space may be between the blocks. Neither may be empty or contain
    another tag. In a format without answer tags, reasoning and an answer must be found. Source: the
    GSM8K GRPO demo for TRL (grpo_demo). Its pattern also accepts empty blocks, but only at the
    beginning of the text.
    """

    judges = "shape"
    full_marks = 1.0

    def score_text(self, text: str) -> float:
        fmt = self.response_format
        if not (fmt.reasoning_tags and fmt.answer_tags):
            parsed = fmt.parse(text)
            return float(parsed.reasoning is not None and parsed.answer is not None)
        tags = [re.escape(tag) for tag in (*fmt.reasoning_tags, *fmt.answer_tags)]
        # A block ends at the next tag: a lazy ".*?" would be quadratic in unclosed tags.
        no_tag = f"(?!{'|'.join(tags)})"
        block = rf"(\s*+{no_tag}(?:{no_tag}.)++)"
        blocks = rf"{tags[0]}{block}{tags[1]}\s*{tags[2]}{block}{tags[3]}"
        pairs = re.findall(blocks, fmt.full_text(text), re.DOTALL)
        return float(any(all(map(str.strip, pair)) for pair in pairs))


@register_reward("xml_strict_format")
class XmlStrictFormatReward(Reward):
    """Return 1.0 if the completion has exactly the format's layout, with its line breaks, else 0.0.

    Range: {0, 1}. A space at the start is allowed, because messages of r1_zero start with a space.
    A line break at the end is allowed too. Source: the GSM8K GRPO demo for TRL (grpo_demo), which
    requires this line break.
    """

    judges = "shape"
    full_marks = 1.0

    def score_text(self, text: str) -> float:
        parsed = self.response_format.parse(text)
        if parsed.reasoning and parsed.answer and parsed.well_formed:
            # If the parsed text cannot be rendered, the completion does not have this layout.
            with contextlib.suppress(ValueError):
                written = self.response_format.render_completion(parsed.reasoning, parsed.answer)
                return float(text.removeprefix(" ").removesuffix("\n") == written)
        return 0.0


@register_reward("xml_count")
class XmlCountReward(TagCountReward):
    """Return ``tag_count``, minus 0.004 for each character after the last closing answer tag.

    Range: at most 1.0, no lower bound. One line break after the tag is free. Tags of an empty block
    score nothing. Source: the GSM8K GRPO demo for TRL (grpo_demo). It gives 0.125 per tag, also for
    an empty block, and subtracts 0.001 per character twice. With a weight of 0.5, a completion that
    ends in a line break scores the same here.
    """

    full_marks = None

    def score_text(self, text: str) -> float:
        share = super().score_text(text)
        fmt = self.response_format
        if fmt.answer_tags:
            _, closed, rest = fmt.full_text(text).rpartition(fmt.answer_tags[1])
            if closed:
                return share - 0.004 * len(rest.removeprefix("\n"))
        return share


_INTEGER = re.compile(r"[-+]?(?:[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)")


@register_reward("integer_answer")
class IntegerAnswerReward(Reward):
    """Return 1.0 if the answer is a whole number and nothing else, even if it is wrong, else 0.0.

    Range: {0, 1}. The number may have a sign and thousands commas. Source: the GSM8K GRPO demo for
    TRL (grpo_demo), which accepts only digits.
    """

    def score_text(self, text: str) -> float:
        answer = parsed_answer(self.response_format, text)
        return float(_INTEGER.fullmatch((answer or "").strip()) is not None)


def shown_text(fmt: ResponseFormat, completion: str) -> str | None:
    """Return the text after the reasoning, stripped and without answer tags.

    Return ``None`` if the reasoning is not closed or nothing follows it.
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
