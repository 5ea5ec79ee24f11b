"""Checkpoints: a manifest of saved files, and the checkpoint that a run resumes from."""

import json
import logging
import time
from pathlib import Path

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.files import write_whole
from r1_recipes.recipe import Recipe
from r1_recipes.recipe.types import Settings, namespace_value
from r1_recipes.runs import resume, run_dir, sources
from r1_recipes.runs.digests import digest, in_threads

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"


def write_manifest(checkpoint: Path) -> None:
    """Record size and checksum of every file in ``checkpoint``."""
    paths = sorted(checkpoint.rglob("*"))
    files = [path for path in paths if path.is_file() and path.name != MANIFEST]
    entries = {}
    for path, checksum in in_threads(digest, files).items():
        entries[str(path.relative_to(checkpoint))] = [path.stat().st_size, checksum]
    write_whole(checkpoint / MANIFEST, json.dumps(entries, indent=1) + "\n")


def manifest_mismatch(checkpoint: Path) -> str | None:
    """Return how a checkpoint folder differs from its manifest, or ``None`` if it does not."""
    try:
        entries = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
        for name, (size, _) in entries.items():
            file = checkpoint / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size} bytes, but {size} were saved"
        checksums = in_threads(digest, [checkpoint / name for name in entries])
        for name, (_, checksum) in entries.items():
            if checksums[checkpoint / name] != checksum:
                return f"{name} differs from the saved file (checksum)"
    except FileNotFoundError:
        return f"no {MANIFEST}: saving was interrupted, or another program wrote it"
    except run_dir.UNREADABLE as error:
        return f"{MANIFEST}: {type(error).__name__}"
    return None


def newest_intact(output_dir: Path) -> Path | None:
    """Return the intact checkpoint with the highest step. Log damaged checkpoints."""
    for _, path in sorted(_numbered(output_dir), reverse=True):
        difference = manifest_mismatch(path)
        if difference is None:
            return path
        logger.warning("%s is damaged (%s) and is skipped", path, difference)
    return None


def _numbered(output_dir: Path) -> list[tuple[int, Path]]:
    """Return step and folder of each checkpoint."""
    numbered = []
    for path in output_dir.glob("checkpoint-*"):
        step = path.name.removeprefix("checkpoint-")
        if step.isdecimal() and path.is_dir():
            numbered.append((int(step), path))
    return numbered


def resume_point(recipe: Recipe, output_dir: Path) -> Path | None:
    """Return the run's newest intact checkpoint, or the one that ``resume_from_checkpoint`` names.

    Return None if there is neither. Raise RecipeError if the run cannot resume from it.
    """
    newest = newest_intact(output_dir)
    named = str(recipe.training.resume_from_checkpoint)
    is_path = named.lower() not in ("", "none", "true", "false")
    if newest:
        _check_named(output_dir, newest, named, is_path)
    elif run_dir.is_finished(output_dir):
        raise RecipeError(
            f"output_dir {output_dir} holds a finished run with other settings and no "
            "checkpoint to resume from. Fix: choose another folder (--output_dir …), or delete it"
        )
    elif not is_path:
        return None
    checkpoint = newest or Path(named)
    new_run = (
        f"start a new run from these weights: --model_name_or_path {checkpoint} --output_dir …"
    )
    if not newest:
        problem = manifest_mismatch(checkpoint) if checkpoint.is_dir() else "no such folder"
        if problem:
            raise RecipeError(
                f"{recipe.path}: resume_from_checkpoint: {named}: {problem}. Fix: remove the "
                f"key, or {new_run}"
            )
    # Transformers would silently begin with a fresh optimizer.
    if not (checkpoint / "scheduler.pt").is_file():
        raise RecipeError(
            f"{checkpoint}: has no optimizer and schedule to resume (save_only_model: "
            f"true?). Fix: {new_run}"
        )
    if newest:
        _check_batch(recipe, output_dir, newest, new_run)
        _check_sources(recipe, output_dir, new_run)
        _check_settings(recipe, output_dir, newest, new_run)
    return checkpoint


def _check_named(output_dir: Path, newest: Path, named: str, is_path: bool) -> None:
    """Refuse a ``resume_from_checkpoint`` that goes back in a run with checkpoints.

    Warn if it names the checkpoint where the run began.
    """
    is_inside = is_path and Path(named).resolve().parent == output_dir.resolve()
    if named.lower() == "false" or (is_inside and Path(named).name != newest.name):
        raise RecipeError(
            f"output_dir {output_dir}: resume_from_checkpoint is {named}, but the run resumes "
            f"from its newest checkpoint, {newest.name}. "
            "Fix: remove the key. To go back, delete the later checkpoints, or choose "
            "another folder (--output_dir …)"
        )
    if is_path and not is_inside:
        logger.warning(
            "resume_from_checkpoint: ignoring %s, because this run already has its own "
            "checkpoint %s",
            named,
            newest.name,
        )


