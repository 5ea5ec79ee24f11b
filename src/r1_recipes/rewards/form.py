"""Rewards for the form of a response: formats, visible steps, repetition, length in tokens."""

import math
import re
from typing import Any

import regex

from r1_recipes.common import processes
from r1_recipes.common.messages import UNSPACED, completion_texts
from r1_recipes.prompts import ResponseFormat
from r1_recipes.rewards.answers import (
    THINK_ANSWER,
    Column,
    Values,
    judged,
    reward,
)


@reward
def format(completions: Column, *, fmt: ResponseFormat = THINK_ANSWER, **columns: Any) -> Values:
    """Return 1.0 if the response is a reasoning block, an answer block and nothing else, else 0.0.

    Range: {0, 1}. There must be one block of each, and neither may be empty. White space around
    blocks does not count. Source: the format reward of DeepSeek-R1 (arXiv:2501.12948, section
    2.2.2). The pattern of open-r1 is less strict. It also rewards two blocks, an empty block, or
    text after the answer.
    """
    return [float(fmt.parse(text).well_formed) for text in completion_texts(completions)]


@reward
def tag_count(completions: Column, *, fmt: ResponseFormat = THINK_ANSWER, **columns: Any) -> Values:
    """Return the share of the format's tags that occur exactly as often as the format has them.

    Range: 0..1, in quarters for a format with four tags. Source: open-r1 (pull request 418), which
    wants a line break beside a tag, and also rewards the tags of an empty block. Here these tags
    score nothing.
    """
    blocks = [pair for pair in (fmt.reasoning_tags, fmt.answer_tags) if pair]
    empty = {pair: re.compile(r"\s*".join(map(re.escape, pair))) for pair in blocks}
    scores: Values = []
    for text in map(fmt.full_text, completion_texts(completions)):
        hollow = set[str]()
        for pair in blocks:
            if empty[pair].search(text):
                hollow.update(pair)
        # The format special_token uses the same tag twice.
        right = [tag for tag in fmt.tags if text.count(tag) == fmt.tags.count(tag)]
        scores.append(sum(tag not in hollow for tag in right) / len(fmt.tags))
    return scores


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


@reward
def reasoning_steps(completions: Column, **columns: Any) -> Values:
    """Return a third for each visible step marker in the completion, up to 1.0.

    Range: {0, 1/3, 2/3, 1}. Source: open-r1, which counts English markers. Here Chinese markers
    count too, and so do numbers at the start of every line. A bullet needs a space after it, so a
    decimal or a negative number is not a step.
    """
    return [min(1.0, len(_STEP.findall(text)) / 3) for text in completion_texts(completions)]


# In a script without spaces, each character counts as a word.
_UNITS = regex.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")


@reward
def repetition_penalty(
    completions: Column,
    *,
    repetition_n_grams: int = 3,
    repetition_max_penalty: float = -1.0,
    **columns: Any,
) -> Values:
    """Return ``(1 - distinct / all) * repetition_max_penalty`` over the completion's n-grams.

    Range: ``repetition_max_penalty``..0. A completion with fewer than n words scores 0.0. White
    space separates words, and case does not count, as in open-r1. So "abcabc" is a single word. In
    Chinese, Japanese, Thai, Lao, Burmese and Khmer, each character is a word. Source: "Demystifying
    Long Chain-of-Thought Reasoning" (arXiv:2502.03373, appendix C.2), by way of open-r1. TRL's
    ``get_repetition_penalty_reward`` counts n-grams of tokens; here the words are given to it.
    """
    from trl.rewards import get_repetition_penalty_reward

    words = [_UNITS.findall(text.lower()) for text in completion_texts(completions)]
    return get_repetition_penalty_reward(repetition_n_grams, repetition_max_penalty)(words)


# Length in tokens, from TRL's column ``completion_ids``


