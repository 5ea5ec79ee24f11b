"""TRL's SDPO trainer with what recipes add: rewards that never stop one rank alone, GRPO's names of
metrics, the table of completions, and a teacher that is resumed.

Heavy: imports torch and TRL. tests/extras/sdpo pins the private names of TRL that are used here.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import torch
from safetensors.torch import load_model, save_model
from transformers.integrations import is_deepspeed_zero3_enabled
from trl.experimental.sdpo import SDPOTrainer
from trl.trainer.utils import nanstd

from r1_recipes.common.errors import RecipeError
from r1_recipes.recipe.types import GRPORecipeArguments
from r1_recipes.rewards.registry import Values, ignore
from r1_recipes.training.engine import engine_of
from r1_recipes.training.rewards import GuardedRewards, merged_column

logger = logging.getLogger(__name__)

TEACHER_FILE = "teacher.safetensors"  # in a checkpoint: the averaged weights


class RecipeSDPOTrainer(GuardedRewards, SDPOTrainer):
    """TRL's SDPO trainer, on a recipe's rewards."""

    def __init__(self, *, script: GRPORecipeArguments, **arguments: Any) -> None:
        if "image" in arguments["train_dataset"].column_names:
            raise RecipeError("train_with: sdpo: does not support pictures. Fix: train_with: grpo")
        del arguments["quantization_config"]  # check_recipe refuses it
        with engine_of(SDPOTrainer, arguments["args"].seed):
            super().__init__(**arguments)
        self.guard_rewards(script.reward_funcs)
        self.reward_funcs = [
            _as_sdpo_calls(reward, self._log_completion_extra) for reward in self.reward_funcs
        ]
        self._rows_in_table = script.max_logged_completions
        self._columns: dict[str, list[Any]] = {}  # of the completions table, of the latest batch
        # A teacher that is sharded over processes is not saved.
        sharded = self.is_fsdp_enabled or is_deepspeed_zero3_enabled()
        self._averages = self.args.teacher_model_kind == "ema"
        self._saves_teacher = self._averages and not sharded

    def _log_completion_extra(self, column: str, values: list[Any]) -> None:
        self._columns[column] = merged_column(self._columns.get(column), values)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list) -> torch.Tensor:
        self._columns = {}
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self.check_rewards(rewards)
        step = self.state.global_step + 1  # the step that trains on them
        table = {"step": [step] * len(prompts), "prompt": prompts, "completion": completions}
        # The main process's rows come first.
        for name, values in zip(self.reward_func_names, rewards.T.tolist(), strict=True):
            table[name] = values[: len(prompts)]
        self._columns = table | self._columns
        return rewards

    def _prepare_training_batch(self, inputs) -> dict[str, Any]:
        batch = super()._prepare_training_batch(inputs)
        if self.model.training and self.accelerator.is_main_process and self._rows_in_table:
            self._columns["advantage"] = batch["advantages"].tolist()
            # Whether the teacher was shown a right answer of the group.
            self._columns["distilled"] = batch["self_distillation_mask"].tolist()
            folder = Path(self.args.output_dir, "completions")
            folder.mkdir(parents=True, exist_ok=True)
            table = pandas.DataFrame(self._columns).head(self._rows_in_table)
            table.to_parquet(folder / f"completions_{self._columns['step'][0]:05d}.parquet")
        return batch

    def _record_reward_diagnostics(
        self, mode, rewards, rewards_per_func, group_std_rewards
    ) -> None:
        super()._record_reward_diagnostics(mode, rewards, rewards_per_func, group_std_rewards)
        # What tables, pages and metric_for_best_model know from GRPO; all ranks have all rewards.
        metrics = self._metrics[mode]
        for name, values in zip(self.reward_func_names, rewards_per_func.T, strict=True):
            metrics[f"rewards/{name}/mean"].append(values.nanmean().item())
            metrics[f"rewards/{name}/std"].append(nanstd(values).item())
        metrics["reward"].append(rewards.mean().item())
        metrics["reward_std"].append(rewards.std().item())
        metrics["frac_reward_zero_std"].append(metrics["self_distillation/flat_group_fraction"][-1])

    def _save_checkpoint(self, model, trial) -> None:
        super()._save_checkpoint(model, trial)
        if self._saves_teacher and self.args.should_save and not self.args.save_only_model:
            teacher = self.accelerator.unwrap_model(self.teacher_model)
            folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
            save_model(teacher, str(folder / TEACHER_FILE))

    def train(self, resume_from_checkpoint: str | None = None, **options: Any) -> Any:
        """Train. A resumed run's teacher has the weights that it had."""
        if resume_from_checkpoint and self._averages:
            file = Path(resume_from_checkpoint, TEACHER_FILE)
            if self._saves_teacher and file.is_file():
                load_model(self.accelerator.unwrap_model(self.teacher_model), str(file))
            else:
                logger.warning(
                    "teacher_model_kind: ema: the checkpoint has no teacher, because it is sharded "
                    "over processes, so the average starts again from the base model"
                )
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **options)


def _as_sdpo_calls(reward: Any, log_extra: Callable[[str, list[Any]], None]) -> Any:
    """Return a reward that takes SDPO's call: without loggers, and never awaited."""
    if isinstance(reward, torch.nn.Module):
        return reward

    def called(**columns: Any) -> Values:
        result = reward(**columns, log_extra=log_extra, log_metric=ignore)
        return asyncio.run(result) if inspect.iscoroutine(result) else result

    return called
