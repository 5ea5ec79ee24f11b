"""Checkpoints: a manifest of what was saved, which one a run resumes from, and what becomes of those after it."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import digest, write_whole
from r1_recipes.recipe import Recipe
from r1_recipes.runs import run_dir

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_STATE = "trainer_state.json"
_BATCH_KEYS = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_generations")


def write_manifest(checkpoint: Path) -> None:
    """Note size and checksum of every file below ``checkpoint``."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != MANIFEST)
    entries = {str(path.relative_to(checkpoint)): [path.stat().st_size, digest(path)] for path in files}
    write_whole(checkpoint / MANIFEST, json.dumps(entries, indent=1) + "\n")


def fault(checkpoint: Path) -> str | None:
    """Return how a checkpoint folder differs from its manifest; ``None`` if every file is as it was saved."""
    try:
        for name, (size, checksum) in json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8")).items():
            file = checkpoint / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} is {file.stat().st_size} bytes long, {size} were saved"
            if digest(file) != checksum:
                return f"{name} is not what was saved (checksum)"
    except FileNotFoundError:
        return f"no {MANIFEST}: torn while it was saved, or another program's"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"{MANIFEST}: {type(error).__name__}"
    return None


def newest_whole(output_dir: Path) -> Path | None:
    """Return the checkpoint with the highest step that is as it was saved; log the damaged ones."""
    for _, path in sorted(_numbered(output_dir), reverse=True):
        found = fault(path)
        if found is None:
            return path
        logger.warning("%s is torn (%s); skipped", path, found)
    return None


def _numbered(output_dir: Path) -> list[tuple[int, Path]]:
    found = ((re.fullmatch(r"checkpoint-(\d+)", path.name), path) for path in output_dir.glob("checkpoint-*"))
    return [(int(match[1]), path) for match, path in found if match and path.is_dir()]


def resume_point(recipe: Recipe, output_dir: Path) -> Path | None:
    """Return the recipe's ``resume_from_checkpoint`` if it names a folder, else the newest whole checkpoint of the run.

    Raises:
        RecipeError: there is none where one is named, it holds weights alone, it was made with another batch, or the run is finished.
    """
    found = _found(recipe, output_dir)
    if found is None:
        if run_dir.is_finished(output_dir) and not recipe.script.smoke:
            raise RecipeError(
                f"output_dir {output_dir} holds a finished run with other settings ("
                f"{', '.join(run_dir.changed_settings(recipe, output_dir))}) and no checkpoint to resume from; choose another folder "
                "(--output_dir …) or remove it"
            )
        return None
    # Transformers would silently begin with a fresh optimizer; FSDP and DeepSpeed keep theirs in a sub-folder.
    optimizer = any(found.glob("optimizer*")) or any(child.is_dir() for child in found.iterdir())
    if not optimizer or not (found / "scheduler.pt").is_file():
        raise RecipeError(
            f"{found}: holds no optimizer and schedule to resume (save_only_model: true?); to start a run of its own from these "
            f"weights: --model_name_or_path {found} --output_dir …"
        )
    count = processes.world_size()
    if not (found / (f"rng_state_{count - 1}.pth" if count > 1 else "rng_state.pth")).is_file():
        logger.warning("%s: holds no random state for each of %d processes, so the run will differ from an unstopped one", found, count)
    if run_dir.holds_steps(output_dir) and not recipe.script.smoke:
        _check_done(recipe, output_dir, found)
        _check_batch(recipe, output_dir, found)
    return found


def _found(recipe: Recipe, output_dir: Path) -> Path | None:
    named = recipe.training.resume_from_checkpoint
    if str(named).lower() == "false":
        if list(output_dir.glob("checkpoint-*")):
            raise RecipeError(
                f"output_dir {output_dir} holds checkpoints, and resume_from_checkpoint is false; remove it or choose another"
            )
        return None
    if not named or str(named).lower() == "true":
        return newest_whole(output_dir)
    # The same command again resumes from what it has done since; what came after the named one before was set aside.
    if run_dir.holds_steps(output_dir) and run_dir.recorded_settings(output_dir).get("resume_from_checkpoint") == named:
        newest = newest_whole(output_dir)
        if newest is not None:
            return newest
    found = fault(Path(named)) if Path(named).is_dir() else "no such folder"
    if found:
        raise RecipeError(
            f"{recipe.path}: resume_from_checkpoint: {named}: {found}. Fix: leave it out to resume from the newest whole one, or "
            f"start a run of its own from these weights: --model_name_or_path {named} --output_dir …"
        )
    return Path(named)


