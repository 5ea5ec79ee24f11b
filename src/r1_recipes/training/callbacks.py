"""What every run does beside training: metrics, a table, stopping, resuming, a word in time.

Heavy: imports Transformers, and so torch.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerCallback
from trl.trainer.utils import RepeatSampler

from r1_recipes.common import processes
from r1_recipes.common.console import bar
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
_COLUMNS = {
    "step": "step",
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
    "eta": "ETA",
}  # of the table, after each reward's mean


class RewardFailed(RecipeError):
    """A reward raised. All processes raise this at the same place, so they can save together."""


class AllStepsTrained(Exception):
    """The checkpoint has all steps: the run was killed before its last save."""


class Metrics(TrainerCallback):
    """Append each log entry to ``metrics.jsonl``, and refresh ``report.html`` with every save.

    A resumed run drops the entries, and the tables of completions, after its checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "metrics.jsonl"

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        what = "completions" if hasattr(args, "num_generations") else "rows"
        logger.info("%d steps of %s %s", state.max_steps, run_folder.rows_per_step(args), what)
        if not state.is_world_process_zero:
            return
        kept = ""
        for line in (
            self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else ()
        ):
            # The last line may be torn, if the machine went down while it was written.
            with contextlib.suppress(ValueError, KeyError):
                if state.global_step and json.loads(line)["step"] <= state.global_step:
                    kept += line + "\n"
        write_whole(self._path, kept)
        for table in self._folder.glob("*completions/completions_*.parquet"):
            if int(re.sub(r"\D", "", table.stem) or 0) > state.global_step:
                table.unlink()

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
        run_folder.refresh_page(self._folder)


class SaveAndStop(TrainerCallback):
    """On Ctrl-C, SIGTERM or SIGHUP: finish the step, save a checkpoint, stop; on another: at once.

    All processes stop at the same step.
    """

    def __init__(self) -> None:
        self.requested = 0.0  # when, or 0.0
        self._agreed = False  # by all processes

    def request(self, number: int, frame: Any) -> None:
        """Handle a signal."""
        if self.requested:
            if time.monotonic() - self.requested < 2:  # a launcher repeats the first
                return
            raise KeyboardInterrupt
        self.requested = time.monotonic()
        if processes.is_main_process():
            # Not sys.stderr: the signal may have interrupted a write to it. Accelerate's launcher
            # of one process ends at the first Ctrl-C, so a second one would not arrive here.
            text = "stopping after this step, with a checkpoint unless save_strategy is 'no'. "
            text += f"Repeat the signal to stop at once (kill -INT {os.getpid()})"
            os.write(2, f"\n{text}\n".encode())

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
        state.compute_steps(args, state.max_steps)
        # Other schedulers follow the loss, or are a DeepSpeed file's own.
        if isinstance(lr_scheduler, torch.optim.lr_scheduler.LambdaLR):
            count, done = len(lr_scheduler.lr_lambdas), lr_scheduler.last_epoch
            lr_scheduler.base_lrs = [args.learning_rate] * count
            rates = [args.learning_rate * factor(done) for factor in lr_scheduler.lr_lambdas]
            for group, rate in zip(lr_scheduler.optimizer.param_groups, rates, strict=True):
                group |= {"initial_lr": args.learning_rate, "lr": rate}
            lr_scheduler._last_lr = rates
        sampler: Any = getattr(train_dataloader, "batch_sampler", None)
        while hasattr(sampler, "batch_sampler"):  # Accelerate wraps it
            sampler = sampler.batch_sampler
        sampler = getattr(sampler, "sampler", None)
        if not isinstance(sampler, RepeatSampler):
            return
        if sampler.shuffle:
            for _ in range(int(state.epoch or 0)):
                torch.randperm(sampler.num_samples, generator=sampler.generator)
        accumulated = args.gradient_accumulation_steps
        per_epoch = math.ceil(len(train_dataloader) / accumulated)  # as Transformers counts
        self._trainer._step = state.global_step % per_epoch * accumulated

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        # Transformers looks for the last step only after one more.
        if state.global_step >= state.max_steps:
            if args.load_best_model_at_end and state.best_model_checkpoint:
                self._trainer._load_best_model()
            raise AllStepsTrained


