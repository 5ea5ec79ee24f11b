"""Trainer callbacks of every run, and stopping on a signal.

This module is heavy: it imports Transformers, and so torch.
"""

import contextlib
import copy
import json
import logging
import math
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerCallback
from transformers.trainer_utils import rotate_checkpoints

from r1_recipes.common import processes
from r1_recipes.common.console import bar
from r1_recipes.common.files import write_whole
from r1_recipes.models.weights import copy_processor
from r1_recipes.prompts import served
from r1_recipes.runs import checkpoints
from r1_recipes.runs.run_dir import METRICS_FILE, Run, refresh_page
from r1_recipes.training.engine import random_states, set_random_states
from r1_recipes.training.start import plan

logger = logging.getLogger(__name__)

# With several processes, Accelerate names the CPU "cpu:0". torch.load must know this device to
# resume on it.
torch.serialization.register_package(
    1, lambda storage: None, lambda storage, place: storage if place == "cpu:0" else None
)
# Metrics and their columns in the table, after step, reward and the parts of the reward.
_COLUMNS = {
    "loss": "loss",
    "mean_token_accuracy": "token acc",
    "accuracy": "pair acc",
    "completions/mean_length": "length",
    "completions/clipped_ratio": "cut",
    "num_tokens": "tokens",
    "entropy": "entropy",
    "kl": "KL",
    "frac_reward_zero_std": "flat",
    "tools/call_frequency": "calls",
    "grad_norm": "grad",
    "step_time": "s/step",
    "eta": "ETA",
}
# In a narrow terminal these columns are dropped first, before rewards.
_OPTIONAL = ("grad_norm", "tools/call_frequency", "frac_reward_zero_std", "kl", "entropy")
# A launcher forwards a Ctrl-C to workers that already got it from the terminal. Signals within this
# time count as one.
_SAME_REQUEST_SECONDS = 2.0


Values = dict[str, Any]  # of the table's columns, by metric


class AllStepsTrained(Exception):
    """Raised when the checkpoint that a run resumes from already has all steps."""


class Records(TrainerCallback):
    """Append log entries to ``metrics.jsonl``, and refresh ``report.html`` with every save.

    When a run resumes, entries after its checkpoint are removed first.
    """

    def __init__(self, output_dir: Path) -> None:
        self._path = output_dir / METRICS_FILE

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        logger.info("%s", plan(args, state.max_steps, args.world_size)[1])
        if not state.is_world_process_zero or not self._path.exists():
            return
        kept = ""
        step = state.global_step
        with open(self._path, encoding="utf-8") as source:
            lines = source.read().splitlines()
        for line in lines:
            # The last line may be incomplete, if the machine went down while it was written.
            with contextlib.suppress(ValueError, KeyError):
                if step and json.loads(line)["step"] <= step:
                    kept += line + "\n"
        write_whole(self._path, kept)
        for table in self._path.parent.glob("*completions/completions_*.parquet"):
            if int(re.sub(r"\D", "", table.stem) or 0) > step:
                table.unlink()

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if state.is_world_process_zero and logs:
            values = {"step": state.global_step}
            values |= {k: v for k, v in logs.items() if isinstance(v, int | float)}
            with open(self._path, "a", encoding="utf-8") as sink:
                sink.write(json.dumps(values) + "\n")

    def on_save(self, args, state, control, **kwargs) -> None:
        refresh_page(self._path.parent)


