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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from r1_recipes.common import locks, processes
from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.files import write_whole
from r1_recipes.models.smoke import is_temporary
from r1_recipes.recipe import Recipe
from r1_recipes.store import SHAPING

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
    r"|output_dir|resume_from_checkpoint|num_completions_to_print|load_best_model_at_end|smoke"
)
# What completions depend on. Those of a generation recipe are scored and selected anew.
GENERATED_BY = {*SHAPING, "backend", "num_generations", "temperature", "chat_template"}
GENERATED_BY |= {"dataset_name", "dataset_config", "dataset_mixture", "task_config"}
GENERATED_BY |= {"response_format", "system_prompt", "few_shot", "prompt_template"}
_PACKAGES = ("r1-recipes", "torch", "trl", "transformers", "datasets", "accelerate", "peft")


@dataclass
class Run:
    """A recipe and its folder."""

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
    folder, generates = Path(recipe.training.output_dir), recipe.method == "generate"
    if processes.is_main_process():
        locks.hold(folder)
    before = read(folder)
    run = Run(recipe, folder, None if generates else newest_checkpoint(folder))
    stored = generates and any(folder.glob("completions/*"))
    goes_on = bool(run.checkpoint or stored or before.get("finished"))
    changed = accepted_changes(recipe, folder, before) if goes_on else []
    further = changed if generates else run.checkpoint and trains_further(recipe, folder)
    if before.get("finished") and not further:
        logger.info("already done: %s. To train again, remove it or change --output_dir", folder)
        raise SystemExit(0)
    if run.checkpoint and not (run.checkpoint / "scheduler.pt").is_file():
        # Transformers would begin with a fresh optimizer, in silence.
        raise RecipeError(
            f"save_only_model: {run.checkpoint} has no optimizer to resume with. Fix: another "
            f"--output_dir, with --model_name_or_path {run.checkpoint}"
        )
    if processes.is_main_process():
        record(run, before if goes_on else {}, changed)
    return run


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint. Torn ones are named, and renamed on rank 0.

    Rotation would count them, and delete complete ones.
    """
    found = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdecimal()]
    for path in sorted(found, key=step_of, reverse=True):
        problem = what_is_torn(path)
        if not problem:
            return path
        logger.warning("%s is not complete (%s) and is skipped", path, problem)
        if processes.is_main_process():
            aside = folder / f"_torn-{path.name}"
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
    return None


def step_of(checkpoint: Path | None) -> int:
    """Return the step that a checkpoint was saved at, 0 for ``None``."""
    return int(checkpoint.name[11:]) if checkpoint else 0


def what_is_torn(checkpoint: Path) -> str:
    """Return what ``kill -9``, a full disk or a power failure left incomplete, or ``""``.

    Transformers writes ``trainer_state.json`` last (5.17: trainer.py:3269). An earlier file may
    lack its end all the same, which the header of safetensors and the directory at the end of
    torch's files give away without reading them whole.
    """
    from safetensors import SafetensorError, safe_open  # heavy

    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        for file in checkpoint.glob("*.safetensors"):
            with safe_open(file, "np"):
                pass
        return "".join([f.name for f in checkpoint.glob("*.pt*") if not zipfile.is_zipfile(f)][:1])
    except (OSError, ValueError, SafetensorError) as error:
        return first_line(error)


def accepted_changes(recipe: Recipe, folder: Path, before: dict[str, Any]) -> list[str]:
    """Return the keys that a run changes as it resumes, each with a warning.

    Raise RecipeError for another recipe, a key that defines the run, or other rows per step.
    """
    where = f"output_dir {folder}: already holds "
    fix = "Fix: the old values, or another --output_dir"
    if not before:
        raise RecipeError(f"{where}checkpoints of another program. Fix: another --output_dir")
    if (before.get("recipe"), before.get("method")) != (recipe.name, recipe.method):
        of = f"{before.get('method')} run of {before.get('recipe')!r}"
        raise RecipeError(
            f"{where}a {of}, not the {recipe.method} run of {recipe.name!r}. "
            "Fix: another --output_dir"
        )
    then, now = before.get("settings", {}), recipe.settings
    adapted = set(recipe.adapted)  # keys that follow the machine
    changed = [key for key in sorted({*then, *now} - adapted) if then.get(key) != now.get(key)]
    if recipe.method == "generate":
        fixed = [key for key in changed if key in GENERATED_BY]
    else:
        fixed = [key for key in changed if not FREE.fullmatch(key)]
    if fixed:
        parts = ", ".join(f"{key} was {then.get(key)!r}, is {now.get(key)!r}" for key in fixed)
        raise RecipeError(f"{where}a run with other settings: {parts}. {fix}")
    rows = before.get("rows_per_step"), rows_per_step(recipe.training)
    if rows[0] not in (None, rows[1]):
        # Transformers finds its place in the data by counting steps.
        raise RecipeError(
            f"{where}a run of {rows[0]} rows per step, and now it would be {rows[1]}. Fix: "
            "gradient_accumulation_steps (or per_device_train_batch_size) that gives as many rows"
        )
    for key in changed:
        if key not in ("output_dir", "resume_from_checkpoint"):
            logger.warning("%s was %r and is %r from here on", key, then.get(key), now.get(key))
    return changed


def rows_per_step(training: Any) -> int | None:
    """Return the rows (GRPO: completions) of one optimizer step, over all processes."""
    size = getattr(training, "per_device_train_batch_size", None)
    return size and size * training.gradient_accumulation_steps * processes.world_size()


def trains_further(recipe: Recipe, folder: Path) -> bool:
    """Return whether the recipe asks for more steps than the finished run in this folder has."""
    with suppress(OSError, ValueError, LookupError):
        done = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
        if recipe.training.max_steps > 0:
            return bool(recipe.training.max_steps > done["global_step"])
        # The recorded epoch is a fraction, so the last one can be slightly short.
        return bool(recipe.training.num_train_epochs > done["epoch"] + 0.01)
    return False


def record(run: Run, before: dict[str, Any], changed: Sequence[str]) -> None:
    """Write this start into ``run.json``, and at the first one the recipe into ``recipe.yaml``.

    ``before`` is the record of the run that goes on, ``{}`` for a new run.
    """
    recipe, settings = run.recipe, run.recipe.settings
    start: dict[str, Any] = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "argv": sys.argv[1:],
    }
    entry = {**before, "settings": settings, "finished": False}
    if before:
        start |= {
            "step": step_of(run.checkpoint),
            "settings": {k: settings.get(k) for k in changed},
        }
        entry["continued"] = [*before.get("continued", []), start]
    else:
        text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
        head = f"# {recipe.path} with its overrides, as {recipe.method} resolved it\n"
        write_whole(run.output_dir / "recipe.yaml", head + text)
        entry |= {"recipe": recipe.name, "method": recipe.method, **start}
        entry["rows_per_step"] = rows_per_step(recipe.training)
    write(run.output_dir, entry)


def warn_of_changed_rows(run: Run, rows: Dataset) -> None:
    """Say so if a resumed run trains on other rows than it began with."""
    now, entry = [len(rows), rows._fingerprint], read(run.output_dir)
    before = entry.get("rows", now)
    if run.checkpoint and before != now:
        logger.warning(
            "dataset_name %s: the rows changed since this run began (%d then, %d now). The "
            "remaining steps use the new rows",
            run.recipe.script.dataset_name,
            before[0],
            now[0],
        )
    if processes.is_main_process():
        write(run.output_dir, {**entry, "rows": now})


def mark_finished(folder: Path) -> None:
    """Record that the run in this folder has reached its end."""
    write(folder, {**read(folder), "finished": True})


def read(folder: Path) -> dict[str, Any]:
    """Return ``run.json``, or ``{}`` without a readable one."""
    with suppress(OSError, ValueError, TypeError):
        return {**json.loads((folder / "run.json").read_text(encoding="utf-8"))}
    return {}


def write(folder: Path, entry: dict[str, Any]) -> None:
    """Write ``run.json``."""
    write_whole(folder / "run.json", json.dumps(entry, indent=2, ensure_ascii=False) + "\n")


def refresh_page(folder: Path) -> None:
    """Write the report page, on rank 0, unless the folder goes with a smoke run."""
    if processes.is_main_process() and folder.is_dir() and not is_temporary(folder):
        from r1_recipes.extras import report  # heavy

        report.refresh(folder)
