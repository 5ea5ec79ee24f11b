"""Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2): groups without spread are replaced by
those of further prompts before anything is trained.

TRL's trainer has no such step, so each round is its own generation, stopped once the rewards are
known; the last pass over the groups that were chosen is TRL's, unchanged. Further prompts are drawn
by seed, step and round, so a resumed run draws the same.

Heavy: imports torch and TRL.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from r1_recipes.common import processes
from r1_recipes.recipe.types import GRPORecipeArguments
from r1_recipes.training.trainer import RecipeTrainer


@dataclass
class Rollout:
    """One completion of a round, with all that TRL needs to train on it.

    Attributes:
        row: The row of the dataset, as TRL hands it to rewards.
        sampled: What TRL's ``_generate`` returned for it, by the names in ``_GENERATED``.
        extra: Its values of the table's extra columns.
    """

    row: dict[str, Any]
    sampled: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)


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
_IMAGES = ("image", "images")


class _Scored(Exception):
    """A round has its rewards, so the rest of TRL's pass is left out."""


def dynamic_sampling(script: GRPORecipeArguments) -> Callable[..., Any]:
    """Return the trainer with the recipe's settings of ``dynamic_sampling``."""
    settings: dict[str, Any] = script.dynamic_sampling or {}
    named = settings.get("reward")
    column = None if named is None else script.reward_funcs.index(named)
    return functools.partial(
        DynamicSamplingTrainer, max_rounds=settings["max_rounds"], filtered_by=column
    )