class StopAndSave(TrainerCallback):
    """End training with a checkpoint when a stop was requested.

    End it at once if the checkpoint already has all steps.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stops = False
        self._began = math.inf
        self._longest = _launcher_waits()

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self._began = time.monotonic()
        # Transformers checks for the last step only after another step.
        if state.global_step >= state.max_steps:
            raise AllStepsTrained

    def on_step_end(self, args, state, control, **kwargs):
        self._run.restore_state = _state_restorer(state)
        seconds = time.monotonic() - self._began
        if seconds > self._longest:
            logger.warning(
                "a step took %.0f s, but the launcher kills its processes %.0f s after Ctrl-C or "
                "SIGTERM, so a stopped run would lose the steps since its last checkpoint. Fix: "
                "start it with PET_SHUTDOWN_TIMEOUT=%.0f in the environment (slurm/: "
                "STOP_SECONDS)",
                seconds,
                self._longest,
                3 * seconds,
            )
            self._longest = math.inf
        # Ranks get the signal at different moments. If only one stopped, the others would hang.
        if any(processes.gather([self._run.stop_requested])):
            self._run.stop_requested = self._stops = True
            control.should_training_stop = True
            control.should_save = control.should_save or args.save_strategy != "no"
            # It comes before the checkpoint, and may take longer than whoever stops the run waits.
            # With save_strategy "best", it would decide whether there is a checkpoint.
            control.should_evaluate = False
        return control

    def on_epoch_end(self, args, state, control, **kwargs):
        if self._stops:  # the checkpoint is saved
            control.should_evaluate = control.should_save = False
        return control


def _launcher_waits() -> float:
    """Return how many seconds after a signal torch's launcher kills its processes."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return math.inf
    for name in ("PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"):
        if name in os.environ:
            return float(os.environ[name])
    return 30.0


def _state_restorer(state: Any) -> Callable[[], None]:
    """Return a function that restores what a failed step changes.

    These are random states, the token count, and what callbacks and trainers keep in the state,
    such as the rows that dynamic sampling took.
    """
    tokens = state.num_input_tokens_seen
    kept = copy.deepcopy(state.stateful_callbacks)
    python = random.getstate()
    states = random_states()

    def restore_state() -> None:
        state.num_input_tokens_seen = tokens
        state.stateful_callbacks = kept
        random.setstate(python)
        set_random_states(states)

    return restore_state


def save_last_step(run: Run, trainer: Any) -> bool:
    """Save a checkpoint of the last complete step if it is missing.

    Return whether it exists now. All ranks must call it.
    """
    step = trainer.state.global_step
    if not step or trainer.args.save_strategy == "no":
        return False
    if not processes.first(lambda: (run.output_dir / f"checkpoint-{step}").is_dir()):
        if run.restore_state:
            run.restore_state()  # the failed step is repeated
        trainer._save_checkpoint(trainer.model, trial=None)
        trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)
        # A rank that ends earlier has its launcher end rank 0, which is still writing the manifest.
        processes.wait()
    return True


@contextlib.contextmanager
def stop_on_signal(run: Run) -> Iterator[None]:
    """Set ``run.stop_requested`` on the first SIGINT, SIGTERM or SIGHUP.

    Raise KeyboardInterrupt on the second.
    """
    promise = "with a checkpoint"
    if run.recipe.training.save_strategy == "no":
        promise = "without a checkpoint, because save_strategy is 'no'"
    requested_at = None

    def request(number: int, frame: Any) -> None:
        nonlocal requested_at
        if requested_at is not None:
            if time.monotonic() - requested_at < _SAME_REQUEST_SECONDS:
                return
            raise KeyboardInterrupt
        requested_at = time.monotonic()
        run.stop_requested = True
        if processes.is_main_process():
            # Do not use sys.stderr: the signal may have interrupted a write to it.
            # accelerate's launcher of one process ends at the first Ctrl-C, so that a second one
            # does not reach this process.
            line = (
                f"\nstopping after this step, {promise}. Repeat the signal to stop at once "
                f"(kill -INT {os.getpid()}, if the launcher has ended)\n"
            )
            os.write(2, line.encode())

    with processes.handled_by(request):
        yield


class Manifests(TrainerCallback):
    """Write a manifest into each checkpoint when all ranks have saved it. Then delete old
    checkpoints.

    Transformers would delete by the folders' times and before the manifest exists. After a clock
    change it would delete the newest checkpoint.
    """

    limit: int | None = None

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.limit = args.save_total_limit
        args.save_total_limit = None

    def on_save(self, args, state, control, **kwargs) -> None:
        processes.wait()
        if state.is_world_process_zero:
            checkpoints.write_manifest(Path(args.output_dir) / f"checkpoint-{state.global_step}")
            rotate_checkpoints(args.output_dir, self.limit, state.best_model_checkpoint)


