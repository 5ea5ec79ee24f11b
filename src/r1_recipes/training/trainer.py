"""TRL's GRPO trainer with five additions, each a few lines, and sampling in the constructor.

Private names of TRL that the core uses are here, in callbacks.py, train.py and vllm_lora.py;
tests/core/training/test_trainer.py pins them. Heavy: imports TRL, and so torch.
"""

import contextlib
import dataclasses
import functools
import math
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from transformers import GenerationConfig
from trl import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from r1_recipes.common import processes
from r1_recipes.common.errors import USER_ERRORS
from r1_recipes.models.load import UNTHINNED
from r1_recipes.rewards.call import failure, numbers
from r1_recipes.training.callbacks import LearnsNothing, RewardFailed

Batch = dict[str, Any]  # a micro-batch as TRL's trainer hands it to its loss


class RecipeTrainer(GRPOTrainer):
    """TRL's trainer that computes no padding, logs seconds by phase, stops on all processes if a
    reward fails on one, learns nothing from equal rewards, keeps FSDP 2's log-probabilities in
    fp32, and writes evaluations apart.
    """

    _buffered_inputs: Any  # the micro-batches of the latest generation
    _logs: dict[str, Any]  # the columns of the completions table
    _logged: int  # rows of that table, without this batch
    reward_funcs: list[Any]

    def __init__(self, reward_funcs: list, *, trim_padding: bool = True, **arguments: Any) -> None:
        super().__init__(reward_funcs=reward_funcs, **arguments)
        self._trims = trim_padding
        self._errors: list[str] = []  # of rewards, on this process
        # An environment's own reward is among them by now.
        self.reward_funcs = [safe(reward, self._errors) for reward in self.reward_funcs]
        weights = dict(zip(self.reward_func_names, self.reward_weights.tolist(), strict=True))
        self.add_callback(LearnsNothing(weights))
        if not self.use_vllm:
            # Transformers 5.17 fills what TRL leaves at None from the model's own
            # generation_config.json: a min_p there makes groups of equal completions, and vLLM
            # ignores it.
            kwargs = self.generation_kwargs
            kwargs |= {name: off for name, off in UNTHINNED.items() if kwargs.get(name) is None}
            self.generation_config = GenerationConfig(**kwargs, disable_compile=True)

    # 1. Padding. TRL 1.16 pads every micro-batch to the longest prompt and completion of the whole
    # generation (grpo_trainer.py:2440-2462, issue 7179). Rows of about one length share a
    # micro-batch here, and the model is given only the columns that its rows use. An optimizer step
    # adds up the gradients of its micro-batches, so loss and gradient are the same.

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        batches = self._buffered_inputs
        # These losses have means over one micro-batch, so rows stay where TRL has them.
        entropy = self._entropy_bonus_enabled or self.top_entropy_quantile < 1.0
        keeps_order = self.loss_type == "bnpo" or entropy or self.aux_loss_enabled
        if not (batches is before or "pixel_values" in inputs or keeps_order) and self._trims:
            # Rows move among the micro-batches that one optimizer step adds up.
            window = math.gcd(len(batches), self.args.gradient_accumulation_steps)
            self._buffered_inputs = [
                batch
                for first in range(0, len(batches), window)
                for batch in by_length(batches[first : first + window])
            ]
            inputs = self._buffered_inputs[self._step % len(batches)]
        inputs["advantages"] = inputs["advantages"].float()
        return inputs

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **options
    ):
        # The loss, the old and the reference policy all pass through here.
        compute = super()._get_per_token_logps_and_entropies
        flags = {key: value for key, value in options.items() if key.startswith("compute_")}
        pictures = any(options[key] is not None for key in options.keys() - flags.keys())
        if pictures or not self._trims:
            return compute(model, input_ids, attention_mask, logits_to_keep, batch_size, **options)
        size, parts = batch_size or len(input_ids), []
        for ids, mask in zip(input_ids.split(size), attention_mask.split(size), strict=True):
            # Prompts are padded on the left, completions on the right; one token stays to score.
            used = mask.any(0).nonzero()
            last = max(int(used[-1]) + 1, mask.size(1) - logits_to_keep + 1)
            columns, cut = slice(int(used[0]), last), mask.size(1) - last
            logps, entropies, aux = compute(
                model, ids[:, columns], mask[:, columns], logits_to_keep - cut, **flags
            )
            # The loss masks the columns that are padded back.
            entropies = None if entropies is None else F.pad(entropies, (0, cut))
            parts.append((F.pad(logps, (0, cut)), entropies, aux))
        logps, entropies, aux = zip(*parts, strict=True)
        return (
            torch.cat(logps),
            None if entropies[0] is None else torch.cat(entropies),
            None if aux[0] is None else torch.stack(aux).mean(),
        )

    # 2. Seconds of generation and rewards. The rest of TRL's ``step_time`` is training.

    def _generate(self, prompts: list):
        with self._timed("time/generation"):
            return super()._generate(prompts)

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        mode = "train" if self.model.training else "eval"
        self._metrics[mode][name].append(time.perf_counter() - began)

    # 3. Rewards. TRL 1.16 calls them unguarded (grpo_trainer.py:1626): if one raises on one
    # process, the others wait for it until a time-out.
    # In TRL's fp32 the mean of eight rewards of 0.2 is not 0.2. What is left is divided by 1e-4
    # (grpo_trainer.py:2787), and Adam scales a gradient of any size to a whole step: a run whose
    # rewards are all equal would move its weights. Advantages from float64 are below 1e-11 there,
    # which is nothing beside Adam's epsilon.

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list) -> torch.Tensor:
        with self._timed("time/rewards"):
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if errors := processes.gather(self._errors):
            raise RewardFailed(errors[0])
        if self.tools:
            from r1_recipes.extras.agents.build import for_the_table

            self._log_completion_extra("turns", for_the_table(completions))
        # A reward may log a column in some batches alone, and TRL's table needs it in every row.
        self._logged = len(self._logs["prompt"])
        for column in self._logs["extra"].keys() - self._pending_extra_logs.keys():
            self._log_completion_extra(column, [None] * len(prompts))
        # MPS has no float64.
        return rewards if rewards.is_mps else rewards.double().round(decimals=6)

    # 4. FSDP 2. Accelerate's policy casts what the model returns to bf16 (1.15:
    # utils/dataclasses.py:2141), in which a token's KL below 0.008 is mostly 0. Transformers calls
    # this before TRL shards the reference model.

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        plugin = self.accelerator.state.fsdp_plugin if self.is_fsdp_enabled else None
        if plugin and plugin.fsdp_version == 2 and plugin.mixed_precision_policy:
            plugin.mixed_precision_policy = dataclasses.replace(
                plugin.mixed_precision_policy, output_dtype=None
            )

    # 5. Evaluation. TRL 1.16 writes its completions over those of training of the same step, and
    # keeps the last ``generation_batch_size`` rows alone (grpo_trainer.py:1088, 3323-3357).

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        training, folder = self._logs, self.args.output_dir
        self._logs = {
            **{key: [] for key in ("images", "prompt", "completion", "advantages")},
            "rewards": defaultdict(list),
            "extra": defaultdict(lambda: [None] * self._logged),
        }
        self.args.output_dir = aside = os.path.join(folder, "_eval")
        if self.accelerator.is_main_process:
            os.makedirs(os.path.join(aside, "completions"), exist_ok=True)
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self._logs, self.args.output_dir = training, folder
            if self.accelerator.is_main_process:
                written = os.path.join(aside, "completions")
                shutil.copytree(
                    written, os.path.join(folder, "eval_completions"), dirs_exist_ok=True
                )
                shutil.rmtree(aside)


def safe(reward: Any, errors: list[str]) -> Any:
    """Return a reward that appends its error to ``errors``, with file and line, and pays 0.0."""
    name = getattr(reward, "__name__", type(reward).__name__)

    @functools.wraps(reward, updated=())
    def call(**columns: Any) -> list[Any]:
        try:
            return numbers(name, reward, reward(**columns), len(columns["completions"]))
        except USER_ERRORS as error:
            errors.append(str(failure(name, error, columns)))
            return [0.0] * len(columns["completions"])

    return call


def by_length(batches: list[Batch]) -> list[Batch]:
    """Sort the rows of several micro-batches by length.

    The longest come first, so that what does not fit into memory fails at once.
    """
    lengths = [batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1) for batch in batches]
    order = torch.cat(lengths).argsort(descending=True, stable=True)
    joined = {
        key: torch.cat([batch[key] for batch in batches])[order] if value.ndim else value
        for key, value in batches[0].items()
    }
    return split_tensor_dict(joined, len(batches))
