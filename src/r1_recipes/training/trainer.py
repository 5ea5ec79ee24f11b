"""TRL's GRPO trainer with what recipes add. Every private name of TRL that we use is here; tests/training/test_trainer.py pins them.

Heavy: imports TRL, and so torch.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from r1_recipes.common.messages import transcript


class RecipeGRPOTrainer(GRPOTrainer):
    """TRL's GRPO trainer: own sampling in evaluation, seconds by phase, rewards that share a column of the completions table.
    ``eval_temperature`` (0: greedy) and ``eval_max_completion_length`` are the trainer's evaluation's; ``None``: as in training.
    """

    _logs: dict[str, Any]

    def __init__(self, *, eval_temperature: float | None = None, eval_max_completion_length: int | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        asked = {"temperature": eval_temperature, "max_completion_length": eval_max_completion_length}
        self._eval_sampling = {key: getattr(self.args, key) if value is None else value for key, value in asked.items()}
        self._no_completions = copy.deepcopy(self._logs)
        self._seconds = {"time/generation": 0.0, "time/rewards": 0.0}
        self._logged_step = 0

    def _generate(self, prompts: list) -> Any:
        with self._timed("time/generation"):
            return super()._generate(prompts)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        if getattr(self, "tools", None):
            self._log_completion_extra("turns", [transcript(turns) for turns in completions])
        with self._timed("time/rewards"):
            return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            if self.model.training:
                self._seconds[name] += time.perf_counter() - began

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add ``time/generation`` and ``time/rewards``, in seconds per optimizer step.

        The rest of TRL's ``step_time`` is training: forward, backward, old and reference log probabilities.
        """
        if "loss" in logs:
            steps = max(1, self.state.global_step - self._logged_step)
            logs |= {name: seconds / steps for name, seconds in self._seconds.items()}
            self._seconds = dict.fromkeys(self._seconds, 0.0)
            self._logged_step = self.state.global_step
        super().log(logs, start_time)

    def _log_completion_extra(self, column: str, values: Sequence[Any]) -> None:
        # TRL would append a second reward's values for the same column as further rows.
        held = self._pending_extra_logs.get(column)
        if held:
            values = [new if old is None or old == "" else old for old, new in zip(held, values, strict=True)]
        self._pending_extra_logs[column] = list(values)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate with the recipe's own sampling; completions go to ``eval_completions/``, those of training stay as they are."""
        with self._sampling_for_evaluation(), self._completions_apart():
            return super().evaluate(*args, **kwargs)

    @contextlib.contextmanager
    def _completions_apart(self) -> Iterator[None]:
        output_dir, name = Path(self.args.output_dir), f"completions_{self.state.global_step:05d}.parquet"
        path, aside = output_dir / "completions" / name, output_dir / "completions" / f".{name}.aside"
        training, self._logs = self._logs, copy.deepcopy(self._no_completions)
        if self.accelerator.is_main_process and path.exists():
            path.rename(aside)
        try:
            yield
        finally:
            self._logs = training
            if self.accelerator.is_main_process:
                if path.exists():
                    (output_dir / "eval_completions").mkdir(exist_ok=True)
                    path.rename(output_dir / "eval_completions" / name)
                if aside.exists():
                    aside.rename(path)

    @contextlib.contextmanager
    def _sampling_for_evaluation(self) -> Iterator[None]:
        owner: Any = self.vllm_generation if self.use_vllm else self
        changes: dict[str, Any] = self._eval_sampling
        if not self.use_vllm:
            temperature, tokens = self._eval_sampling.values()
            settings = {"do_sample": temperature > 0, "temperature": temperature or None, "max_new_tokens": tokens}
            if temperature == 0:
                settings |= dict.fromkeys(("top_p", "top_k", "min_p"))  # greedy decoding would warn of them
            config = copy.deepcopy(self.generation_config)
            config.update(**settings)
            changes = {"generation_config": config, "generation_kwargs": {**self.generation_kwargs, **settings}}
        before = {name: getattr(owner, name) for name in changes}
        vars(owner).update(changes)
        try:
            yield
        finally:
            vars(owner).update(before)


class RowOrder(TrainerCallback):
    """Replay the draws of RepeatSampler's generator, which is not checkpointed, so that a resumed run sees the same rows."""

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        batches: Any = getattr(train_dataloader, "batch_sampler", None)
        while hasattr(batches, "batch_sampler"):  # accelerate wraps it, once for each kind of sharding
            batches = batches.batch_sampler
        sampler = getattr(batches, "sampler", None)
        if isinstance(sampler, RepeatSampler) and sampler.shuffle:
            for _ in range(int(state.epoch or 0)):
                torch.randperm(sampler.num_samples, generator=sampler.generator)