class DynamicSamplingTrainer(RecipeTrainer):
    """Sample until every group of a batch has spread, or for ``max_rounds`` rounds.

    Args:
        max_rounds: The most rounds of a batch.
        filtered_by: The reward (its place among the recipe's) that spread is measured in; ``None``
            takes what advantages are made of.
        **arguments: Those of the trainer.
    """

    def __init__(
        self, *args: Any, max_rounds: int, filtered_by: int | None, **arguments: Any
    ) -> None:
        self._max_rounds, self._filtered_by = max_rounds, filtered_by
        # Of the round at hand: what was sampled, and its rewards on all processes.
        self._in_round = False
        self._rollouts: list[Rollout] = []
        self._rewards: torch.Tensor | None = None
        self._chosen = False
        super().__init__(*args, **arguments)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        self._sample_rounds(inputs)
        rows = [rollout.row for rollout in self._rollouts]
        try:
            # An environment has played its rows, and is not reset again.
            with attributes_set(self, _chosen=True, environment_factories=None, environments=None):
                return super()._generate_and_score_completions(rows)
        finally:
            self._rollouts, self._rewards = [], None

    def _sample_rounds(self, inputs: list[dict[str, Any]]) -> None:
        """Leave in ``_rollouts`` this process's part of the batch, and in ``_rewards`` those of the
        whole batch; every process must call it.
        """
        metrics = self._metrics["train"]
        logged = {name: len(values) for name, values in metrics.items()}
        rollouts, rewards = self._sample_round(inputs)
        has_spread, group = self._groups_with_spread(rewards), self.num_generations
        without = int((~has_spread).sum())
        reward_sums = [self._weighted(rewards)]  # of each round
        while not has_spread.all() and len(reward_sums) < self._max_rounds:
            flat = (~has_spread).nonzero().flatten().tolist()
            more, more_rewards = self._sample_round(self._further_rows(len(flat), len(reward_sums)))
            spread = self._groups_with_spread(more_rewards)
            without += int((~spread).sum())
            reward_sums.append(self._weighted(more_rewards))
            # Groups beyond those that are missing are left out.
            pairs = list(zip(flat, spread.nonzero().flatten().tolist(), strict=False))
            places = {
                new * group + row: old * group + row for old, new in pairs for row in range(group)
            }
            self._replace(rollouts, more, places)
            for old, new in pairs:
                rewards.unflatten(0, (-1, group))[old] = more_rewards.unflatten(0, (-1, group))[new]
                has_spread[old] = True
        self._rollouts, self._rewards = rollouts, rewards
        # Each round has logged its completions. Those of the first are a fair sample of the policy.
        for name, values in metrics.items():
            del values[logged.get(name, 0) + 1 :]
        sampled = torch.cat(reward_sums)
        metrics["sampling/rounds"].append(len(reward_sums))
        metrics["sampling/filtered"].append(without / (len(sampled) // group))
        metrics["sampling/reward"].append(sampled.nanmean().item())

    def _sample_round(self, inputs: list[dict[str, Any]]) -> tuple[list[Rollout], torch.Tensor]:
        self._rollouts = [Rollout(row, {}) for row in inputs]
        with attributes_set(self, _in_round=True), contextlib.suppress(_Scored):
            super()._generate_and_score_completions(inputs)
        assert self._rewards is not None
        return self._rollouts, self._rewards

    def _further_rows(self, groups: int, number: int) -> list[dict[str, Any]]:
        """Return this process's rows of at least so many further groups, as many as every process
        can have an equal share of, for round ``number``.
        """
        world, size = self.accelerator.num_processes, self.num_generations
        step = world // math.gcd(size, world)
        # _step counts micro-batches: a step may generate several times.
        draw = Random(f"{self.args.seed} {self.state.global_step} {self._step} {number}")
        rows = draw.choices(range(len(self.train_dataset)), k=math.ceil(groups / step) * step)
        share = len(rows) * size // world
        first = self.accelerator.process_index * share
        return [self.train_dataset[rows[at // size]] for at in range(first, first + share)]

    def _replace(
        self, rollouts: list[Rollout], more: list[Rollout], places: dict[int, int]
    ) -> None:
        """Put rollouts of a later round into the batch: ``places`` has their place in it by their
        place in the round, both over all processes.
        """
        rank = self.accelerator.process_index
        numbered = enumerate(more, start=rank * len(more))
        offered = [(places[at], rollout) for at, rollout in numbered if at in places]
        for place, rollout in processes.gather(offered):
            if place // len(rollouts) == rank:
                rollouts[place % len(rollouts)] = rollout

    def _groups_with_spread(self, rewards: torch.Tensor) -> torch.Tensor:
        """Say of each group whether its completions differ in what advantages are made of."""
        if self._filtered_by is not None:
            values = rewards[:, self._filtered_by : self._filtered_by + 1]
        elif self.multi_objective_aggregation == "sum_then_normalize":
            values = self._weighted(rewards)[:, None]
        else:
            values = rewards[:, (self.reward_weights != 0).to(rewards.device)]
        grouped = values.view(-1, self.num_generations, values.size(1))
        lowest = grouped.nan_to_num(nan=math.inf).amin(1)
        highest = grouped.nan_to_num(nan=-math.inf).amax(1)
        # Sums of weighted rewards that are equal on paper differ by their rounding.
        return ((highest - lowest) > 1e-6).any(1)

    def _weighted(self, rewards: torch.Tensor) -> torch.Tensor:
        total = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        return total.masked_fill(rewards.isnan().all(1), math.nan)

    def _generate(self, prompts: list):
        if self._chosen:
            return self._of_chosen()
        generated = super()._generate(prompts)
        if self._in_round:
            self._keep(prompts, generated)
        return generated

    def _keep(self, prompts: list, generated: Sequence[Any]) -> None:
        for at, rollout in enumerate(self._rollouts):
            if self.environments:  # what it shows, images too, is in the prompt already
                row = {key: value for key, value in rollout.row.items() if key not in _IMAGES}
                rollout.row = {**row, "prompt": prompts[at]}
            rollout.sampled = {
                name: values[at] if isinstance(values, list) and values else None
                for name, values in zip(_GENERATED, generated, strict=True)
            }

    def _of_chosen(self) -> tuple[Any, ...]:
        columns: dict[str, Any] = {}
        for name in _GENERATED:
            values = [rollout.sampled[name] for rollout in self._rollouts]
            columns[name] = None if all(value is None for value in values) else values
        columns["extra_fields"] = {}
        columns["tool_images"] = columns["tool_images"] or []
        return tuple(columns.values())

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **options
    ):
        if self._in_round:  # nothing of a round is trained on
            return (
                input_ids.new_zeros(len(input_ids), logits_to_keep, dtype=torch.float),
                None,
                None,
            )
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, batch_size, **options
        )

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list) -> torch.Tensor:
        if self._chosen:
            for name in sorted({name for rollout in self._rollouts for name in rollout.extra}):
                values = [rollout.extra.get(name) for rollout in self._rollouts]
                self._pending_extra_logs[name] = values
            assert self._rewards is not None
            return self._rewards
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if not self._in_round:
            return rewards
        for at, rollout in enumerate(self._rollouts):
            rollout.extra = {name: values[at] for name, values in self._pending_extra_logs.items()}
        self._pending_extra_logs.clear()
        self._rewards = rewards
        raise _Scored


@contextlib.contextmanager
def attributes_set(owner: object, **values: Any) -> Iterator[None]:
    """Set attributes of an object in this block, and restore them afterwards."""
    before = {name: getattr(owner, name) for name in values}
    vars(owner).update(values)
    try:
        yield
    finally:
        vars(owner).update(before)
