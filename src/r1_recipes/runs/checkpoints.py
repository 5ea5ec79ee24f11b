"""Checkpoints: a manifest of what was saved, and which one a run resumes from."""

import json
import logging
import re
import time
from pathlib import Path
from typing import Any

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.files import digest, file_text, in_threads, write_whole
from r1_recipes.recipe import Recipe
from r1_recipes.recipe.types import namespace_value
from r1_recipes.runs import resume, run_dir, sources

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"


def write_manifest(checkpoint: Path) -> None:
    """Note size and checksum of every file below ``checkpoint``."""
    files = sorted(
        path for path in checkpoint.rglob("*") if path.is_file() and path.name != MANIFEST
    )
    checksums = in_threads(digest, files)
    entries = {
        str(path.relative_to(checkpoint)): [path.stat().st_size, checksums[path]] for path in files
    }
    write_whole(checkpoint / MANIFEST, json.dumps(entries, indent=1) + "\n")


def fault(checkpoint: Path) -> str | None:
    """Return how a checkpoint folder differs from its manifest; ``None`` if every file is as it was
    saved.
    """
    try:
        entries = json.loads(file_text(checkpoint / MANIFEST))
        for name, (size, _) in entries.items():
            file = checkpoint / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} is {file.stat().st_size} bytes long, {size} were saved"
        checksums = in_threads(digest, [checkpoint / name for name in entries])
        for name, (_, checksum) in entries.items():
            if checksums[checkpoint / name] != checksum:
                return f"{name} is not what was saved (checksum)"
    except FileNotFoundError:
        return f"no {MANIFEST}: torn while it was saved, or another program's"
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST}: {type(error).__name__}"
    return None


def newest_whole(output_dir: Path) -> Path | None:
    """Return the checkpoint with the highest step that is as it was saved; log the damaged ones."""
    for _, path in sorted(_numbered(output_dir), reverse=True):
        difference = fault(path)
        if difference is None:
            return path
        logger.warning("%s is torn (%s); skipped", path, difference)
    return None


def _numbered(output_dir: Path) -> list[tuple[int, Path]]:
    """Return the checkpoint folders, each after its step."""
    steps = {
        path: path.name.removeprefix("checkpoint-")
        for path in output_dir.glob("checkpoint-*")
        if path.is_dir()
    }
    return [(int(step), path) for path, step in steps.items() if re.fullmatch(r"\d+", step)]


def resume_point(recipe: Recipe, output_dir: Path) -> Path | None:
    """Return the newest whole checkpoint of the run; if it has none, the one that
    ``resume_from_checkpoint`` names.
    """
    newest, named = newest_whole(output_dir), str(recipe.training.resume_from_checkpoint)
    is_path = named.lower() not in ("", "none", "true", "false")
    if newest:
        _check_named(output_dir, newest, named, is_path)
    elif run_dir.is_finished(output_dir):
        raise RecipeError(
            f"output_dir {output_dir} holds a finished run with other settings and no "
            f"checkpoint to resume from; choose another folder "
            "(--output_dir …) or remove it"
        )
    elif not is_path:
        return None
    checkpoint = newest or Path(named)
    own_run = (
        f"start a run of its own from these weights: --model_name_or_path {checkpoint} "
        f"--output_dir …"
    )
    if not newest:
        problem = fault(checkpoint) if checkpoint.is_dir() else "no such folder"
        if problem:
            raise RecipeError(
                f"{recipe.path}: resume_from_checkpoint: {named}: {problem}. Fix: leave it "
                f"out, or {own_run}"
            )
    if not (
        checkpoint / "scheduler.pt"
    ).is_file():  # Transformers would silently begin with a fresh optimizer
        raise RecipeError(
            f"{checkpoint}: holds no optimizer and schedule to resume (save_only_model: "
            f"true?). Fix: {own_run}"
        )
    if newest:
        _check_batch(recipe, output_dir, newest, own_run)
        _check_sources(recipe, output_dir, own_run)
        _check_settings(recipe, output_dir, newest, own_run)
    return checkpoint


def _check_named(output_dir: Path, newest: Path, named: str, is_path: bool) -> None:
    """Refuse a ``resume_from_checkpoint`` that goes back in a run with checkpoints; warn of one
    where the run began.
    """
    is_inside = is_path and Path(named).resolve().parent == output_dir.resolve()
    if named.lower() == "false" or (is_inside and Path(named).name != newest.name):
        raise RecipeError(
            f"output_dir {output_dir}: resume_from_checkpoint is {named}, and the run goes "
            f"on from its newest checkpoint, {newest.name}. "
            "Fix: leave the key out; to go back, remove the later checkpoints; or choose "
            "another folder (--output_dir …)"
        )
    if is_path and not is_inside:
        logger.warning(
            "resume_from_checkpoint: %s was where the run began; it goes on from its own %s",
            named,
            newest.name,
        )


