"""Rewards that look at how long a completion is, in tokens: the lengths of TRL's ``completion_ids``
column.
"""

import math
from typing import Any, ClassVar

from r1_recipes.common import processes
from r1_recipes.rewards.accuracy import MathReward, correctness
from r1_recipes.rewards.registry import Column, Reward, Values, register_reward


@register_reward("cosine")
class CosineReward(MathReward):
    """Correctness scaled by length: along half a cosine from one bound at 0 tokens to the other at
    ``cosine_max_len`` and beyond.

    Range: -0.5..1 by default. ``None`` if the gold cannot be judged by. A right completion goes
    from ``cosine_max_value_correct`` (short) to ``cosine_min_value_correct`` (long), a wrong one
    from ``cosine_min_value_wrong`` to ``cosine_max_value_wrong``. With the defaults, which are
    open-r1's, a wrong answer costs more the longer it is; for the paper's opposite slope swap the
    last two. Source: "Demystifying Long Chain-of-Thought Reasoning" (arXiv:2502.03373, appendix
    C.1), by way of open-r1.
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
            # Unclamped, the cosine climbs back and pays a completion of twice the maximum like an
            # empty one.
            progress = min(len(ids) / self.cosine_max_len, 1.0)
            scores.append(
                None
                if verdict.right is None
                else long + 0.5 * (short - long) * (1.0 + math.cos(math.pi * progress))
            )
        return scores


@register_reward("length")
class LengthReward(MathReward):
    """Short right answers before long ones, relative to the other completions of the same prompt.

    With ``w = 0.5 - (tokens - shortest) / (longest - shortest)`` over the group: ``w`` if right,
    ``min(0, w)`` if wrong, 0.0 if all are equally long. Range: -0.5..0.5. ``None`` if the gold
    cannot be judged by. Source: Kimi k1.5 (arXiv:2501.12599, section 2.3.3): the completions of one
    prompt, in all processes; open-r1's ``len_reward`` takes one process's batch.
    """

    ranks_group = True

    spans_processes: ClassVar[bool] = True

    def __call__(
        self, completions: Column, prompts: Column = (), completion_ids: Column = (), **columns: Any
    ) -> Values:
        prompts = list(prompts)
        own = [(prompt, len(ids)) for prompt, ids in zip(prompts, completion_ids, strict=True)]
        everywhere = processes.gather(
            own
        )  # first: where comparing fails in one process, the others must not wait here
        _, verdicts = correctness(self, completions, prompts=prompts or None, **columns)
        firsts = [
            prompts.index(prompt) for prompt in prompts
        ]  # conversations and images do not hash
        groups = {
            first: [length for prompt, length in everywhere if prompt == prompts[first]]
            for first in set(firsts)
        }
        rewards: Values = []
        for first, (_, length), verdict in zip(firsts, own, verdicts, strict=True):
            shortest, longest = min(groups[first]), max(groups[first])
            weight = 0.5 - (length - shortest) / (longest - shortest) if longest > shortest else 0.0
            rewards.append(
                None if verdict.right is None else weight if verdict.right else min(0.0, weight)
            )
        return rewards


@register_reward("soft_overlong_punishment")
class SoftOverlongPunishmentReward(Reward):
    """0.0 up to ``max_completion_len - soft_punish_cache`` tokens, from there linearly down to -1.0
    at ``max_completion_len``.

    Range: -1..0. Source: DAPO (arXiv:2503.14476, equation 13), as TRL's
    ``get_soft_overlong_punishment``.
    """

    judges = "style"

    max_completion_len: int = 16384
    soft_punish_cache: int = 4096

    def __post_init__(self) -> None:
        # TRL divides by it; with one above the maximum, even an empty completion would be punished.
        fits = 0 < self.soft_punish_cache <= self.max_completion_len
        self.require(
            fits, "soft_punish_cache", f"from 1 to max_completion_len ({self.max_completion_len})"
        )

    def __call__(self, completions: Column, completion_ids: Column = (), **columns: Any) -> Values:
        from trl.rewards import get_soft_overlong_punishment

        return get_soft_overlong_punishment(self.max_completion_len, self.soft_punish_cache)(
            completion_ids
        )