def _check_done(recipe: Recipe, output_dir: Path, checkpoint: Path) -> None:
    """Refuse changed settings if the checkpoint has all steps: none would be trained with them."""
    # These end a run early, or come after its last step.
    followed = ("resume_from_checkpoint", "max_steps", "num_train_epochs", "push_to_hub", "merge_adapters")
    changed = [key for key in run_dir.changed_settings(recipe, output_dir) if key not in followed and not key.startswith("hub_")]
    if changed and not run_dir.wants_more(recipe, checkpoint):
        raise RecipeError(
            f"output_dir {output_dir}: {checkpoint} has all steps, so nothing would be trained with today's {', '.join(changed)}. Fix: "
            "leave them as they were, raise max_steps or num_train_epochs, or go back to an earlier checkpoint"
        )


def _check_batch(recipe: Recipe, output_dir: Path, checkpoint: Path) -> None:
    """Refuse steps of other sizes than the checkpoint's: Transformers finds its place in the data by counting steps."""
    kept, changed = run_dir.recorded_settings(output_dir), run_dir.changed_settings(recipe, output_dir)
    sizes = [(kept, run_dir.last_processes(output_dir)), (recipe.settings, processes.world_size())]
    before, now = ([_rows_a_step(settings, count), settings.get("num_generations")] for settings, count in sizes)
    if None not in (before[0], now[0]) and before != now:
        then, today = (
            ", ".join([*(f"{name} {settings[name]}" for name in _BATCH_KEYS if name in settings), f"{count} processes"])
            for settings, count in sizes
        )
        raise RecipeError(
            f"output_dir {output_dir}: its checkpoint was made with another batch, so its place in the data and in the schedule would be "
            f"lost (then: {then}; now: {today}); change gradient_accumulation_steps so that rows a step stay the same, or start a run of "
            f"its own from these weights: --model_name_or_path {checkpoint} --output_dir …"
        )
    for key in (key for key in changed if key != "resume_from_checkpoint"):
        logger.warning("%s was %r in this run and is %r now", key, kept.get(key), recipe.settings.get(key))
    if {"learning_rate", "lr_scheduler_type", "warmup_steps"} & set(changed):
        logger.warning("learning rate and schedule are those of the checkpoint")


def _rows_a_step(settings: dict[str, Any], count: int | None) -> int | None:
    """Rows (GRPO: completions) of an optimizer step; ``None`` if the settings leave that to a default."""
    batch = settings.get("per_device_train_batch_size")
    return batch * settings.get("gradient_accumulation_steps", 1) * count if batch and count else None


def step_of(checkpoint: Path | None) -> int:
    """The step that a checkpoint was saved at; 0 for none."""
    return json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))["global_step"] if checkpoint else 0


def set_aside(output_dir: Path, resume_from: Path | None) -> None:
    """Move checkpoints and completions after ``resume_from`` to ``_abandoned-N``, with a copy of the records; delete nothing.

    A run that starts over leaves its records there too.
    """
    step = step_of(resume_from)
    own = resume_from is not None and resume_from.resolve().parent == output_dir.resolve()
    beyond = [path for number, path in _numbered(output_dir) if number > step or not own]
    if not beyond and (resume_from is not None or not run_dir.holds_steps(output_dir)):
        return
    folder = next(path for number in range(1, 1_000_000) if not (path := output_dir / f"_abandoned-{number}").exists())
    folder.mkdir()
    for path in output_dir.glob("*completions/completions_*.parquet"):
        if int(re.sub(r"\D", "", path.stem) or 0) > step:
            (folder / path.parent.name).mkdir(exist_ok=True)
            beyond.append(path)
    for path in beyond:
        path.rename(folder / path.relative_to(output_dir))
    for name in (run_dir.RUN_FILE, run_dir.RECIPE_FILE, run_dir.METRICS_FILE):
        if (output_dir / name).is_file():
            (shutil.copy if resume_from else shutil.move)(output_dir / name, folder / name)
    logger.warning("resuming from step %d; what the run held after that is now in %s (remove it to make room)", step, folder)
