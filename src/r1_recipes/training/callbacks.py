"""Trainer callbacks of every run, and its stop on a signal. Heavy: imports Transformers, and so torch."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from transformers import ProgressCallback, TrainerCallback
from transformers.trainer_utils import rotate_checkpoints

from r1_recipes.common import processes
from r1_recipes.common.files import write_whole
from r1_recipes.prompts.served_template import serve
from r1_recipes.report import page
from r1_recipes.runs import checkpoints
from r1_recipes.runs.run_dir import METRICS_FILE, Run
from r1_recipes.training.trainer import RowOrder

# Accelerate names a CPU "cpu:0" if there are several processes, a place that torch.load must be told of to resume there.
torch.serialization.register_package(1, lambda storage: None, lambda storage, place: storage if place == "cpu:0" else None)
# What a progress line shows after the rewards.
_SHOWN = {
    "tokens": "completions/mean_length",
    "truncated": "completions/clipped_ratio",
    "zero-std groups": "frac_reward_zero_std",
    "loss": "loss",
    "token accuracy": "mean_token_accuracy",
    "pair accuracy": "accuracy",
    "entropy": "entropy",
    "grad norm": "grad_norm",
}
# A launcher forwards the Ctrl-C that its workers have already had from the terminal.
_SAME_REQUEST_SECONDS = 2.0


class AllStepsTrained(Exception):
    """The checkpoint that a run goes on from has all its steps."""


class Records(TrainerCallback):
    """Append every log entry to ``metrics.jsonl``, and refresh ``report.html`` with every save.

    A resumed run first drops entries and completions past the step that it goes on from.
    """

    def __init__(self, output_dir: Path) -> None:
        self._output_dir, self._path = output_dir, output_dir / METRICS_FILE

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not self._path.exists():
            return
        kept = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            # The last line may be cut, if the machine went down while it was written.
            with contextlib.suppress(ValueError, KeyError):
                if json.loads(line)["step"] <= state.global_step and state.global_step:
                    kept.append(line)
        write_whole(self._path, "".join(line + "\n" for line in kept))
        for table in self._output_dir.glob("*completions/completions_*.parquet"):
            if int(re.sub(r"\D", "", table.stem) or 0) > state.global_step:
                table.unlink()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs:
            values = {"step": state.global_step, **{k: v for k, v in logs.items() if isinstance(v, int | float)}}
            with self._path.open("a", encoding="utf-8") as sink:
                sink.write(json.dumps(values) + "\n")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            page.refresh(self._output_dir)


class StopAndSave(TrainerCallback):
    """End training with a checkpoint when a stop was requested, and at once if the checkpoint has all steps already."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Transformers looks for the last step only after one more.
        if state.global_step >= state.max_steps:
            raise AllStepsTrained

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if self._any_rank_requested(args):
            self._run.stop_requested = True
            control.should_training_stop = True
            control.should_save = control.should_save or args.save_strategy != "no"
        return control

    def _any_rank_requested(self, args: Any) -> bool:
        # Ranks get the signal at different moments; one that stopped alone would hang the others.
        if args.world_size == 1:
            return self._run.stop_requested
        flag = torch.tensor(int(self._run.stop_requested), device=args.device)
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        return bool(flag.item())


@contextlib.contextmanager
def stop_on_signal(run: Run) -> Iterator[None]:
    """Set ``run.stop_requested`` on the first SIGINT, SIGTERM or SIGHUP; raise KeyboardInterrupt on the second."""
    saves = run.recipe.training.save_strategy != "no"
    promise = "with a checkpoint" if saves else "without a checkpoint, since save_strategy is 'no'"
    asked = None

    def request(number: int, frame: Any) -> None:
        nonlocal asked
        if asked is not None:
            if time.monotonic() - asked < _SAME_REQUEST_SECONDS:
                return
            raise KeyboardInterrupt
        asked = time.monotonic()
        run.stop_requested = True
        if processes.is_main_process():
            # Not through sys.stderr: the signal may have interrupted a write to it.
            os.write(2, f"\nstopping after this step, {promise}; once more to stop at once\n".encode())

    with processes.handled_by(request):
        yield


class Manifests(TrainerCallback):
    """Write a manifest into each checkpoint when all ranks have saved, then delete the oldest over ``save_total_limit``.

    Transformers would delete by the folders' times and before the manifest exists; after a clock was set back, the newest one.
    """

    limit: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.limit, args.save_total_limit = args.save_total_limit, None

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        processes.wait()
        if state.is_world_process_zero:
            checkpoints.write_manifest(Path(args.output_dir) / f"checkpoint-{state.global_step}")
            rotate_checkpoints(args.output_dir, self.limit, state.best_model_checkpoint)


class ServedTemplate(TrainerCallback):
    """Save checkpoints with the chat template that adds the system prompt."""

    def __init__(self, system_prompt: str) -> None:
        self._system_prompt = system_prompt

    def on_push_begin(self, args: Any, state: Any, control: Any, processing_class: Any = None, **kwargs: Any) -> None:
        serve(processing_class, self._system_prompt)

    def on_save(self, args: Any, state: Any, control: Any, processing_class: Any = None, **kwargs: Any) -> None:
        serve(processing_class, self._system_prompt)
        if args.should_save:
            processing_class.save_pretrained(f"{args.output_dir}/checkpoint-{state.global_step}")
        serve(processing_class, "")


class Progress(ProgressCallback):
    """Print one short line per log entry beside the progress bar; ``metrics.jsonl`` has every metric."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        line = progress_line(logs or {})
        if line and self.training_bar is not None:
            self.training_bar.write(f"step {state.global_step}: {line}", file=sys.stderr)


def progress_line(logs: dict[str, Any]) -> str:
    """Return reward and its parts, length, share cut, groups without a signal, entropy; or the loss."""
    shown = {"reward": logs.get("reward")}
    shown |= {key.split("/")[1]: value for key, value in logs.items() if re.fullmatch(r"rewards/[^/]+/mean", key)}
    shown |= {name: logs.get(key) for name, key in _SHOWN.items() if key != "loss" or "reward" not in logs}
    # Transformers writes some numbers as text.
    return ", ".join(f"{name} {float(value):.3g}" for name, value in shown.items() if value is not None)


def callbacks(run: Run, system_prompt: str) -> list[TrainerCallback]:
    """Return the callbacks of a run, in the order in which they must be called: the manifest lists what others saved, the page is last."""
    return [StopAndSave(run), RowOrder(), ServedTemplate(system_prompt), Manifests(), Records(run.output_dir)]
