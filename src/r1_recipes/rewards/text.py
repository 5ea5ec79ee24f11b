"""Rewards for the shape and the surface of a response: formats, visible steps, repetition."""

import contextlib
import re
from typing import ClassVar

import regex

from r1_recipes.common.messages import UNSPACED
from r1_recipes.prompts.formats import is_blank
from r1_recipes.rewards.accuracy import parsed_answer
from r1_recipes.rewards.registry import Reward, register_reward


@register_reward("format")
class FormatReward(Reward):
    """1.0 if the whole response is one non-empty reasoning block, then one non-empty answer block,
    and nothing else; else 0.0.

    Range: {0, 1}. White space around blocks is free; a block of which a reader sees nothing
    (characters without width, ``\\quad``) is empty. Source: DeepSeek-R1's format reward
    (arXiv:2501.12948, section 2.2.2), stricter than open-r1's pattern, which also pays for two
    blocks, an empty one, or text after the answer.
    """

    judges = "shape"
    full_marks = 1.0

    def score_text(self, text: str) -> float:
        return float(self.response_format.parse(text).well_formed)


@register_reward("format_partial")
class FormatPartialReward(Reward):
    """1.0 for the exact shape, else 0.1 for a reasoning block plus 0.5 for an answer block.

    Range: {0, 0.1, 0.5, 0.6, 1}. ``countdown_answer_anywhere``: a block inside the reasoning
    counts, too. Source: GRPO-Zero's.
    """

    judges = "shape"
    full_marks = 1.0

    countdown_answer_anywhere: bool = False

    def score_text(self, text: str) -> float:
        parsed = self.response_format.parse(text)
        answer = (
            self.response_format.answer_anywhere(text)
            if self.countdown_answer_anywhere
            else parsed.answer
        )
        return (
            1.0
            if parsed.well_formed
            else 0.1 * (parsed.reasoning is not None) + 0.5 * (answer is not None)
        )


@register_reward("tag_count")
class TagCountReward(Reward):
    """An equal share of 1.0 for each of the format's tags, with its line breaks, that occurs as
    often as the format has it (once).

    Range: 0..1, in quarters for a format with four tags. Source: open-r1 (pull request 418), which
    also pays for the tags of an empty block; here they earn nothing.
    """

    judges = "shape"
    full_marks: ClassVar[float | None] = 1.0

    def score_text(self, text: str) -> float:
        tags, hollow, text = (
            self.response_format.tags,
            self.response_format.hollow_tags(text),
            self.response_format.full_text(text),
        )
        # special_token uses one marker twice.
        return sum(tag not in hollow and text.count(tag) == tags.count(tag) for tag in tags) / len(
            tags
        )


# Every repeat is bounded or runs over characters that what follows cannot match, so that a search
# is linear in the text.
_STEP = re.compile(
    r"""
      (?<![A-Za-z]) Step [ ]? \d{1,4} [ ]? [:：]                   # Step 1:
    | (?<![A-Za-z]) (?: First | Second | Next | Finally ) ,     # as open-r1 has them
    | ^[ \t]* \d{1,3} (?: [.)][ \t] | [.)](?=[^\W\d_]) | [、．] ) # "1. ", "1.先", not "1.5"
    | ^[ \t]* [-*•] [ \t]                                       # a bullet, not "-3" nor "**bold**"
    | 第 [一二三四五六七八九十\d]{1,3} 步 | 首先 | 其次 | 然后 | 最后
    """,
    re.MULTILINE | re.VERBOSE,
)


@register_reward("reasoning_steps")
class ReasoningStepsReward(Reward):
    """A third for each visible step marker in the whole completion, up to 1.0.

    Range: {0, 1/3, 2/3, 1}. Source: open-r1, which counts the English ones; here the Chinese ones
    count too, numbers on every line, and a bullet only before a space, so that a decimal or a
    negative number is no step.
    """

    judges = "style"
    full_marks = 1.0

    def score_text(self, text: str) -> float:
        return min(1.0, len(_STEP.findall(text)) / 3)


_UNITS = regex.compile(
    rf"[{UNSPACED}]|[^\s{UNSPACED}]+"
)  # One character of a script without spaces stands for a word.


