"""Rewards of two tutorials: the GSM8K GRPO demo for TRL (grpo_demo) and GRPO-Zero."""

import contextlib
import re
from typing import Any

from r1_recipes.common.messages import completion_texts
from r1_recipes.prompts import ResponseFormat, between
from r1_recipes.rewards.answers import THINK_ANSWER, Column, Values, parsed_answer
from r1_recipes.rewards.form import tag_count


def format_partial(
    completions: Column,
    *,
    fmt: ResponseFormat = THINK_ANSWER,
    countdown_answer_anywhere: bool = False,
    **columns: Any,
) -> Values:
    """Return 1.0 for the exact format, else 0.1 for a reasoning block and 0.5 for an answer block.

    Range: {0, 0.1, 0.5, 0.6, 1}. With ``countdown_answer_anywhere``, an answer block inside the
    reasoning counts too. Source: GRPO-Zero.
    """
    scores: Values = []
    for text in completion_texts(completions):
        parsed = fmt.parse(text)
        answer = parsed.answer
        if countdown_answer_anywhere and fmt.answer_tags:
            answer = between(fmt.full_text(text), *fmt.answer_tags)[1].strip()
        partial = 0.1 * (parsed.reasoning is not None) + 0.5 * bool(answer)
        scores.append(1.0 if parsed.well_formed else partial)
    return scores


def xml_count(completions: Column, *, fmt: ResponseFormat = THINK_ANSWER, **columns: Any) -> Values:
    """Return ``tag_count``, minus 0.004 for each character after the last closing answer tag.

    Range: at most 1.0, no lower bound. One line break after the tag is free. Tags of an empty block
    score nothing. Source: the GSM8K GRPO demo for TRL (grpo_demo). It gives 0.125 per tag, also for
    an empty block, and subtracts 0.001 per character twice. With a weight of 0.5, a completion that
    ends in a line break scores the same here.
    """
    shares = tag_count(completions, fmt=fmt)
    if not fmt.answer_tags:
        return shares
    texts = map(fmt.full_text, completion_texts(completions))
    rests = [text.rpartition(fmt.answer_tags[1]) for text in texts]
    return [
        (share or 0.0) - 0.004 * len(rest.removeprefix("\n")) * bool(closed)
        for share, (_, closed, rest) in zip(shares, rests, strict=True)
    ]


def xml_soft_format(
    completions: Column, *, fmt: ResponseFormat = THINK_ANSWER, **columns: Any
) -> Values:
    """Return 1.0 if the text has a reasoning block followed by an answer block, else 0.0.

    Range: {0, 1}. Only white space may be between the blocks. Neither may be empty or contain
    another tag. In a format without answer tags, reasoning and an answer must be found. Source: the
    GSM8K GRPO demo for TRL (grpo_demo). Its pattern also accepts empty blocks, but only at the
    beginning of the text.
    """
    texts = completion_texts(completions)
    if not (fmt.reasoning_tags and fmt.answer_tags):
        found = map(fmt.parse, texts)
        return [float(None not in (parsed.reasoning, parsed.answer)) for parsed in found]
    tags = [re.escape(tag) for tag in (*fmt.reasoning_tags, *fmt.answer_tags)]
    # A block ends at the next tag: a lazy ".*?" would be quadratic in unclosed tags.
    no_tag = f"(?!{'|'.join(tags)})"
    block = rf"(\s*+{no_tag}(?:{no_tag}.)++)"
    blocks = re.compile(rf"{tags[0]}{block}{tags[1]}\s*{tags[2]}{block}{tags[3]}", re.DOTALL)
    pairs = [blocks.findall(fmt.full_text(text)) for text in texts]
    return [float(any(all(map(str.strip, pair)) for pair in of_text)) for of_text in pairs]


def xml_strict_format(
    completions: Column, *, fmt: ResponseFormat = THINK_ANSWER, **columns: Any
) -> Values:
    """Return 1.0 if the completion has exactly the format's layout, with its line breaks, else 0.0.

    Range: {0, 1}. A space at the start is allowed, because messages of r1_zero start with a space.
    A line break at the end is allowed too. Source: the GSM8K GRPO demo for TRL (grpo_demo), which
    requires this line break.
    """
    scores: Values = []
    for text in completion_texts(completions):
        parsed, written = fmt.parse(text), None
        # If the parsed text cannot be rendered, the completion does not have this layout.
        with contextlib.suppress(ValueError):
            if parsed.well_formed:
                written = fmt.render_completion(parsed.reasoning or "", parsed.answer or "")
        scores.append(float(text.removeprefix(" ").removesuffix("\n") == written))
    return scores


def integer_answer(
    completions: Column, *, fmt: ResponseFormat = THINK_ANSWER, **columns: Any
) -> Values:
    """Return 1.0 if the answer is a whole number and nothing else, even if it is wrong, else 0.0.

    Range: {0, 1}. The number may have a sign and thousands commas. Source: the GSM8K GRPO demo for
    TRL (grpo_demo), which accepts only digits.
    """
    answers = [parsed_answer(fmt, text) or "" for text in completion_texts(completions)]
    number = re.compile(r"[-+]?(?:[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)")
    return [float(number.fullmatch(answer.strip()) is not None) for answer in answers]


def answer_contains(
    completions: Column, solution: Column, *, fmt: ResponseFormat = THINK_ANSWER, **columns: Any
) -> Values:
    """Return 1.0 if the reference answer is a substring of the parsed answer, else 0.0.

    Range: {0, 1}. Return ``None`` without a reference answer. This reward is naive on purpose
    (``172`` contains ``72``), like its source: qwen2.5-0.5b-grpo, after grpo_demo.
    """
    answers = [parsed_answer(fmt, text) or "" for text in completion_texts(completions)]
    golds = ["" if gold is None else str(gold).strip() for gold in solution]
    pairs = zip(answers, golds, strict=True)
    return [float(gold in answer) if gold else None for answer, gold in pairs]
