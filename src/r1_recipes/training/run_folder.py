"""One folder is one run: its settings (``run.json``), its checkpoints, and a lock while it works.

Every process decides from the same files, so nothing is sent between them.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import re
import shutil
import sys
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from r1_recipes.common import files, processes
from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.models.smoke import is_temporary
from r1_recipes.recipe import Recipe

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

# Keys that may change when a run resumes. Every other key, a new one of TRL's too, defines what
# was trained so far, and a change is refused.
FREE = re.compile(
    r"(save|logging|log|eval|hub|wandb|trackio|vllm|ddp|torch|gradient_checkpointing)_.*"
    r"|dataloader_(num_workers|pin_memory|persistent_workers|prefetch_factor)|max_eval_samples"
    r"|per_device_eval_batch_size|num_generations_eval"
    r"|max_steps|num_train_epochs|learning_rate|warmup_steps|lr_scheduler_(type|kwargs)"
    r"|beta|epsilon(_high)?|use_vllm|use_cpu|bf16|fp16|tf32|attn_implementation|use_liger_kernel"
    r"|gradient_checkpointing|trim_padding|report_to|run_name|project|push_to_hub|disable_tqdm"
    r"|gradient_accumulation_steps|per_device_train_batch_size"  # compared by rows per step
    r"|output_dir|num_completions_to_print|load_best_model_at_end|smoke"
)
# Transformers finds its place in the data by counting steps.
_ROWS = "per_device_train_batch_size x gradient_accumulation_steps x processes"
_PACKAGES = ("r1-recipes", "torch", "trl", "transformers", "datasets", "accelerate", "peft")


@dataclass
class Run:
    recipe: Recipe
    output_dir: Path
    checkpoint: Path | None = None  # to resume from
    system_prompt: str = ""  # of training; the saved chat template adds it


def open_run(recipe: Recipe) -> Run:
    """Return the recipe's run: a new one, or one that resumes from its newest checkpoint.

    The folder is locked until this process ends. Exit with 0 if the run is finished.

    Raises:
        RecipeError: The folder holds another run, or another process writes to it.
    """
    folder = Path(recipe.training.output_dir)
    if processes.rank() == 0:
        files.hold(folder)
    before = read(folder)
    run = Run(recipe, folder, newest_checkpoint(folder))
    finished = before.get("finished", False)
    if recipe.method == before.get("method") == "generate":
        # Other rules select anew. Weights or rows that have changed are refused by what is stored.
        finished = (
            finished
            and before["settings"] == recipe.settings
            and not any(
                path.stat().st_mtime > (folder / "run.json").stat().st_mtime
                for path in (
                    Path(str(recipe.script.dataset_name)),
                    *Path(str(recipe.model.model_name_or_path)).glob("*.safetensors"),
                )
                if path.exists()
            )
        )
    elif run.checkpoint or finished:
        compare(recipe, before)
        finished = finished and not (run.checkpoint and asks_for_more(run))
    if finished:
        logger.info("already done: %s. To train again, remove it or change --output_dir", folder)
        raise SystemExit(0)
    # DeepSpeed writes "latest", and maybe no scheduler.
    if run.checkpoint and not (
        (run.checkpoint / "scheduler.pt").is_file() or (run.checkpoint / "latest").is_file()
    ):
        # Transformers would begin with a fresh optimizer, in silence.
        raise RecipeError(
            f"save_only_model: {run.checkpoint} has no optimizer to resume with. Fix: another "
            f"--output_dir, with --model_name_or_path {run.checkpoint}"
        )
    if processes.rank() == 0:
        record(run)
    return run


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint. Torn ones are named, and renamed on rank 0.

    Rotation would count them, and delete complete ones.
    """
    found = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdecimal()]
    for path in sorted(found, key=lambda path: int(path.name[11:]), reverse=True):
        if is_whole(path):
            return path
        logger.warning("%s is not complete (the run was killed, or the disk full); skipped", path)
        if processes.rank() == 0:
            aside = folder / f"_torn-{path.name}"
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
    return None