def _check_settings(recipe: Recipe, output_dir: Path, checkpoint: Path, own_run: str) -> None:
    """Refuse changed keys that the checkpoint cannot follow; warn of those that the remaining steps
    do follow.
    """
    before, now, changed = (
        run_dir.recorded_settings(output_dir),
        recipe.settings,
        run_dir.changed_settings(recipe, output_dir),
    )
    if held := resume.held_by_checkpoint(changed, before, now):
        parts = ", ".join(
            f"{key} was {before.get(key)!r}, is {now.get(key)!r} ({about})" for key, about in held
        )
        raise RecipeError(
            f"output_dir {output_dir}: {checkpoint.name} was made with other settings: "
            f"{parts}. Fix: the old values, or {own_run}"
        )
    for key in changed:
        logger.warning(
            "%s was %r in this run and is %r now; the remaining steps follow it",
            key,
            before.get(key),
            now.get(key),
        )
    if namespace_value(recipe, "sync_ref_model"):
        logger.warning(
            "sync_ref_model: no checkpoint holds the reference model; it starts again from "
            "model_name_or_path"
        )


def _check_sources(recipe: Recipe, output_dir: Path, own_run: str) -> None:
    """Refuse data and own code that are not those of this run's last start; code that was mended is
    taken if the user says so.
    """
    changed = sources.changed(run_dir.last_made_from(output_dir), sources.digests(recipe.settings))
    if not changed:
        return
    problem, fix = (
        f"{', '.join(changed)} changed since this run's last start",
        f"undo the change, or {own_run}",
    )
    if all(place.startswith(sources.CODE) for place in changed):
        # Typed for this one call: a recipe that always said so would never be asked again.
        if (
            "resume_from_checkpoint" in recipe.typed
            and recipe.training.resume_from_checkpoint is True
        ):
            logger.warning("%s; the remaining steps are judged by today's", problem)
            return
        fix += "; if it was mended, --resume_from_checkpoint true goes on with it"
    raise RecipeError(f"output_dir {output_dir}: {problem}. Fix: {fix}")


def _check_batch(recipe: Recipe, output_dir: Path, checkpoint: Path, own_run: str) -> None:
    """Refuse steps of other sizes than the checkpoint's: Transformers finds its place in the data
    by counting steps.
    """
    made_by = len(list(checkpoint.glob("rng_state_*.pth"))) or 1  # one for each process
    before, now = (
        _batch(run_dir.recorded_settings(output_dir), made_by),
        _batch(recipe.settings, processes.world_size()),
    )
    if before != now:
        raise RecipeError(
            f"output_dir {output_dir}: its checkpoint was made with another batch, so its "
            f"place in the data and in the schedule would be "
            f"lost (then: {before}; now: {now}); "
            f"change gradient_accumulation_steps so that rows a step stay the same, or {own_run}"
        )


def _batch(settings: dict[str, Any], count: int) -> str:
    """Rows (GRPO: completions) of an optimizer step and of a group; Transformers' default is 8 rows
    a process.
    """
    rows = (
        (settings.get("per_device_train_batch_size") or 8)
        * (settings.get("gradient_accumulation_steps") or 1)
        * count
    )
    return f"{rows} rows a step, num_generations {settings.get('num_generations')}"


def step_of(checkpoint: Path | None) -> int:
    """The step that a checkpoint was saved at; 0 for none."""
    if checkpoint is None:
        return 0
    path = checkpoint / "trainer_state.json"
    try:
        return int(json.loads(file_text(path, run_dir.MAX_STATE_BYTES))["global_step"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise RecipeError(
            f"{path}: global_step: cannot be read: {first_line(error)} Fix: remove {checkpoint}"
        ) from error


def set_torn_aside(output_dir: Path, resume_from: Path | None) -> None:
    """Rename the torn checkpoints after the one that the run goes on from: rotation would keep them
    and delete whole ones.
    """
    for step, path in _numbered(output_dir):
        if step > step_of(resume_from):
            path.rename(output_dir / f"_torn-{time.time_ns()}-{path.name}")
