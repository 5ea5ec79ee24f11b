"""TRL's GRPO trainer with what recipes add. Every private name of TRL that the core uses is here
or in engine.py; tests/core/training/test_trainer.py pins them.

Heavy: imports TRL, and so torch.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from r1_recipes.common.messages import transcript
from r1_recipes.data.messages import Message
from r1_recipes.recipe.types import GRPORecipeArguments
from r1_recipes.training.engine import attributes_set, engine_of
from r1_recipes.training.padding import Rows, chunks_by_length, keeps_row_order, without_padding
from r1_recipes.training.rewards import GuardedRewards, merged_column

logger = logging.getLogger(__name__)

# Metrics that TRL logs as the mean over the tokens of a micro-batch. Where ratios are of sequences,
# the clipped ones are a share of rows.
_TOKEN_MEANS = ("entropy", "kl")
_CLIPPED = tuple(f"clip_ratio/{kind}_mean" for kind in ("low", "high", "region"))


class RecipeGRPOTrainer(GuardedRewards, GRPOTrainer):
    """TRL's GRPO trainer: own sampling in evaluation, seconds by phase, no padding, rewards that
    share a column of the completions table.
    """

    _buffered_inputs: Any  # the micro-batches of the latest generation

    def __init__(self, *, script: GRPORecipeArguments, **arguments: Any) -> None:
        with engine_of(GRPOTrainer, arguments["args"].seed):
            super().__init__(**arguments)
        self._eval_temperature: float = self.args.temperature
        self._eval_length = self.args.max_completion_length
        self._trims = script.trim_padding
        self._token_shares: list[float] = []
        self._window = math.gcd(
            self.args.steps_per_generation, self.args.gradient_accumulation_steps
        )
        key = keeps_row_order(self)
        if key and self._trims and self._window > 1:
            logger.info("trim_padding: rows keep their order, because of %s", key)
            self._window = 1
        self._no_completions = copy.deepcopy(self._logs)
        self._seconds = {"time/generation": 0.0, "time/rewards": 0.0}
        self._logged_step: int | None = None  # until the first step, of a run that goes on, too
        self._logged_completions = 256
        self._in_no_table = False  # whether the latest completions are in no table yet
        self._uncompared = 0  # micro-batches of the latest completions to compare with the engine
        self._evaluating = False
        self.guard_rewards(script.reward_funcs)

    def _prepare_inputs(self, generation_batch: Any) -> Rows:
        held = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        batches = self._buffered_inputs
        if batches is held or not self._trims:
            return inputs
        self._buffered_inputs = without_padding(batches, self._window, self.pad_to_multiple_of)
        if self._window > 1:
            self._token_shares = self._shares_of_window()
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _shares_of_window(self) -> list[float]:
        """Return the tokens of each micro-batch over the mean of its window, on all processes."""
        counts = torch.stack([_counted(rows).sum().float() for rows in self._buffered_inputs])
        windows = self.accelerator.reduce(counts).view(-1, self._window)
        return (windows / windows.mean(1, keepdim=True).clamp(min=1)).flatten().tolist()

    def create_accelerator_and_postprocess(self) -> None:
        """Keep the log-probabilities of FSDP 2 in fp32, in which TRL computes them.

        Accelerate's policy casts what the model returns to bf16, in which a token's KL below 0.008
        is 0. Transformers calls this before TRL shards the reference model.
        """
        super().create_accelerator_and_postprocess()
        plugin = self.accelerator.state.fsdp_plugin if self.is_fsdp_enabled else None
        if plugin and plugin.fsdp_version == 2 and plugin.mixed_precision_policy:
            plugin.mixed_precision_policy = dataclasses.replace(
                plugin.mixed_precision_policy, output_dtype=None
            )

    def _generate(self, prompts: list):
        with self._timed("time/generation"):
            return super()._generate(prompts)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list) -> torch.Tensor:
        if self.tools:
            self._log_completion_extra("turns", [transcript(turns) for turns in completions])
        with self._timed("time/rewards"):
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self.check_rewards(rewards)
        if self.model.training:
            self._in_no_table = True
            self._uncompared = self._window
        if self.tools:
            _write_arguments_as_text(completions)
        return rewards

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        if self._logged_step is None:
            self._logged_step = self.state.global_step
        try:
            yield
        finally:
            if self.model.training:
                self._seconds[name] += time.perf_counter() - began

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add ``time/generation`` and ``time/rewards``, in seconds per optimizer step; the rest of
        TRL's ``step_time`` is training.
        """
        if "loss" in logs:
            steps = max(1, self.state.global_step - (self._logged_step or 0))
            logs |= {name: seconds / steps for name, seconds in self._seconds.items()}
            self._seconds = dict.fromkeys(self._seconds, 0.0)
            self._logged_step = self.state.global_step
        # The model is not set back to training before the next step, so its mode does not tell.
        if self._evaluating:
            super().log(logs, start_time)
            return
        # TRL writes the whole generation batch at each step that is logged, also where many steps
        # train on it.
        table = self._logs
        writes_table = self.log_completions and self._in_no_table
        if writes_table:
            table = _first_rows(table, self._logged_completions)
            self._in_no_table = False
        with attributes_set(self, _logs=table, log_completions=writes_table):
            super().log(logs, start_time)

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **options
    ):
        compute = super()._get_per_token_logps_and_entropies
        # The loss asks for one micro-batch; the old and reference policy for all of a generation.
        texts = all(value is None or value is False for value in options.values())
        if not (self._trims and texts and batch_size):
            result = compute(
                model, input_ids, attention_mask, logits_to_keep, batch_size, **options
            )
            self._latest_logps = result[0].detach()
            return result
        logps = None
        for rows, columns, kept in chunks_by_length(attention_mask, logits_to_keep, batch_size):
            part = compute(model, input_ids[rows, columns], attention_mask[rows, columns], kept)[0]
            if logps is None:
                logps = part.new_zeros(len(input_ids), logits_to_keep)
            logps[rows, :kept] = part
        return logps, None, None

    def _compute_loss(self, model, inputs: Rows) -> torch.Tensor:
        loss = super()._compute_loss(model, inputs)
        if self.model.training and self._token_shares:
            self._weigh_by_tokens(self._token_shares[self._step % self.args.steps_per_generation])
        # Until the first optimizer step of a rollout, the policy is the engine's. The rows of a
        # window are sorted by length, so one micro-batch would show the longest only.
        if self.model.training and self._uncompared:
            self._uncompared -= 1
            # TRL compares only to correct, and spends a pass on it.
            corrects = self.vllm_importance_sampling_correction
            if "sampling_per_token_logps" in inputs and not corrects:
                self._log_engine_gap(inputs)
        return loss

    def _weigh_by_tokens(self, share: float) -> None:
        """Convert what TRL logged of a micro-batch, so that the mean of micro-batches is of tokens.

        Rows are sorted by length, so the short ones would count as much as the long ones.
        """
        clipped = _CLIPPED if self.importance_sampling_level == "token" else ()
        for name in (*_TOKEN_MEANS, *clipped):
            values = self._metrics["train"].get(name)
            if values:
                values[-1] *= share

    def _log_engine_gap(self, inputs: Rows) -> None:
        """Log how far trainer and engine differ in a token's log-probability, as TRL does with its
        correction; all ranks must call it.
        """
        counted = _counted(inputs)
        gaps = (self._latest_logps - inputs["sampling_per_token_logps"]).abs().float()
        gaps = gaps[counted.bool() & ~gaps.isnan()]  # vLLM could not score those
        if not gaps.numel():
            gaps = gaps.new_zeros(1)
        means, peaks = self.accelerator.gather(torch.stack([gaps.mean(), gaps.max()])).view(-1, 2).T
        metrics = self._metrics["train"]
        name = "sampling/sampling_logp_difference"
        metrics[f"{name}/mean"].append(means.mean().item())
        metrics[f"{name}/max"].append(peaks.max().item())

    def _log_completion_extra(self, column: str, values: Sequence[Any]) -> None:
        # TRL would append a second reward's values for the same column as further rows.
        held = self._pending_extra_logs.get(column)
        self._pending_extra_logs[column] = merged_column(held, values)

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        """Evaluate with the recipe's own sampling; completions go to ``eval_completions/``, those
        of training stay as they are.
        """
        with self._sampling_for_evaluation(), self._completions_apart():
            return super().evaluate(*args, **kwargs)

    @contextlib.contextmanager
    def _completions_apart(self) -> Iterator[None]:
        output_dir = Path(self.args.output_dir)
        path = output_dir / "completions" / f"completions_{self.state.global_step:05d}.parquet"
        aside = path.with_name(f".{path.name}.aside")
        writes = self.accelerator.is_main_process
        if writes and path.exists():
            path.rename(aside)
        try:
            with attributes_set(self, _logs=copy.deepcopy(self._no_completions), _evaluating=True):
                yield
        finally:
            if writes and path.exists():
                folder = output_dir / "eval_completions"
                folder.mkdir(exist_ok=True)
                path.rename(folder / path.name)
            if writes and aside.exists():
                aside.rename(path)

    @contextlib.contextmanager
    def _sampling_for_evaluation(self) -> Iterator[None]:
        temperature = self._eval_temperature
        length = self._eval_length
        with attributes_set(self, max_completion_length=length):  # of an episode
            if self.use_vllm:
                with attributes_set(
                    self.vllm_generation, temperature=temperature, max_completion_length=length
                ):
                    yield
                return
            settings = {"do_sample": temperature > 0, "temperature": temperature or None}
            settings["max_new_tokens"] = length
            if temperature == 0:  # greedy decoding would warn of them
                settings |= {"top_p": None, "top_k": None, "min_p": None}
            config = copy.deepcopy(self.generation_config)
            config.update(**settings)
            with attributes_set(
                self,
                generation_config=config,
                generation_kwargs={**self.generation_kwargs, **settings},
            ):
                yield