@register_reward("repetition_penalty")
class RepetitionPenaltyReward(Reward):
    """``(1 - distinct / all) * repetition_max_penalty`` over the completion's n-grams; 0.0 if it
    has fewer than n words.

    Range: ``repetition_max_penalty``..0. Words stand between white space, in lower case, as in
    open-r1, so "abcabc" is one; a character of Chinese, Japanese, Thai, Lao, Burmese or Khmer is a
    word of its own. Source: "Demystifying Long Chain-of-Thought Reasoning" (arXiv:2502.03373,
    appendix C.2), by way of open-r1.
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
        distinct = len(set(zip(*(words[i:] for i in range(self.repetition_n_grams)), strict=False)))
        # Never -0.0, which is what (1 - 1) * -1.0 gives.
        return (1 - distinct / total) * self.repetition_max_penalty if distinct < total else 0.0


@register_reward("xml_soft_format")
class XmlSoftFormatReward(Reward):
    """1.0 if a reasoning block and, with only white space between, an answer block stand anywhere
    in the text; else 0.0.

    Range: {0, 1}. Both blocks hold something, and no further tag. Without answer tags in the
    format: a reasoning and one answer can be read. Source: the GSM8K GRPO demo for TRL (grpo_demo),
    whose pattern takes empty blocks too, but only at the beginning of the text.
    """

    judges = "shape"
    full_marks = 1.0

    def score_text(self, text: str) -> float:
        fmt = self.response_format
        if not (fmt.reasoning_tags and fmt.answer_tags):
            parsed = fmt.parse(text)
            return float(parsed.reasoning is not None and parsed.answer is not None)
        opening, closing, answer_opening, answer_closing = map(
            re.escape, (*fmt.reasoning_tags, *fmt.answer_tags)
        )
        # A block ends at the next tag: a lazy ".*?" would be quadratic in unclosed tags.
        no_tag = f"(?!{opening}|{closing}|{answer_opening}|{answer_closing})"
        block = rf"\s*+{no_tag}(?:{no_tag}.)++"
        blocks = rf"{opening}({block}){closing}\s*{answer_opening}({block}){answer_closing}"
        pairs = re.findall(blocks, fmt.full_text(text), re.DOTALL)
        return float(
            any(not is_blank(reasoning) and not is_blank(answer) for reasoning, answer in pairs)
        )


@register_reward("xml_strict_format")
class XmlStrictFormatReward(Reward):
    """1.0 if the whole completion is, line break by line break, what the format's layout writes;
    else 0.0.

    Range: {0, 1}. A space before it is free, with which a turn of r1_zero starts, and one line
    break after it. Source: the GSM8K GRPO demo for TRL (grpo_demo), which requires that line break.
    """

    judges = "shape"
    full_marks = 1.0

    def score_text(self, text: str) -> float:
        parsed = self.response_format.parse(text)
        if parsed.reasoning and parsed.answer and parsed.well_formed:
            with contextlib.suppress(
                ValueError
            ):  # what was read cannot be written, so it was not written in this layout
                written = self.response_format.render_completion(parsed.reasoning, parsed.answer)
                return float(text.removeprefix(" ").removesuffix("\n") == written)
        return 0.0


@register_reward("xml_count")
class XmlCountReward(TagCountReward):
    """An equal share of 1.0 for each of the format's tags that occurs exactly once, with its line
    breaks, less 0.004 for each character after the last closing answer tag and one line break.

    Range: at most 1.0, no lower bound. The tags of an empty block earn nothing. Source: the GSM8K
    GRPO demo for TRL (grpo_demo), which pays 0.125 per tag, also of an empty block, and takes 0.001
    per character twice: a weight of 0.5 gives its value for a completion that ends in a line break.
    """

    full_marks = None

    def score_text(self, text: str) -> float:
        share, tags = super().score_text(text), self.response_format.answer_tags
        _, closed, rest = (
            self.response_format.full_text(text).rpartition(tags[1]) if tags else ("", "", "")
        )
        return share - 0.004 * len(rest.removeprefix("\n")) if closed else share


_INTEGER = re.compile(r"[-+]?(?:[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)")


@register_reward("integer_answer")
class IntegerAnswerReward(Reward):
    """1.0 if the answer is a whole number and nothing else, right or wrong; else 0.0.

    Range: {0, 1}. A sign and thousands commas are part of it. Source: the GSM8K GRPO demo for TRL
    (grpo_demo), which takes digits alone.
    """

    def score_text(self, text: str) -> float:
        answer = parsed_answer(self.response_format, text)
        return float(answer is not None and _INTEGER.fullmatch(answer.strip()) is not None)
