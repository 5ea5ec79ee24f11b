"""What every run does beside training: metrics, figures, stopping, resuming, a word in time.

Heavy: imports Transformers, and so torch.
"""

import contextlib
import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from transformers import ProgressCallback, TrainerCallback
from trl.trainer.utils import RepeatSampler

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import write_whole
from r1_recipes.rewards import ANSWERS
from r1_recipes.training import run_folder

logger = logging.getLogger(__name__)

# With several processes, Accelerate names the CPU "cpu:0". torch.load must know this device to
# resume on it.
torch.serialization.register_package(
    1, lambda storage: None, lambda storage, place: storage if place == "cpu:0" else None
)
_STEPS = 10  # in a row that taught nothing, and the run says so
# A run that learns one of these learns what it should.
_ANSWERS = ANSWERS | {"cosine"}
_SHOWN = {
    "reward": "reward",
    "loss": "loss",
    "mean_token_accuracy": "token acc",
    "accuracy": "pair acc",
    "completions/mean_length": "length",
    "completions/clipped_ratio": "cut",
    "frac_reward_zero_std": "flat",
    "entropy": "entropy",
    "kl": "KL",
    "grad_norm": "grad",
    "step_time": "s/step",
}  # at the terminal, with each reward's mean


class RewardFailed(RecipeError):
    """A reward raised. All processes raise this at the same place, so they can save together."""


class AllStepsTrained(Exception):
    """The checkpoint has all steps: the run was killed before its last save."""


class Metrics(TrainerCallback):
    """Append each log entry to ``metrics.jsonl``, and refresh ``report.html`` with every save.

    A resumed run drops the entries after its checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "metrics.jsonl"

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        logger.info(
            "%d steps of %s %s",
            state.max_steps,
            run_folder.rows_per_step(args),
            "completions" if hasattr(args, "num_generations") else "rows",
        )
        if not state.is_world_process_zero:
            return
        kept = ""
        if state.global_step and self._path.exists():
            for line in self._path.read_text(encoding="utf-8").splitlines():
                # The last line may be torn, if the machine went down while it was written.
                with contextlib.suppress(ValueError):
                    kept += f"{line}\n" if json.loads(line)["step"] <= state.global_step else ""
        write_whole(self._path, kept)

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        # Every process has the same norm. With fp16 the scaler skips such a step.
        if logs and math.isnan(float(logs.get("grad_norm", 0))) and not args.fp16:
            raise RecipeError(
                f"grad_norm: NaN at step {state.global_step}, so the weights are no numbers any "
                "more. Fix: a lower learning_rate, in another output_dir"
            )
        if state.is_world_process_zero and logs:
            numbers = {key: value for key, value in logs.items() if isinstance(value, int | float)}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **numbers}) + "\n")

    def on_save(self, args, state, control, **kwargs) -> None:
        run_folder.refresh_page(self._path.parent)


class SaveAndStop(TrainerCallback):
    """On Ctrl-C, SIGTERM or SIGHUP: finish the step, save a checkpoint, stop; on another: at once.

    All processes stop at the same step.
    """

    def __init__(self) -> None:
        self.requested = 0.0  # when, or 0.0
        self._agreed = False  # by all processes

    def request(self, number: int, frame: Any) -> None:
        if self.requested:
            if time.monotonic() - self.requested < 2:  # a launcher repeats the first
                return
            raise KeyboardInterrupt
        self.requested = time.monotonic()
        if processes.rank() == 0:
            # Not sys.stderr: the signal may have interrupted a write to it. Accelerate's launcher
            # of one process ends at the first Ctrl-C, so a second one would not arrive here.
            text = (
                "\nstopping after this step, with a checkpoint unless save_strategy is 'no'. "
                f"Repeat the signal to stop at once (kill -INT {os.getpid()})\n"
            )
            os.write(2, text.encode())

    def on_step_end(self, args, state, control, **kwargs) -> None:
        # Processes get the signal at different moments. If only one stopped, the others would hang.
        if any(processes.gather([self.requested > 0])):
            self.requested = self.requested or time.monotonic()
            self._agreed = control.should_training_stop = True
            control.should_save = control.should_save or args.save_strategy != "no"
            # It comes before the checkpoint, and may take longer than a scheduler waits.
            control.should_evaluate = False

    def on_epoch_end(self, args, state, control, **kwargs) -> None:
        if self._agreed:  # the checkpoint is saved
            control.should_evaluate = control.should_save = False


class Resume(TrainerCallback):
    """A resumed run sees the rows of an uninterrupted one, at today's rate and intervals.

    Transformers 5.17 loads rate and intervals with the checkpoint. TRL 1.16 starts the order of its
    rows anew (utils.py:925), and its count of micro-batches, by which it generates
    (grpo_trainer.py:948).
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args, state, control, lr_scheduler=None, train_dataloader=None, **kwargs
    ) -> None:
        # Transformers looks for the last step only after one more.
        if state.global_step >= state.max_steps:
            raise AllStepsTrained
        state.compute_steps(args, state.max_steps)
        # Other schedulers follow the loss, or are a DeepSpeed file's own.
        if isinstance(lr_scheduler, torch.optim.lr_scheduler.LambdaLR):
            factors = [factor(lr_scheduler.last_epoch) for factor in lr_scheduler.lr_lambdas]
            lr_scheduler.base_lrs = [args.learning_rate for _ in factors]
            lr_scheduler._last_lr = [args.learning_rate * factor for factor in factors]
            groups = lr_scheduler.optimizer.param_groups
            for group, rate in zip(groups, lr_scheduler._last_lr, strict=True):
                group["lr"] = rate
        sampler: Any = getattr(train_dataloader, "batch_sampler", None)
        while hasattr(sampler, "batch_sampler"):  # Accelerate wraps it
            sampler = sampler.batch_sampler
        sampler = getattr(sampler, "sampler", None)
        if not isinstance(sampler, RepeatSampler):
            return
        accumulated, batches = args.gradient_accumulation_steps, len(train_dataloader)
        # As Transformers counts
        epochs, steps = divmod(state.global_step, math.ceil(batches / accumulated))
        if sampler.shuffle:
            for _ in range(epochs):
                torch.randperm(sampler.num_samples, generator=sampler.generator)
        self._trainer._step = epochs * batches + steps * accumulated


