"""Rewards for the length of a completion in tokens, from the column ``completion_ids`` of TRL."""

import math
from typing import Any

from r1_recipes.common import processes
from r1_recipes.prompts import ResponseFormat
from r1_recipes.rewards.answers import judged
from r1_recipes.rewards.types import THINK_ANSWER, Column, Values


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
