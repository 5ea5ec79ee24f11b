"""Rewards that look at how long a completion is, in tokens: the lengths of TRL's ``completion_ids`` column."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from r1_recipes.common import processes
from r1_recipes.rewards.accuracy import correctness, require_solution
from r1_recipes.rewards.registry import Reward, register_reward


@register_reward("cosine")
@dataclass(frozen=True)
class CosineReward(Reward):
    """Correctness scaled by length: from one bound at 0 tokens along half a cosine to the other at ``cosine_max_len`` tokens.

    Range: between the smallest and the largest of the four values, -0.5..1 by default. ``None`` where the gold cannot be judged.
    A right completion goes from ``cosine_max_value_correct`` (short) to ``cosine_min_value_correct`` (long). For a wrong one
    open-r1 and TRL swap the bounds, so it goes from ``cosine_min_value_wrong`` (short) to ``cosine_max_value_wrong`` (long): with
    the defaults, which are open-r1's, a wrong answer costs more the longer it is; for the paper's opposite slope put the lower
    value in ``cosine_min_value_wrong``. Past ``cosine_max_len`` the long bound stays.

    Source: "Demystifying Long Chain-of-Thought Reasoning" (arXiv:2502.03373, appendix C.1), by way of open-r1. The schedule is that
    of TRL's ``get_cosine_scaled_reward``, which cannot be wrapped since it takes its verdicts from TRL's own ``accuracy_reward``.

    Raises:
        ValueError: ``cosine_max_len`` is not positive.
    """

    cosine_min_value_wrong: float = 0.0
    cosine_max_value_wrong: float = -0.5
    cosine_min_value_correct: float = 0.5
    cosine_max_value_correct: float = 1.0
    cosine_max_len: int = 1000

    def __post_init__(self) -> None:
        if self.cosine_max_len <= 0:
            raise ValueError(f"cosine_max_len is {self.cosine_max_len}; it is a number of tokens and must be above 0")

    def __call__(
        self,
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        solution: Sequence[Any] | None = None,
        scorer: Sequence[str | None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        require_solution(self.name, solution, columns, scorer)
        verdicts = correctness(self.response_format, completions, solution, scorer, log_metric)
        return [self._scale(verdict, len(ids)) for verdict, ids in zip(verdicts, completion_ids, strict=True)]

    def _scale(self, correct: bool | None, length: int) -> float | None:
        if correct is None:
            return None
        if correct:
            short, long = self.cosine_max_value_correct, self.cosine_min_value_correct
        else:
            short, long = self.cosine_min_value_wrong, self.cosine_max_value_wrong
        # Unclamped, the cosine climbs back and pays a completion of twice the maximum like an empty one.
        progress = min(length / self.cosine_max_len, 1.0)
        return long + 0.5 * (short - long) * (1.0 + math.cos(math.pi * progress))


@register_reward("length")
@dataclass(frozen=True)
class LengthReward(Reward):
    """Short right answers before long ones, relative to the other completions of the same prompt.

    With ``w = 0.5 - (tokens - shortest) / (longest - shortest)`` over the group: ``w`` if right, ``min(0, w)`` if wrong, 0.0 if all
    are equally long. Range: -0.5..0.5. ``None`` where the gold cannot be judged.

    The group is what Kimi k1.5 (arXiv:2501.12599, section 2.3.3) says: the completions of one prompt, wherever they stand in the
    batch, and in whichever process: the processes tell each other their lengths. open-r1's ``len_reward`` is the same function over one
    process's batch, where a hard prompt's completions are always the long ones, and a group may be cut in two.
    """

    spans_processes: ClassVar[bool] = True

    def __call__(
        self,
        completions: Sequence[Any],
        prompts: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        solution: Sequence[Any] | None = None,
        scorer: Sequence[str | None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        require_solution(self.name, solution, columns, scorer)
        verdicts = correctness(self.response_format, completions, solution, scorer, log_metric)
        lengths = [len(ids) for ids in completion_ids]
        everywhere = processes.gather([(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)])
        rewards: list[float | None] = [None] * len(lengths)
        for group in _group_indices(prompts):
            in_group = [length for prompt, length in everywhere if prompt == prompts[group[0]]]
            shortest, longest = min(in_group), max(in_group)
            for i in group:
                if verdicts[i] is not None:
                    weight = 0.5 - (lengths[i] - shortest) / (longest - shortest) if longest > shortest else 0.0
                    rewards[i] = weight if verdicts[i] else min(0.0, weight)
        return rewards


def _group_indices(prompts: Sequence[Any]) -> list[list[int]]:
    """Indices of equal prompts together. By equality, since conversations and images do not hash."""
    groups: list[tuple[Any, list[int]]] = []
    for i, prompt in enumerate(prompts):
        # TRL puts a group's completions side by side, so the last group is nearly always the one.
        for known, indices in reversed(groups):
            if prompt is known or prompt == known:
                indices.append(i)
                break
        else:
            groups.append((prompt, [i]))
    return [indices for _, indices in groups]


@register_reward("soft_overlong_punishment")
@dataclass(frozen=True)
class SoftOverlongPunishmentReward(Reward):
    """0.0 up to ``max_completion_len - soft_punish_cache`` tokens, from there linearly down to -1.0 at ``max_completion_len``.

    Range: -1..0. Source: DAPO (arXiv:2503.14476, equation 13), as TRL's ``get_soft_overlong_punishment``.

    Raises:
        ValueError: ``soft_punish_cache`` is not between 1 and ``max_completion_len``.
    """

    max_completion_len: int = 16384
    soft_punish_cache: int = 4096

    def __post_init__(self) -> None:
        # TRL divides by the cache; with one above the maximum, even an empty completion would be punished.
        if not 0 < self.soft_punish_cache <= self.max_completion_len:
            raise ValueError(
                f"soft_punish_cache is {self.soft_punish_cache}; it is the number of tokens below max_completion_len "
                f"({self.max_completion_len}) over which the punishment sets in, so it must be from 1 to {self.max_completion_len}"
            )

    def __call__(self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float | None]:
        from trl.rewards import get_soft_overlong_punishment

        return get_soft_overlong_punishment(self.max_completion_len, self.soft_punish_cache)(completion_ids)