class ServedTemplate(TrainerCallback):
    """Save checkpoints with the chat template that adds the start of training prompts."""

    def __init__(self, system_prompt: str) -> None:
        self._system_prompt = system_prompt

    def on_push_begin(self, args, state, control, processing_class=None, **kwargs) -> None:
        served.add_system_prompt(processing_class, self._system_prompt)

    def on_save(self, args, state, control, processing_class=None, model=None, **kwargs) -> None:
        trained_with = processing_class.chat_template
        served.add_system_prompt(processing_class, self._system_prompt)
        if args.should_save:
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
            processing_class.save_pretrained(str(folder))
            copy_processor(getattr(model, "config", None), folder)
        processing_class.chat_template = trained_with


class Progress(ProgressCallback):
    """Print an aligned table with a row per log entry, on a terminal above a progress bar.

    ``metrics.jsonl`` has every metric.
    """

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.current_step = state.global_step
        self._header = ""
        self._seen: Values = {}  # the latest value of each metric
        if state.is_world_process_zero:
            self.training_bar = bar(state.max_steps, "steps", initial=state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        logs = logs or {}
        values = {key.removeprefix("eval_"): value for key, value in logs.items()}
        if self.training_bar is None or not values.keys() & {"reward", *_COLUMNS}:
            return
        timed = self.training_bar.format_dict
        step = f"{state.global_step}/{state.max_steps}"
        width = len(f"{state.max_steps}/{state.max_steps}")
        if values.keys() - logs.keys():
            step = "eval"
        values["step"] = step.rjust(width)
        steps = max(1, timed["n"] - timed["initial"])
        values.setdefault("step_time", timed["elapsed"] / steps)
        values["eta"] = tqdm.format_meter(**{**timed, "bar_format": "{remaining}"})
        self._seen |= values
        console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
        header, row = table_row(self._seen, values, console.width)
        with tqdm.external_write_mode(file=sys.stderr):
            if header != self._header:
                console.out(header, style="bold", highlight=False)
            console.out(row, highlight=False)
        self._header = header


def table_row(seen: Values, values: Values, width: int) -> tuple[str, str]:
    """Return header and row: ``values`` in the columns of the metrics ``seen`` so far, as many as
    fit.
    """
    parts = {}
    for key in seen:
        if re.fullmatch(r"rewards/[^/]+/mean", key):
            name = key.split("/")[1]
            if len(name) > 9:  # language_consistency becomes lang_cons
                name = re.sub(r"([^_]{4})[^_]+", r"\1", name)[:9]
            parts[key] = name
    names = {"step": "step", "reward": "reward", **parts, **_COLUMNS}
    if "reward" in seen:
        del names["loss"], names["num_tokens"]
    sizes = {
        key: max(len(name) + 2, 7, len(_cell(seen[key])) + 1)
        for key, name in names.items()
        if key in seen
    }
    for key in (*_OPTIONAL, *reversed(parts)):
        if sum(sizes.values()) > width:
            sizes.pop(key, None)
    header = row = ""
    for key, size in sizes.items():
        header += names[key].rjust(size)
        row += _cell(values.get(key, "")).rjust(size)
    return header, row


def _cell(value: Any) -> str:
    """Return a number in at most 6 characters, or a text unchanged."""
    try:
        # TRL logs None for a mean without values, and Transformers writes some numbers as text.
        number = float("nan" if value is None else value)
    except ValueError:
        return value
    if abs(number) >= 10:
        return tqdm.format_sizeof(number)
    return f"{number:.0e}" if 0 < abs(number) < 0.001 else f"{number:.3f}"


def callbacks(run: Run) -> list[TrainerCallback]:
    """Return a run's callbacks in calling order.

    The manifest comes after everything that saves files. The report page comes last.
    """
    return [
        StopAndSave(run),
        ServedTemplate(run.system_prompt),
        Manifests(),
        Records(run.output_dir),
    ]
