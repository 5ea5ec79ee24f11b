"""Rewards for the length of a completion in tokens, from the column ``completion_ids`` of TRL."""

import math
from typing import Any, ClassVar

from r1_recipes.common import processes
from r1_recipes.rewards.accuracy import MathReward, correctness
from r1_recipes.rewards.registry import Column, Reward, Values, register_reward


@register_reward("cosine")
class CosineReward(MathReward):
    """Return correctness scaled by length, along half a cosine from 0 to ``cosine_max_len`` tokens.

    Range: -0.5..1 by default. Return ``None`` if the reference answer cannot be compared. A correct
    completion scores from ``cosine_max_value_correct`` (short) to ``cosine_min_value_correct``
    (long), a wrong completion from ``cosine_min_value_wrong`` to ``cosine_max_value_wrong``. With
    the defaults, which are those of open-r1, a longer wrong answer scores less. For the opposite
    slope of the paper, swap the last two. Source: "Demystifying Long Chain-of-Thought Reasoning"
    (arXiv:2502.03373, appendix C.1), by way of open-r1.
    """

    cosine_min_value_wrong: float = 0.0
    cosine_max_value_wrong: float = -0.5
    cosine_min_value_correct: float = 0.5
    cosine_max_value_correct: float = 1.0
    cosine_max_len: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.cosine_max_len > 0, "cosine_max_len", "a number of tokens above 0")

    def __call__(self, completions: Column, completion_ids: Column = (), **columns: Any) -> Values:
        _, verdicts = correctness(self, completions, **columns)
        scores: Values = []
        for verdict, ids in zip(verdicts, completion_ids, strict=True):
            short, long = self.cosine_min_value_wrong, self.cosine_max_value_wrong
            if verdict.right:
                short, long = self.cosine_max_value_correct, self.cosine_min_value_correct
            # Beyond the maximum, the cosine would rise again and reward twice the maximum like an
            # empty completion.
            progress = min(len(ids) / self.cosine_max_len, 1.0)
            score = long + 0.5 * (short - long) * (1.0 + math.cos(math.pi * progress))
            scores.append(None if verdict.right is None else score)
        return scores


@register_reward("length")
class LengthReward(MathReward):
    """Return a higher score for shorter correct answers to the same prompt.

    With ``w = 0.5 - (tokens - shortest) / (longest - shortest)`` over the group, the score is ``w``
    if correct, ``min(0, w)`` if wrong, and 0.0 if all are equally long. Range: -0.5..0.5. Return
    ``None`` if the reference answer cannot be compared. Source: Kimi k1.5 (arXiv:2501.12599,
    section 2.3.3). The group is all completions of one prompt, in all processes. open-r1's
    ``len_reward`` takes the batch of one process instead.
    """

    ranks_group = True

    spans_processes: ClassVar[bool] = True

    def __call__(
        self, completions: Column, prompts: Column = (), completion_ids: Column = (), **columns: Any
    ) -> Values:
        prompts = list(prompts)
        lengths = list(zip(prompts, map(len, completion_ids), strict=True))
        # Gather before comparing: if comparing fails in one process, the others must not wait here.
        all_lengths = processes.gather(lengths)
        _, verdicts = correctness(self, completions, prompts=prompts or None, **columns)
        # Conversations and images are not hashable, so the first index stands for a prompt.
        firsts = [prompts.index(prompt) for prompt in prompts]
        groups = {
            first: [length for prompt, length in all_lengths if prompt == prompts[first]]
            for first in set(firsts)
        }
        rewards: Values = []
        for first, (_, length), verdict in zip(firsts, lengths, verdicts, strict=True):
            shortest = min(groups[first])
            spread = max(groups[first]) - shortest
            weight = 0.5 - (length - shortest) / spread if spread else 0.0
            if not verdict.right:
                weight = min(0.0, weight)
            rewards.append(None if verdict.right is None else weight)
        return rewards


@register_reward("soft_overlong_punishment")
class SoftOverlongPunishmentReward(Reward):
    """Return a penalty for completions near or over the maximum length.

    Range: -1..0. It is 0.0 up to ``max_completion_len - soft_punish_cache`` tokens, then falls
    linearly to -1.0 at ``max_completion_len``. Source: DAPO (arXiv:2503.14476, equation 13), with
    TRL's ``get_soft_overlong_punishment``.
    """

    judges = "style"

    max_completion_len: int = 16384
    soft_punish_cache: int = 4096

    def __post_init__(self) -> None:
        # TRL divides by this value. Above the maximum, it would punish even an empty completion.
        longest = self.max_completion_len
        allowed = f"from 1 to max_completion_len ({longest})"
        self.require(0 < self.soft_punish_cache <= longest, "soft_punish_cache", allowed)

    def __call__(self, completions: Column, completion_ids: Column = (), **columns: Any) -> Values:
        from trl.rewards import get_soft_overlong_punishment

        punish = get_soft_overlong_punishment(self.max_completion_len, self.soft_punish_cache)
        return punish([ids for _, ids in zip(completions, completion_ids, strict=True)])


@register_reward("target_length")
class TargetLengthReward(Reward):
    """Return how far a completion is from ``target_length`` tokens, as a negative share of it.

    Range: -1..0; 0.0 for exactly so many tokens, -1.0 for an empty completion and from twice as
    many on. Source: ``calculate_length_reward`` of smolcluster (commit a63a7e2), which goes on
    falling.
    """

    judges = "style"

    target_length: int = 64

    def __post_init__(self) -> None:
        self.require(self.target_length > 0, "target_length", "a number of tokens above 0")

    def __call__(self, completions: Column, completion_ids: Column = (), **columns: Any) -> Values:
        target = self.target_length
        return [
            -min(1.0, abs(len(ids) - target) / target)
            for _, ids in zip(completions, completion_ids, strict=True)
        ]