def _counted(rows: Rows) -> torch.Tensor:
    """Return the mask of the tokens that the model wrote, which alone count in a loss."""
    return rows["completion_mask"] * rows.get("tool_mask", 1)


def _write_arguments_as_text(conversations: Sequence[list[Message]]) -> None:
    """Write arguments of calls as JSON: TRL logs them, and Parquet writes neither `{}` nor `{"n":
    1}` beside `{"n": "one"}`.
    """
    for messages in conversations:
        for message in messages:
            for call in message.get("tool_calls") or ():
                function = call["function"]
                call["function"] = {
                    "name": str(function["name"]),
                    "arguments": json.dumps(function.get("arguments")),
                }


def _first_rows(table: Any, count: int) -> Any:
    if isinstance(table, dict):
        return {key: _first_rows(rows, count) for key, rows in table.items()}
    return list(islice(table, count))


class RowOrder(TrainerCallback):
    """Let a resumed run see the same rows in the same rollouts.

    No checkpoint holds RepeatSampler's generator, whose draws are replayed, or TRL's count of
    micro-batches, by which it generates. With several steps per rollout and a count from 0, each
    later rollout would begin amid the rows of one and end amid those of the next.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(self, args, state, control, train_dataloader=None, **kwargs) -> None:
        batches: Any = getattr(train_dataloader, "batch_sampler", None)
        # Accelerate wraps it, once for each kind of sharding.
        while hasattr(batches, "batch_sampler"):
            batches = batches.batch_sampler
        sampler = getattr(batches, "sampler", None)
        if not isinstance(sampler, RepeatSampler):
            return
        if sampler.shuffle:
            for _ in range(int(state.epoch or 0)):
                torch.randperm(sampler.num_samples, generator=sampler.generator)
        if args.ignore_data_skip:  # the epoch begins anew
            return
        accumulated = args.gradient_accumulation_steps
        steps = math.ceil(len(train_dataloader) / accumulated)  # an epoch, as Transformers counts
        self._trainer._step = state.global_step % steps * accumulated
