"""Rewards for the surface of the text: visible steps, repetition, and those of the GSM8K GRPO demo for TRL (grpo_demo)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import regex

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.common.messages import completion_texts
from r1_recipes.common.scripts import UNSPACED
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.accuracy import parsed_answers
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
_STEPS_FOR_FULL_REWARD = 3


@register_reward("reasoning_steps")
@dataclass(frozen=True)
class ReasoningStepsReward(Reward):
    """A third for each visible step marker in the whole completion, up to 1.0.

    Range: {0, 1/3, 2/3, 1}. Markers: ``Step 1:``; numbered lines; bullets; ``First,`` ``Second,`` ``Next,`` ``Finally,``; 第一步,
    首先, 其次, 然后, 最后. Source: open-r1, which counts the English ones; here numbers count on every line and a bullet needs
    a space, so that a line that starts with a decimal or a negative number is not a step.
    """

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        counts = (sum(1 for _ in _STEP.finditer(text)) for text in completion_texts(completions))
        return [min(1.0, count / _STEPS_FOR_FULL_REWARD) for count in counts]


# One character of a script without spaces stands for a word.
_UNITS = regex.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
_REPETITION_UNITS = {"auto", "word", "character", "token"}
_LANGUAGE_UNITS = {"en": "word", "zh": "auto"}


@register_reward("repetition_penalty")
@dataclass(frozen=True)
class RepetitionPenaltyReward(Reward):
    """``(1 - distinct / all) * repetition_max_penalty`` over the completion's n-grams; 0.0 if there are fewer than n units.

    Range: ``repetition_max_penalty``..0. ``repetition_unit`` says what an n-gram is made of, letters in lower case:

    - ``auto``: words between white space, and single characters of Chinese, Japanese, Thai, Lao, Burmese and Khmer;
    - ``word``: what stands between white space; ``character``: every character that is not white space;
    - ``token``: the ids of ``completion_ids``, as TRL's ``get_repetition_penalty_reward``.

    Source: "Demystifying Long Chain-of-Thought Reasoning" (arXiv:2502.03373, appendix C.2), by way of open-r1, whose
    ``repetition_language`` is understood: ``en`` is ``word``; ``zh``, for which open-r1 needs the segmenter jieba, is ``auto``.

    Raises:
        ValueError: a positive penalty, n below 1, an unknown unit or language, or both a unit and a language. On a call: unit
            ``token`` without a ``completion_ids`` column.
    """

    repetition_n_grams: int = 3
    repetition_max_penalty: float = -1.0
    repetition_unit: str = "auto"
    repetition_language: str | None = None

    def __post_init__(self) -> None:
        self.must("repetition_max_penalty", self.repetition_max_penalty <= 0, "0 or below")
        self.must("repetition_n_grams", self.repetition_n_grams >= 1, "1 or more")
        if self.repetition_unit not in _REPETITION_UNITS:
            raise RecipeError(unknown_name("repetition_unit", self.repetition_unit, _REPETITION_UNITS))
        if self.repetition_language is not None:
            if self.repetition_language not in _LANGUAGE_UNITS:
                raise RecipeError(unknown_name("repetition_language", self.repetition_language, _LANGUAGE_UNITS))
            self.must("repetition_unit", self.repetition_unit == "auto", "auto if repetition_language is set")

    def __call__(
        self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]] | None = None, **columns: Any
    ) -> list[float | None]:
        if self.repetition_unit == "token":
            if completion_ids is None:
                raise self.missing("the column 'completion_ids' for repetition_unit 'token'", columns)
            from trl.rewards import get_repetition_penalty_reward

            return get_repetition_penalty_reward(self.repetition_n_grams, self.repetition_max_penalty)(completion_ids)
        return [self._penalty(self._units(text.lower())) for text in completion_texts(completions)]

    def _units(self, text: str) -> Sequence[Hashable]:
        unit = _LANGUAGE_UNITS.get(self.repetition_language or "", self.repetition_unit)
        if unit == "auto":
            return _UNITS.findall(text)
        words = text.split()
        return words if unit == "word" else "".join(words)

    def _penalty(self, units: Sequence[Hashable]) -> float:
        total = len(units) - self.repetition_n_grams + 1
        if total < 1:
            return 0.0
        distinct = len(set(zip(*(units[i:] for i in range(self.repetition_n_grams)), strict=False)))
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

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        fmt = self.response_format
        if fmt.reasoning_tags and fmt.answer_tags:
            return [float(_has_adjacent_blocks(fmt, fmt.full_text(text))) for text in completion_texts(completions)]
        return [float(parsed.reasoning is not None and parsed.answer is not None) for parsed in self.parse(completions)]


def _has_adjacent_blocks(fmt: ResponseFormat, text: str) -> bool:
    # A lazy pattern over both blocks is quadratic in unclosed tags; cutting the text at its tags is one pass.
    shape = (*fmt.reasoning_tags, *fmt.answer_tags)
    pieces = [piece.strip() for piece in re.split(f"({'|'.join(map(re.escape, shape))})", text)]
    for start in range(1, len(pieces) - 7, 2):
        opened, reasoning, closed, between, answer_opened, answer, answer_closed = pieces[start : start + 7]
        if (opened, closed, answer_opened, answer_closed) == shape and reasoning and answer and not between:
            return True
    return False


@register_reward("xml_strict_format")
@dataclass(frozen=True)
class XmlStrictFormatReward(Reward):
    """1.0 if the whole completion is, line break by line break, what the format's layout writes; else 0.0.

    Range: {0, 1}. One line break after the end is free. Source: the GSM8K GRPO demo for TRL (grpo_demo), whose pattern wants that
    last line break and pays for empty blocks.
    """

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return [float(self._is_exact(text)) for text in completion_texts(completions)]

    def _is_exact(self, text: str) -> bool:
        parsed = self.response_format.parse(text)
        if parsed.reasoning and parsed.answer and parsed.well_formed:
            with contextlib.suppress(ValueError):  # what was read cannot be written, so it was not written in this layout
                return text.removesuffix("\n") == self.response_format.render_completion(parsed.reasoning, parsed.answer)
        return False


@register_reward("xml_count")
@dataclass(frozen=True)
class XmlCountReward(Reward):
    """An equal share of 1.0 for each of the format's tags that occurs exactly once, with its line breaks, less a penalty for what follows.

    Each character after the last closing answer tag, but for one line break, costs ``xml_count_trailing_penalty``. Range: at most 1.0, no
    lower bound. A format without answer tags has no such penalty.

    Source: the GSM8K GRPO demo for TRL (grpo_demo), which pays 0.125 per tag and takes 0.001 per character twice: a weight of 0.5 gives its
    value. If the text ends in the tag without a line break, it takes the whole completion for what follows; here nothing follows. If
    the closing tag has no line break in front, or occurs twice, it takes nothing off; here what follows the last one always costs.

    Raises:
        ValueError: a negative penalty.
    """

    xml_count_trailing_penalty: float = 0.004

    def __post_init__(self) -> None:
        self.must("xml_count_trailing_penalty", self.xml_count_trailing_penalty >= 0, "0 or above")

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return [self._count(self.response_format.full_text(text)) for text in completion_texts(completions)]

    def _count(self, text: str) -> float:
        fmt = self.response_format
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

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        answers = parsed_answers(self.response_format, completions)
        return [float(answer is not None and _INTEGER.fullmatch(answer.strip()) is not None) for answer in answers]