class LearnsNothing(TrainerCallback):
    """Warn if ten steps in a row have taught nothing, or the wrong thing.

    Args:
        weights: The rewards' weights by the names that TRL logs.
    """

    def __init__(self, weights: dict[str, float]) -> None:
        self._weights = weights
        self._steps: dict[str, int] = {}  # problem -> for how many steps it has held

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if not logs or "loss" not in logs:  # an evaluation's
            return
        every = int(state.logging_steps)
        self._steps = {
            problem: self._steps.get(problem, 0) + every for problem in self._problems(args, logs)
        }
        for problem, steps in self._steps.items():
            if steps - every < _STEPS <= steps:
                logger.warning("steps up to %d: %s", state.global_step, problem)

    def _problems(self, args: Any, logs: dict[str, Any]) -> Iterator[str]:
        if logs.get("completions/clipped_ratio") == 1.0:
            yield (
                "all completions were cut, most before their answer. Fix: raise "
                f"max_completion_length ({args.max_completion_length})"
            )
        elif logs.get("frac_reward_zero_std") == 1.0 or not logs.get("reward_std", 1.0):
            yield (
                "all completions of a prompt got the same reward, or none, so nothing is learned. "
                f"Fix: raise num_generations ({args.num_generations}), or train on other rows "
                "(docs/troubleshooting.md)"
            )
        spread = {
            name: abs(weight) * (logs.get(f"rewards/{name}/std") or 0.0)
            for name, weight in self._weights.items()
        }
        largest = max(spread, key=spread.__getitem__)
        judged = any(self._weights.get(name) for name in _ANSWERS)
        if judged and largest not in _ANSWERS and 2 * spread[largest] > sum(spread.values()):
            yield (
                f"the run learns {largest} (weight {self._weights[largest]:g}), which spreads "
                "more than all other rewards together. Fix: lower it in reward_weights"
            )


class Figures(ProgressCallback):
    """Print a line of figures per log entry, above Transformers' progress bar.

    ``metrics.jsonl`` has every metric.
    """

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self._began = time.monotonic(), state.global_step

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        figures = {key.removeprefix("eval_"): value for key, value in (logs or {}).items()}
        if self.training_bar is None or "loss" not in figures:  # the last entry sums up
            return
        parts = [f"step {state.global_step}/{state.max_steps}" if "loss" in logs else "eval"]
        means = [key for key in figures if re.fullmatch("rewards/[^/]+/mean", key)]
        names = {"reward": "reward", **{key: key.split("/")[1] for key in means}, **_SHOWN}
        for key, name in names.items():
            if isinstance(figures.get(key), float | int):
                parts.append(f"{name} {figures[key]:.3g}")
        began, first = self._began
        per_step = (time.monotonic() - began) / max(1, state.global_step - first)
        left = timedelta(seconds=round(per_step * (state.max_steps - state.global_step)))
        self.training_bar.write("  ".join([*parts, f"ETA {left}"]), file=sys.stderr)
