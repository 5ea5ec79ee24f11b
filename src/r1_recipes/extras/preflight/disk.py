"""Check that the checkpoints of a run fit on the disk."""

import math
import shutil
from pathlib import Path
from typing import Any

from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, Report
from r1_recipes.extras.preflight.memory import Shape, device_memory, training_state
from r1_recipes.recipe import Recipe


def check_disk(report: Report, recipe: Recipe, shape: Shape, steps: int, shards: int) -> None:
    """Compare the size of the checkpoints and the final model with the free space."""
    folder = Path(recipe.training.output_dir).absolute()
    weights, whole = checkpoint_bytes(recipe, shape, shards)
    at_once = checkpoints_at_once(recipe.training, steps)
    present = len([*folder.glob("checkpoint-*")])
    needed = max(0, at_once - present) * whole + weights
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    message = (
        f"output_dir: {at_once} checkpoints of {whole / 1e9:.2f} GB and the final model need "
        f"{needed / 1e9:.1f} GB more; the disk of {folder} has {free / 1e9:.1f} GB free"
    )
    level = OK
    if needed > free:
        message += (
            ". Fix: another --output_dir, a lower save_total_limit, or save_only_model: true "
            "(a run cannot resume from such a checkpoint)"
        )
        # Without a GPU, the training will probably run on another machine.
        level = WARNING if device_memory(recipe) is None else ERROR
    report.add(level, "fit.disk", message)


def checkpoint_bytes(recipe: Recipe, shape: Shape, shards: int) -> tuple[float, float]:
    """Return the bytes of a saved model and of a checkpoint, over all processes.

    A model with adapters saves only the adapters.
    """
    state = training_state(recipe, shape, shards)
    saved = shape.trained_bytes if recipe.model.use_peft else state["weights"]
    whole = saved
    if not recipe.training.save_only_model:
        whole += state["optimizer"]
    return saved, whole


def checkpoints_at_once(training: Any, steps: int) -> int:
    """Return the largest number of checkpoints on the disk at the same time.

    The trainer deletes an old checkpoint only after it has written the new one.
    """
    if training.save_strategy == "no":
        return 0
    saves = math.ceil(training.num_train_epochs)
    if training.save_strategy == "steps":
        every = training.save_steps
        if every < 1:  # A share of all steps.
            every = max(1, math.ceil(steps * every))
        saves = math.ceil(steps / every)
    limit = training.save_total_limit
    return min(saves, limit + 1) if limit else saves
