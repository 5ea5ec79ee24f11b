"""Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2): groups without spread are replaced by
those of further prompts before anything is trained.

TRL's trainer has no such step. When it asks for completions, this one samples rounds, computes
their rewards, and hands over what it has chosen. Further prompts are drawn by seed, step and round,
so a resumed run draws the same.

Heavy: imports torch and TRL.
"""

from __future__ import annotations

import contextlib
import math
from random import Random
from typing import Any

import torch
from trl.trainer.utils import nanstd

from r1_recipes.common import processes
from r1_recipes.recipe.types import GRPORecipeArguments
from r1_recipes.training.trainer import RecipeTrainer

# A completion with its prompt, an entry of each list that TRL's `_generate` returns, and one of
# each extra column of the completions table, whose names have a prefix.
Rollout = dict[str, Any]
_EXTRA = "extra: "
# TRL's `_generate` returns these in this order. A list has an entry per completion; None or an
# empty list says that the run has no such thing.
_GENERATED = (
    "prompt_ids",
    "completion_ids",
    "tool_mask",
    "completions",
    "logprobs",
    "extra_fields",
    "images",
    "tool_images",
)


class _Sampled(Exception):
    """A further round has its rewards, so the rest of TRL's pass is left out."""


class DynamicSamplingTrainer(RecipeTrainer):
    """Sample until every group of a batch has spread, or for ``max_rounds`` rounds.

    Args:
        script: The recipe. Spread is that of the ``reward`` in its ``dynamic_sampling``, or that of
            the weighted sum of all.
        **arguments: Those of the trainer.
    """

    _rewards: torch.Tensor  # of the round at hand, on all processes

    def __init__(self, *args: Any, script: GRPORecipeArguments, **arguments: Any) -> None:
        settings: dict[str, Any] = script.dynamic_sampling or {}
        named = settings.get("reward")
        self._max_rounds = settings["max_rounds"]
        self._filtered_by = None if named is None else script.reward_funcs.index(named)
        super().__init__(*args, **arguments)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._round, self._rows = 0, inputs
        return super()._generate_and_score_completions(inputs)

    def _generate(self, prompts: list):
        generated = super()._generate(prompts)
        if not self.model.training:
            return generated
        self._keep(prompts, generated)
        if self._round:
            raise _Sampled
        batch, rewards = self._rollouts, self._rewards
        self._sample_rounds(batch, rewards)
        self._rewards = rewards
        # TRL goes on with these lists of its own.
        prompts[:] = [rollout["prompt"] for rollout in batch]
        for name in {name for rollout in batch for name in rollout if name.startswith(_EXTRA)}:
            values = [rollout.get(name) for rollout in batch]
            self._pending_extra_logs[name.removeprefix(_EXTRA)] = values
        columns = [[rollout.get(name) for rollout in batch] for name in _GENERATED]
        return tuple(None if values == [None] * len(batch) else values for values in columns)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list) -> torch.Tensor:
        if self.model.training:
            return self._rewards
        return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)

    def _keep(self, prompts: list, generated: tuple) -> None:
        """Leave in ``_rollouts`` this process's part of a round, and in ``_rewards`` the rewards of
        the whole round.
        """
        columns = dict(zip(_GENERATED, generated, strict=True))
        self._rewards = super()._calculate_rewards(
            self._rows, prompts, columns["completions"], columns["completion_ids"]
        )
        columns["prompt"] = prompts
        for name, values in self._pending_extra_logs.items():
            columns[_EXTRA + name] = values
        self._pending_extra_logs.clear()
        lists = {name: column for name, column in columns.items() if isinstance(column, list)}
        self._rollouts = [
            {name: column[at] for name, column in lists.items() if column}
            for at in range(len(prompts))
        ]

    def _sample_rounds(self, batch: list[Rollout], rewards: torch.Tensor) -> None:
        """Replace what has no spread, in place: ``batch`` is this process's part, ``rewards`` are
        those of all processes, every one of which must call it.
        """
        metrics, size = self._metrics["train"], self.num_generations
        logged = {name: len(values) for name, values in metrics.items()}
        sampled = [rewards.clone()]  # of each round
        first = self.accelerator.process_index * len(batch)
        for number in range(1, self._max_rounds):
            flat = (~self._have_spread(rewards)).nonzero().flatten().tolist()
            if not flat:
                break
            self._sample_round(len(flat), number)
            sampled.append(self._rewards)
            more = processes.gather(self._rollouts)
            found = self._have_spread(self._rewards).nonzero().flatten().tolist()
            # Groups beyond those that are missing are left out.
            for old, new in zip(flat, found, strict=False):
                for row in range(size):
                    place, source = old * size + row, new * size + row
                    rewards[place] = self._rewards[source]
                    if first <= place < first + len(batch):
                        batch[place - first] = more[source]
        # Each round has logged its completions. Those of the first are a fair sample of the policy.
        for name, count in logged.items():
            if name.startswith("time/"):  # all rounds take time
                metrics[name][count - 1] += sum(metrics[name][count:])
            del metrics[name][count:]
        everything = torch.cat(sampled)
        metrics["sampling/rounds"].append(len(sampled))
        metrics["sampling/filtered"].append((~self._have_spread(everything)).float().mean().item())
        metrics["sampling/reward"].append(self._weighted(everything).nanmean().item())

    def _sample_round(self, groups: int, number: int) -> None:
        """Sample this process's rows of at least so many further groups, as many as every process
        can have an equal share of.
        """
        world, size = self.accelerator.num_processes, self.num_generations
        step = world // math.gcd(size, world)
        # _step counts micro-batches: a step may generate several times.
        draw = Random(f"{self.args.seed} {self.state.global_step} {self._step} {number}")
        rows = draw.choices(range(len(self.train_dataset)), k=math.ceil(groups / step) * step)
        share = len(rows) * size // world
        first = self.accelerator.process_index * share
        inputs = [self.train_dataset[rows[at // size]] for at in range(first, first + share)]
        self._round, self._rows = number, inputs
        with contextlib.suppress(_Sampled):
            super()._generate_and_score_completions(inputs)

    def _have_spread(self, rewards: torch.Tensor) -> torch.Tensor:
        """Say of each group whether its completions differ, by more than sums are rounded."""
        values = self._weighted(rewards) if (by := self._filtered_by) is None else rewards[:, by]
        return nanstd(values.view(-1, self.num_generations), dim=1) > 1e-6

    def _weighted(self, rewards: torch.Tensor) -> torch.Tensor:
        total = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        return total.masked_fill(rewards.isnan().all(1), math.nan)
