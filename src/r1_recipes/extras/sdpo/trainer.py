"""TRL's SDPO trainer with what recipes add: rewards that never stop one rank alone, GRPO's names of
metrics, the table of completions, and a teacher that is resumed.

Heavy: imports torch and TRL. tests/extras/sdpo pins the private names of TRL that are used here.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from pathlib import Path
from typing import Any

import pandas
import torch
from accelerate.utils import set_seed
from safetensors.torch import load_model, save_model
from transformers.integrations import is_deepspeed_zero3_enabled
from trl.experimental.sdpo import SDPOTrainer
from trl.trainer.utils import nanstd

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.recipe.types import GRPORecipeArguments
from r1_recipes.rewards.registry import Values
from r1_recipes.training.engine import engine_of
from r1_recipes.training.rewards import GuardedRewards, merged_column

logger = logging.getLogger(__name__)

# In a checkpoint: the averaged weights. vLLM loads every safetensors file beside the model's.
TEACHER_FILE = "teacher/teacher.safetensors"


class RecipeSDPOTrainer(GuardedRewards, SDPOTrainer):
    """TRL's SDPO trainer, on a recipe's rewards."""

    def __init__(self, *, script: GRPORecipeArguments, **arguments: Any) -> None:
        _check_columns(arguments["args"], arguments["train_dataset"].column_names)
        del arguments["quantization_config"]  # check_recipe refuses it
        with engine_of(SDPOTrainer, arguments["args"].seed):
            super().__init__(**arguments)
        if not self.use_vllm and self.accelerator.process_index:
            # As GRPO does: ranks with one seed would sample the same completions. The engine has
            # seeds of its own.
            set_seed(self.args.seed, device_specific=True)
        self.guard_rewards(script.reward_funcs)
        self._loop = asyncio.new_event_loop()  # one for all batches: a reward may keep a client
        self.reward_funcs = [
            reward if isinstance(reward, torch.nn.Module) else self._as_sdpo_calls(reward)
            for reward in self.reward_funcs
        ]
        self._rows_in_table = script.max_logged_completions
        self._columns: dict[str, list[Any]] = {}  # of the completions table, of the latest batch
        self._scalars: list[tuple[str, float]] = []
        # A teacher that is sharded over processes is not saved.
        sharded = self.is_fsdp_enabled or is_deepspeed_zero3_enabled()
        self._averages = self.args.teacher_model_kind == "ema"
        self._saves_teacher = self._averages and not sharded
        types = {parameter.dtype for parameter in self.teacher_model.parameters()}
        if self._averages and types != {torch.float32}:
            raise RecipeError(
                f"teacher_model_kind: ema: the teacher's weights are {', '.join(map(str, types))} "
                "under this accelerate config, so their average would hardly move. "
                "Fix: mixed_precision: 'no' in it, fsdp2, or teacher_model_kind: live"
            )

    def _as_sdpo_calls(self, reward: Any) -> Any:
        """Return a reward that takes SDPO's call, which has no loggers and awaits nothing."""

        def called(**columns: Any) -> Values:
            result = reward(
                **columns,
                log_extra=self._log_completion_extra,
                log_metric=lambda name, value: self._scalars.append((name, float(value))),
            )
            if inspect.iscoroutine(result):
                result = self._loop.run_until_complete(result)
            return result

        return called

    def _log_completion_extra(self, column: str, values: list[Any]) -> None:
        self._columns[column] = merged_column(self._columns.get(column), values)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list) -> torch.Tensor:
        self._columns = {}
        self._scalars = []
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self.check_rewards(rewards)
        mode = "train" if self.model.training else "eval"
        scalars: dict[str, list[float]] = {}
        for name, value in processes.gather(self._scalars):
            scalars.setdefault(name, []).append(value)
        for name, values in scalars.items():
            self._metrics[mode][name].append(sum(values) / len(values))
        first = self.accelerator.process_index * len(prompts)
        ours = rewards[first : first + len(prompts)]
        self._unjudged_rows = ours.isnan().all(dim=1)
        step = self.state.global_step + 1  # the step that trains on them
        table = {"step": [step] * len(prompts), "prompt": prompts, "completion": completions}
        table |= dict(zip(self.reward_func_names, ours.T.tolist(), strict=True))
        self._columns = table | self._columns
        return rewards

    def _prepare_training_batch(self, inputs) -> dict[str, Any]:
        batch = super()._prepare_training_batch(inputs)
        # As in GRPO, a completion that no reward judges is not learned from; TRL counts it as 0.
        batch["advantages"][self._unjudged_rows] = 0
        batch["self_distillation_mask"][self._unjudged_rows] = 0
        if self.model.training and self.accelerator.is_main_process and self._rows_in_table:
            self._columns["advantage"] = batch["advantages"].tolist()
            # Whether the teacher was shown a right answer of the group.
            self._columns["distilled"] = batch["self_distillation_mask"].tolist()
            folder = Path(self.args.output_dir, "completions")
            folder.mkdir(parents=True, exist_ok=True)
            table = pandas.DataFrame(self._columns).head(self._rows_in_table)
            table.to_parquet(folder / f"completions_{self._columns['step'][0]:05d}.parquet")
        return batch

    def _compute_rollout_logps(self, **tensors: torch.Tensor) -> torch.Tensor | None:
        # TRL would hold the logits of the whole generation at once.
        size = self.args.per_device_train_batch_size
        compute = super()._compute_rollout_logps
        batches = zip(*(tensor.split(size) for tensor in tensors.values()), strict=True)
        parts = [compute(**dict(zip(tensors, batch, strict=True))) for batch in batches]
        return None if parts[0] is None else torch.cat(parts)

    def _forward_logits(self, *arguments: Any, **options: Any) -> torch.Tensor:
        # Under DDP, Accelerate returns fp32. FSDP 2 and DeepSpeed return bf16, in which logits near
        # 30 have steps of 0.125, more than most differences between student and teacher.
        return super()._forward_logits(*arguments, **options).float()

    def _compute_self_distillation_loss(self, model, inputs, distillation_logits) -> torch.Tensor:
        mask = distillation_logits.loss_mask
        if mask.sum() == 0:  # TRL returns before the gather in which the other ranks would wait
            self.accelerator.gather(torch.zeros((), dtype=torch.float32, device=mask.device))
        return super()._compute_self_distillation_loss(model, inputs, distillation_logits)

    def _record_reward_diagnostics(
        self, mode, rewards, rewards_per_func, group_std_rewards
    ) -> None:
        super()._record_reward_diagnostics(mode, rewards, rewards_per_func, group_std_rewards)
        # What tables, pages and metric_for_best_model know from GRPO; all ranks have all rewards.
        metrics = self._metrics[mode]
        for name, values in zip(self.reward_func_names, rewards_per_func.T, strict=True):
            metrics[f"rewards/{name}/mean"].append(values.nanmean().item())
            metrics[f"rewards/{name}/std"].append(nanstd(values).item())
        judged = rewards.masked_fill(rewards_per_func.isnan().all(dim=1), torch.nan)
        metrics["reward"].append(judged.nanmean().item())
        metrics["reward_std"].append(nanstd(judged).item())
        size = self.num_generations if mode == "train" else self.num_generations_eval
        flat = rewards.view(-1, size).std(dim=1) <= self.args.diagnostics_flat_tolerance
        metrics["frac_reward_zero_std"].append(flat.float().mean().item())

    def _save_checkpoint(self, model, trial) -> None:
        super()._save_checkpoint(model, trial)
        if self._saves_teacher and self.args.should_save and not self.args.save_only_model:
            teacher = self.accelerator.unwrap_model(self.teacher_model)
            file = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}", TEACHER_FILE)
            file.parent.mkdir(exist_ok=True)
            save_model(teacher, str(file))

    def train(self, resume_from_checkpoint: str | None = None, **options: Any) -> Any:
        """Train. A resumed run's teacher has the weights that it had."""
        if resume_from_checkpoint and self._averages:
            file = Path(resume_from_checkpoint, TEACHER_FILE)
            if self._saves_teacher and file.is_file():
                load_model(self.accelerator.unwrap_model(self.teacher_model), str(file))
            else:
                why = "is sharded over processes" if not self._saves_teacher else "is missing"
                logger.warning(
                    "teacher_model_kind: ema: the teacher of the checkpoint %s, so the average "
                    "starts again from the base model",
                    why,
                )
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **options)


def _check_columns(args: Any, columns: list[str]) -> None:
    if "image" in columns:
        raise RecipeError("train_with: sdpo: does not support pictures. Fix: train_with: grpo")
    if args.include_environment_feedback and "privileged_context" not in columns:
        raise RecipeError(
            "include_environment_feedback: needs a column 'privileged_context' with the feedback, "
            f"the rows have {', '.join(columns)}. Fix: remove it"
        )