def is_whole(checkpoint: Path) -> bool:
    """Return whether no ``kill -9``, full disk or power failure has cut a checkpoint.

    Transformers writes ``trainer_state.json`` last (5.17: trainer.py:3269). An earlier file may
    lack its end all the same, which the header of safetensors and the directory at the end of
    torch's files give away without reading them whole.
    """
    from safetensors import SafetensorError, safe_open  # heavy

    with suppress(OSError, ValueError, SafetensorError):
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        for file in checkpoint.glob("*.safetensors"):
            with safe_open(file, "np"):
                pass
        # DeepSpeed's are in a folder, and FSDP's optimizer ends in .bin.
        return all(
            zipfile.is_zipfile(file)
            for kind in ("*.pt", "*.pth", "*.bin")
            for file in checkpoint.rglob(kind)
        )
    return False


def compare(recipe: Recipe, before: dict[str, Any]) -> None:
    """Warn of keys that a run changes as it goes on.

    Raise RecipeError for keys that define the run, its command and its rows per step among them.
    """
    then = {**before.get("settings", {}), "method": before.get("method")}
    now = {**recipe.settings, "method": recipe.method}
    then[_ROWS], now[_ROWS] = before.get("rows_per_step"), rows_per_step(recipe.training)
    names = sorted({*then, *now} - {"output_dir"})
    changed = {key: (then.get(key), now.get(key)) for key in names if then.get(key) != now.get(key)}
    fixed = [key for key in changed if not FREE.fullmatch(key)]
    if fixed:
        parts = ", ".join("{} was {!r}, is {!r}".format(key, *changed[key]) for key in fixed)
        raise RecipeError(
            f"output_dir {recipe.training.output_dir}: already holds another run: {parts}. Fix: "
            "the old values, or another --output_dir"
        )
    for key, (old, new) in changed.items():
        logger.warning("%s was %r and is %r from here on", key, old, new)


def rows_per_step(training: Any) -> int | None:
    """Return the rows (GRPO: completions) of one optimizer step, over all processes."""
    size = getattr(training, "per_device_train_batch_size", None)
    return size and size * training.gradient_accumulation_steps * processes.world_size()


def asks_for_more(run: Run) -> bool:
    """Return whether the recipe has more steps than the finished run in this folder."""
    training = run.recipe.training
    done = json.loads((run.output_dir / "trainer_state.json").read_text(encoding="utf-8"))
    if training.max_steps > 0:
        return bool(training.max_steps > done["global_step"])
    # The recorded epoch is a fraction, so the last one can be slightly short.
    return bool(training.num_train_epochs > done["epoch"] + 0.01)


def record(run: Run) -> None:
    """Write this start into ``run.json``, and the recipe as it runs into ``recipe.yaml``."""
    recipe = run.recipe
    text = yaml.safe_dump(recipe.settings, sort_keys=False, allow_unicode=True)
    head = f"# {recipe.path} with its overrides, as {recipe.method} resolved it\n"
    files.write_whole(run.output_dir / "recipe.yaml", head + text)
    note(
        run.output_dir,
        recipe=recipe.path.stem,
        method=recipe.method,
        settings=recipe.settings,
        rows_per_step=rows_per_step(recipe.training),
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        versions={name: importlib.metadata.version(name) for name in _PACKAGES},
        argv=sys.argv[1:],
        finished=False,
    )


def warn_of_changed_rows(run: Run, rows: Dataset) -> None:
    """Say so if a resumed run trains on other rows than it began with."""
    now = [len(rows), rows._fingerprint]
    before = read(run.output_dir).get("rows", now)
    if run.checkpoint and before != now:
        logger.warning(
            "dataset_name %s: the rows changed since this run began (%d then, %d now). The "
            "remaining steps use the new rows",
            run.recipe.script.dataset_name,
            before[0],
            now[0],
        )
    if processes.rank() == 0:
        note(run.output_dir, rows=now)


def read(folder: Path) -> dict[str, Any]:
    """Return ``run.json``, or ``{}`` if there is none."""
    path = folder / "run.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def note(folder: Path, **values: Any) -> None:
    text = json.dumps({**read(folder), **values}, indent=2, ensure_ascii=False)
    files.write_whole(folder / "run.json", text + "\n")


def refresh_page(folder: Path) -> None:
    """Write the report page, on rank 0, unless the folder goes with a smoke run.

    A fault is a warning, because it must not stop the run.
    """
    if processes.rank() == 0 and folder.is_dir() and not is_temporary(folder):
        from r1_recipes.extras import report  # heavy

        try:
            files.write_whole(folder / report.REPORT_FILE, report.page([folder]))
        except Exception as error:
            logger.warning("%s was not written: %s", report.REPORT_FILE, first_line(error))