class LearnsNothing(TrainerCallback):
    """Warn, once for each cause, that ten steps in a row have taught nothing, or the wrong thing.

    Args:
        weights: The rewards' weights by the names that TRL logs.
    """

    def __init__(self, weights: dict[str, float]) -> None:
        self._weights = weights
        self._held: dict[str, int] = {}  # cause -> since which step it holds
        self._latest = 0  # step that was logged
        self._said: set[str] = set()

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if not logs or "loss" not in logs:  # an evaluation's
            return
        found = dict(self._causes(args, logs))
        before = self._latest or max(0, state.global_step - max(1, int(state.logging_steps)))
        self._latest = state.global_step
        self._held = {cause: self._held.get(cause, before) for cause in found}
        for cause, began in self._held.items():
            if state.global_step - began >= _STEPS and cause not in self._said:
                self._said.add(cause)
                logger.warning("steps %d to %d: %s", began + 1, state.global_step, found[cause])

    def _causes(self, args: Any, logs: dict[str, Any]) -> Iterator[tuple[str, str]]:
        cut = logs.get("completions/clipped_ratio") == 1.0
        if cut:
            yield (
                "cut",
                (
                    "all completions were cut, most before their answer. Fix: raise "
                    f"max_completion_length ({args.max_completion_length})"
                ),
            )
        elif logs.get("frac_reward_zero_std") == 1.0 or logs.get("reward_std") == 0:
            yield (
                "flat",
                (
                    "all completions of a prompt got the same reward, so nothing is learned. Fix: "
                    f"raise num_generations ({args.num_generations}), or train on other rows "
                    "(docs/troubleshooting.md)"
                ),
            )
        spread = {
            name: abs(weight) * (logs.get(f"rewards/{name}/std") or 0.0)
            for name, weight in self._weights.items()
        }
        largest = max(spread, key=spread.__getitem__)
        judged = any(self._weights.get(name) for name in _ANSWERS)
        if judged and largest not in _ANSWERS and 2 * spread[largest] > sum(spread.values()):
            yield (
                f"one {largest}",
                (
                    f"the run learns {largest} (weight {self._weights[largest]:g}), which spreads "
                    "more than all other rewards together. Fix: lower it in reward_weights"
                ),
            )


class Table(ProgressCallback):
    """Print a row of figures per log entry, on a terminal above a progress bar.

    ``metrics.jsonl`` has every metric.
    """

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.current_step = state.global_step
        self._header = ""
        if state.is_world_process_zero:
            self.training_bar = bar(state.max_steps, "steps", initial=state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        logs = logs or {}
        values = {key.removeprefix("eval_"): value for key, value in logs.items()}
        if self.training_bar is None or not values.keys() & {"reward", "loss", "accuracy"}:
            return
        timed = self.training_bar.format_dict
        evaluated = "loss" not in logs
        values["step"] = "eval" if evaluated else f"{state.global_step}/{state.max_steps}"
        done = max(1, timed["n"] - timed["initial"])
        values.setdefault("step_time", timed["elapsed"] / done)
        values["eta"] = tqdm.format_meter(**{**timed, "bar_format": "{remaining}"})
        header, row = table_row(values)
        with tqdm.external_write_mode(file=sys.stderr):
            if header != self._header and not evaluated:
                sys.stderr.write(header + "\n")
                self._header = header
            sys.stderr.write(row + "\n")


def table_row(values: dict[str, Any]) -> tuple[str, str]:
    """Return header and row of the metrics that have a column, each reward's mean among them."""
    columns = dict(_COLUMNS)
    parts = {
        key: key.split("/")[1][:9] for key in values if re.fullmatch("rewards/[^/]+/mean", key)
    }
    if "reward" in values:  # a policy's loss says nothing
        columns = {"step": "step", "reward": "reward", **parts, **columns}
        del columns["loss"]
    shown = {key: name for key, name in columns.items() if key in values}
    return (
        "".join(name.rjust(10) for name in shown.values()),
        "".join(_cell(values[key]).rjust(10) for key in shown),
    )


def _cell(value: Any) -> str:
    """Return a number with three digits, or a text unchanged. Transformers logs some as text."""
    with contextlib.suppress(TypeError, ValueError):
        return f"{float(value):.3g}"
    return "-" if value is None else str(value)