@reward
def cosine(
    completions: Column,
    completion_ids: Column,
    solution: Column | None = None,
    *,
    fmt: ResponseFormat = THINK_ANSWER,
    number_locale: str = "en",
    cosine_min_value_wrong: float = 0.0,
    cosine_max_value_wrong: float = -0.5,
    cosine_min_value_correct: float = 0.5,
    cosine_max_value_correct: float = 1.0,
    cosine_max_len: int = 1000,
    **columns: Any,
) -> Values:
    """Return correctness scaled by length, along half a cosine from 0 to ``cosine_max_len`` tokens.

    Range: -0.5..1 by default. Return ``None`` if the reference answer cannot be compared. A correct
    completion scores from ``cosine_max_value_correct`` (short) to ``cosine_min_value_correct``
    (long), a wrong completion from ``cosine_min_value_wrong`` to ``cosine_max_value_wrong``. With
    the defaults, which are those of open-r1, a longer wrong answer scores less. For the opposite
    slope of the paper, swap the last two. Source: "Demystifying Long Chain-of-Thought Reasoning"
    (arXiv:2502.03373, appendix C.1), by way of open-r1. TRL's ``get_cosine_scaled_reward`` has the
    same curve, over its own verdicts and with the paper's defaults.
    """
    _, verdicts = judged(completions, fmt, number_locale, solution, **columns)
    scores: Values = []
    for verdict, ids in zip(verdicts, completion_ids, strict=True):
        short, long = cosine_min_value_wrong, cosine_max_value_wrong
        if verdict.right:
            short, long = cosine_max_value_correct, cosine_min_value_correct
        # Beyond the maximum, the cosine would rise again and reward twice the maximum like an
        # empty completion.
        progress = min(len(ids) / cosine_max_len, 1.0)
        score = long + 0.5 * (short - long) * (1.0 + math.cos(math.pi * progress))
        scores.append(None if verdict.right is None else score)
    return scores


@reward
def length(
    completions: Column,
    prompts: Column,
    completion_ids: Column,
    solution: Column | None = None,
    *,
    fmt: ResponseFormat = THINK_ANSWER,
    number_locale: str = "en",
    **columns: Any,
) -> Values:
    """Return a higher score for shorter correct answers to the same prompt.

    With ``w = 0.5 - (tokens - shortest) / (longest - shortest)`` over the group, the score is ``w``
    if correct, ``min(0, w)`` if wrong, and 0.0 if all are equally long. Range: -0.5..0.5. Return
    ``None`` if the reference answer cannot be compared. Source: Kimi k1.5 (arXiv:2501.12599,
    section 2.3.3). The group is all completions of one prompt, in all processes. open-r1's
    ``len_reward`` takes the batch of one process instead.
    """
    prompts = list(prompts)
    lengths = list(zip(prompts, map(len, completion_ids), strict=True))
    # Gather before comparing: if comparing fails in one process, the others must not wait here.
    all_lengths = processes.gather(lengths)
    _, verdicts = judged(completions, fmt, number_locale, solution, prompts, **columns)
    # Conversations and images are not hashable, so the first index stands for a prompt.
    firsts = [prompts.index(prompt) for prompt in prompts]
    groups = {
        first: [tokens for prompt, tokens in all_lengths if prompt == prompts[first]]
        for first in set(firsts)
    }
    scores: Values = []
    for first, (_, tokens), verdict in zip(firsts, lengths, verdicts, strict=True):
        shortest, longest = min(groups[first]), max(groups[first])
        weight = 0.5 - (tokens - shortest) / (longest - shortest) if longest > shortest else 0.0
        if not verdict.right:
            weight = min(0.0, weight)
        scores.append(None if verdict.right is None else weight)
    return scores


# All processes must call it together, also where task_rewards gives it no row of theirs.
length.spans_processes = True  # type: ignore[attr-defined]


@reward
def soft_overlong_punishment(
    completion_ids: Column,
    *,
    max_completion_len: int = 16384,
    soft_punish_cache: int = 4096,
    **columns: Any,
) -> Values:
    """Return a penalty for completions near or over the maximum length.

    Range: -1..0. It is 0.0 up to ``max_completion_len - soft_punish_cache`` tokens, then falls
    linearly to -1.0 at ``max_completion_len``. Source: DAPO (arXiv:2503.14476, equation 13). This
    is TRL's ``get_soft_overlong_punishment``.
    """
    from trl.rewards import get_soft_overlong_punishment

    return get_soft_overlong_punishment(max_completion_len, soft_punish_cache)(completion_ids)
