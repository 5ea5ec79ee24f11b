"""Rewards for the surface of the text: visible steps, repetition, and those of the GSM8K GRPO demo for TRL (grpo_demo)."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.errors import unknown_name
from r1_recipes.common.messages import completion_texts
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.accuracy import parsed_answers
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


# Scripts written without spaces: Thai to Lao, Burmese, Khmer, kana, Han. One character of theirs stands for a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNITS = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
_REPETITION_UNITS = {"auto", "word", "character", "token"}
_LANGUAGE_UNITS = {"en": "word", "zh": "auto"}


@register_reward("repetition_penalty")
@dataclass(frozen=True)
class RepetitionPenaltyReward(Reward):
    """``(1 - distinct / all) * repetition_max_penalty`` over the completion's n-grams; 0.0 where there are fewer than n units.

    Range: ``repetition_max_penalty``..0. ``repetition_unit`` says what an n-gram is made of, letters in lower case:

    - ``auto``: words between white space, except that every character of Chinese, Japanese, Thai, Lao, Burmese or Khmer is a unit
      of its own, in mixed text too;
    - ``word``: what stands between white space; ``character``: every character that is not white space;
    - ``token``: the ids of ``completion_ids``, as TRL's ``get_repetition_penalty_reward``.

    Source: "Demystifying Long Chain-of-Thought Reasoning" (arXiv:2502.03373, appendix C.2), by way of open-r1, whose
    ``repetition_language`` is understood: ``en`` is ``word``; ``zh``, for which open-r1 needs the segmenter jieba, is ``auto``,
    which like jieba keeps a number or an English word inside Chinese whole.

    Raises:
        ValueError: a positive penalty, n below 1, an unknown unit or language, or both a unit and a language. On a call: unit
            ``token`` without a ``completion_ids`` column.
    """

    repetition_n_grams: int = 3
    repetition_max_penalty: float = -1.0
    repetition_unit: str = "auto"
    repetition_language: str | None = None

    def __post_init__(self) -> None:
        if self.repetition_max_penalty > 0:
            raise ValueError(f"repetition_max_penalty is {self.repetition_max_penalty}; a penalty must be 0 or below")
        if self.repetition_n_grams < 1:
            raise ValueError(f"repetition_n_grams is {self.repetition_n_grams}; an n-gram has at least 1 unit")
        if self.repetition_unit not in _REPETITION_UNITS:
            raise ValueError(unknown_name("repetition_unit", self.repetition_unit, _REPETITION_UNITS))
        if self.repetition_language is not None:
            if self.repetition_language not in _LANGUAGE_UNITS:
                raise ValueError(unknown_name("repetition_language", self.repetition_language, _LANGUAGE_UNITS))
            if self.repetition_unit != "auto":
                raise ValueError("repetition_language and repetition_unit both say what a unit is; set one of them")

    def __call__(
        self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]] | None = None, **columns: Any
    ) -> list[float | None]:
        if self.repetition_unit == "token":
            if completion_ids is None:
                raise ValueError("repetition_unit 'token' needs the completion_ids column, which TRL's trainer passes")
            from trl.rewards import get_repetition_penalty_reward

            return get_repetition_penalty_reward(self.repetition_n_grams, self.repetition_max_penalty)(completion_ids)
        return [self._penalty(self._units(text.lower())) for text in completion_texts(completions)]

    def _units(self, text: str) -> Sequence[Hashable]:
        unit = _LANGUAGE_UNITS[self.repetition_language] if self.repetition_language else self.repetition_unit
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
    """1.0 where a reasoning block and, with only white space between, an answer block stand anywhere in the text; else 0.0.

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
    pieces = re.split(f"({'|'.join(map(re.escape, shape))})", text)
    tags, texts = pieces[1::2], pieces[::2]
    for i in range(len(tags) - 3):
        if tuple(tags[i : i + 4]) == shape:
            reasoning, between, answer = (piece.strip() for piece in texts[i + 1 : i + 4])
            if reasoning and answer and not between:
                return True
    return False


@register_reward("xml_strict_format")
@dataclass(frozen=True)
class XmlStrictFormatReward(Reward):
    """1.0 where the whole completion is, line break by line break, what the format's layout writes; else 0.0.

    Range: {0, 1}. One line break after the end is free. Source: the GSM8K GRPO demo for TRL (grpo_demo), whose pattern wants that
    last line break and pays for empty blocks.
    """

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return [float(self._is_exact(text)) for text in completion_texts(completions)]

    def _is_exact(self, text: str) -> bool:
        parsed = self.response_format.parse(text)
        if not parsed.well_formed:
            return False
        try:
            return text.removesuffix("\n") == self.response_format.render_completion(parsed.reasoning, parsed.answer)
        except ValueError:  # what was read cannot be written, so it was not written in this layout
            return False


@register_reward("xml_count")
@dataclass(frozen=True)
class XmlCountReward(Reward):
    """An equal share of 1.0 for each of the format's tags that occurs exactly once, with its line breaks, less a penalty for what follows.

    Each character after the last closing answer tag, but for one line break, costs ``xml_count_trailing_penalty``. Range: at most 1.0, no
    lower bound. A format without answer tags has no such penalty.

    Source: the GSM8K GRPO demo for TRL (grpo_demo), which pays 0.125 a tag and takes 0.001 a character twice: a weight of 0.5 gives its
    value. It takes the whole completion for what follows where the text ends in the tag without a line break; here nothing follows. It
    takes nothing off where the closing tag has no line break in front, or occurs twice; here what follows the last one always costs.

    Raises:
        ValueError: a negative penalty.
    """

    xml_count_trailing_penalty: float = 0.004

    def __post_init__(self) -> None:
        if self.xml_count_trailing_penalty < 0:
            raise ValueError(f"xml_count_trailing_penalty is {self.xml_count_trailing_penalty}; it is taken off, so it must be 0 or above")

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return [self._count(self.response_format.full_text(text)) for text in completion_texts(completions)]

    def _count(self, text: str) -> float:
        fmt = self.response_format
        share = sum(text.count(tag) == fmt.tags.count(tag) for tag in fmt.tags) / len(fmt.tags)
        if not fmt.answer_tags or fmt.answer_tags[1] not in text:
            return share
        return share - self.xml_count_trailing_penalty * len(text.rpartition(fmt.answer_tags[1])[2].removeprefix("\n"))


_INTEGER = re.compile(r"[-+]?(?:[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)")


@register_reward("integer_answer")
@dataclass(frozen=True)
class IntegerAnswerReward(Reward):
    """1.0 where the answer is a whole number and nothing else, right or wrong; else 0.0.

    Range: {0, 1}. A sign and thousands commas are part of the number. Source: the GSM8K GRPO demo for TRL (grpo_demo), which takes
    digits alone.
    """

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        answers = parsed_answers(self.response_format, completions)
        return [float(answer is not None and _INTEGER.fullmatch(answer.strip()) is not None) for answer in answers]