def _check_settings(recipe: Recipe, output_dir: Path, checkpoint: Path, new_run: str) -> None:
    """Refuse changed keys that the checkpoint cannot follow.

    Warn about changed keys that the remaining steps use.
    """
    before = run_dir.recorded_settings(output_dir)
    now = recipe.settings
    changed = run_dir.changed_settings(recipe, output_dir)
    if conflicts := resume.held_by_checkpoint(changed, before, now):
        parts = ", ".join(
            f"{key}: {before.get(key)!r} then, {now.get(key)!r} now ({subject})"
            for key, subject in conflicts
        )
        raise RecipeError(
            f"output_dir {output_dir}: {checkpoint.name} was saved with other settings: "
            f"{parts}. Fix: the old values, or {new_run}"
        )
    for key in changed:
        logger.warning(
            "%s was %r in this run and is %r now. The remaining steps use the new value",
            key,
            before.get(key),
            now.get(key),
        )
    if namespace_value(recipe, "sync_ref_model"):
        logger.warning(
            "sync_ref_model: checkpoints do not hold the reference model, so it starts again from "
            "model_name_or_path"
        )


def _check_sources(recipe: Recipe, output_dir: Path, new_run: str) -> None:
    """Refuse data and user code that changed since this run's last start.

    Accept changed code if the user typed ``--resume_from_checkpoint true``.
    """
    changed = sources.changed(run_dir.last_made_from(output_dir), sources.digests(recipe.settings))
    if not changed:
        return
    problem = f"{', '.join(changed)} changed since the last start of this run"
    fix = f"undo the change, or {new_run}"
    if all(place.startswith(sources.CODE) for place in changed):
        # Accept it only from the command line. In a recipe it would switch off this check forever.
        if (
            "resume_from_checkpoint" in recipe.typed
            and recipe.training.resume_from_checkpoint is True
        ):
            logger.warning("%s. The remaining steps use the new code", problem)
            return
        fix += ". If the change is a correction, --resume_from_checkpoint true resumes with it"
    raise RecipeError(f"output_dir {output_dir}: {problem}. Fix: {fix}")


def _check_batch(recipe: Recipe, output_dir: Path, checkpoint: Path, new_run: str) -> None:
    """Refuse a batch of another size than the checkpoint's, and other processes than DeepSpeed's.

    Transformers finds its position in the data by counting steps.
    """
    made_by = len(list(checkpoint.glob("rng_state_*.pth"))) or 1  # one file per process
    count = processes.world_size()
    if made_by != count and any(checkpoint.glob("global_step*/*optim_states.pt")):
        raise RecipeError(
            f"output_dir {output_dir}: {checkpoint.name} has DeepSpeed's optimizer states for "
            f"{made_by} processes, and DeepSpeed cannot load them into {count}. "
            f"Fix: --num_processes {made_by}, or {new_run}"
        )
    before = _batch(run_dir.recorded_settings(output_dir), made_by)
    now = _batch(recipe.settings, count)
    if before != now:
        raise RecipeError(
            f"output_dir {output_dir}: cannot resume with a different batch (checkpoint: {before}; "
            f"now: {now}), because the position in the data and the schedule would be lost. "
            "Fix: choose gradient_accumulation_steps so that the number of rows per step stays the "
            f"same, or {new_run}"
        )


def _batch(settings: Settings, count: int) -> str:
    """Describe a batch: the rows (GRPO: completions) of an optimizer step and of a group.

    Transformers' default is 8 rows per process.
    """
    rows = count * (settings.get("per_device_train_batch_size") or 8)
    rows *= settings.get("gradient_accumulation_steps") or 1
    return f"{rows} rows per step, num_generations {settings.get('num_generations')}"


def step_of(checkpoint: Path | None) -> int:
    """Return the step that a checkpoint was saved at, or 0 for ``None``."""
    if checkpoint is None:
        return 0
    path = checkpoint / "trainer_state.json"
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["global_step"])
    except run_dir.UNREADABLE as error:
        raise RecipeError(
            f"{path}: global_step: cannot be read: {first_line(error)} Fix: remove {checkpoint}"
        ) from error


def quarantine(output_dir: Path, resume_from: Path | None) -> None:
    """Rename damaged checkpoints that are newer than the one the run resumes from.

    Otherwise rotation would keep them and delete intact checkpoints.
    """
    for step, path in _numbered(output_dir):
        if step > step_of(resume_from):
            path.rename(output_dir / f"_torn-{time.time_ns()}-{path.name}")
