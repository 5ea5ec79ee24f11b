"""What a run's checkpoints take on the disk that its output folder is on."""

import math
import shutil
from pathlib import Path
from typing import Any

from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, Report
from r1_recipes.extras.preflight.memory import Shape, device_memory, training_state
from r1_recipes.recipe import Recipe


def check_disk(report: Report, recipe: Recipe, shape: Shape, steps: int, shards: int) -> None:
    """Compare the checkpoints that lie there at once, and the model saved at the end, with the free
    space.
    """
    training, folder = recipe.training, Path(recipe.training.output_dir).absolute()
    weights, whole = checkpoint_bytes(recipe, shape, shards)
    at_once = checkpoints_at_once(training, steps)
    new = max(0, at_once - len([*folder.glob("checkpoint-*")]))
    needed = new * whole + weights
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    said = (
        f"output_dir: {at_once} checkpoints at a time, {whole / 1e9:.2f} GB each, and the "
        f"model take {needed / 1e9:.1f} GB more; "
        f"the disk of {folder} has {free / 1e9:.1f} GB free"
    )
    if needed > free:
        said += (
            ". Fix: another --output_dir, a lower save_total_limit, or save_only_model: true "
            "(such a checkpoint cannot be resumed)"
        )
    level = OK
    if needed > free:
        level = (
            WARNING if device_memory(recipe) is None else ERROR
        )  # no GPU: another machine may train
    report.add(level, "fit.disk", said)


def checkpoint_bytes(recipe: Recipe, shape: Shape, shards: int) -> tuple[float, float]:
    """Return the bytes of a saved model (its adapters, if it has any) and of a checkpoint, in the
    files of all processes together.
    """
    state = training_state(recipe, shape, shards)
    weights = float(shape.trained_bytes) if recipe.model.use_peft else state["weights"]
    return weights, weights if recipe.training.save_only_model else weights + state["optimizer"]


def checkpoints_at_once(training: Any, steps: int) -> int:
    """Return how many checkpoints lie on the disk at a time: an old one goes when the new one has
    been written.
    """
    strategy = getattr(training.save_strategy, "value", training.save_strategy)
    if strategy == "no":
        return 0
    every = (
        training.save_steps
        if training.save_steps >= 1
        else max(1, math.ceil(steps * training.save_steps))
    )
    saves = (
        math.ceil(steps / every) if strategy == "steps" else math.ceil(training.num_train_epochs)
    )
    return min(saves, training.save_total_limit + 1) if training.save_total_limit else saves
