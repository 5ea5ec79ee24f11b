"""The rewards of a trainer: none raises in the middle of a batch, and batches that no reward judges
are counted.

Heavy: imports torch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from r1_recipes.common import processes
from r1_recipes.common.errors import StoppedTogether
from r1_recipes.rewards.call import guarded

logger = logging.getLogger(__name__)

_UNJUDGED_BATCHES = 3  # in a row, and training stops


class GuardedRewards:
    """What every trainer of ours with ``reward_funcs`` does before and after it calls them."""

    reward_funcs: list[Any]
    reward_func_names: list[str]
    model: Any
    state: Any

    def guard_rewards(self, script_names: Sequence[str]) -> None:
        """Replace the rewards by ones that never raise.

        ``script_names`` are those of the recipe; a game's own come last.
        """
        self._failed: list[Exception] = []
        self._unjudged = 0
        names = list(self.reward_func_names)
        names[: len(script_names)] = script_names
        for index, (name, reward) in enumerate(zip(names, self.reward_funcs, strict=True)):
            if not isinstance(reward, torch.nn.Module):
                self.reward_funcs[index] = guarded(name, reward, self._failed.append)

    def check_rewards(self, rewards: torch.Tensor) -> None:
        """Stop all ranks if a reward failed on one, or if nothing was judged for three batches.

        Args:
            rewards: The rewards of all ranks, completions x rewards.
        """
        self.stop_if_a_reward_failed()
        if self.model.training and rewards.isnan().all():
            self._count_unjudged_batch()
        else:
            self._unjudged = 0

    def stop_if_a_reward_failed(self) -> None:
        """Stop all ranks if a reward failed on one; all ranks must call it."""
        if errors := processes.gather(self._failed):
            raise StoppedTogether(str(errors[0]))

    def _count_unjudged_batch(self) -> None:
        """Stop after three batches without a reward: nothing is learned, and a server that is down
        would cost the night.
        """
        self._unjudged += 1
        problem = (
            f"reward_funcs: {', '.join(self.reward_func_names)} judged no completion of "
            f"{self._unjudged} batches in a row"
        )
        if self._unjudged == _UNJUDGED_BATCHES:
            raise StoppedTogether(f"{problem}; the warnings above say why")
        if self._unjudged == self.state.max_steps:  # all batches of a short run
            logger.warning("%s, so nothing was learned", problem)


def merged_column(held: Sequence[Any] | None, values: Sequence[Any]) -> list[Any]:
    """Return a column of the completions table that several rewards log: the first value of each
    row that is not empty.
    """
    if held:
        pairs = zip(held, values, strict=True)
        return [new if old is None or old == "" else old for old, new in pairs]
    return list(values)  # a reward may hand over a generator
