"""Decide which changed keys a resumed run accepts and which it refuses.

``resume.yaml`` has the table.
"""

from collections.abc import Sequence
from pathlib import Path

import yaml

from r1_recipes.recipe.types import Settings

_TABLE = yaml.safe_load(Path(__file__).with_name("resume.yaml").read_text(encoding="utf-8"))
# key -> its class and its subject
CLASSES = {
    key: (name, subject)
    for name, groups in _TABLE.items()
    for subject, keys in groups.items()
    for key in keys.split()
}
# A key that is not in the table is a parameter of a reward or an environment.
_PARAMETER = ("checkpoint", "prompts and scoring")
_SCHEDULE = ("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps")
# The learning rate of these schedulers depends on past losses, so settings alone do not give it.
_LOSS_SCHEDULERS = ("reduce_lr_on_plateau", "greedy")


def key_class(key: str) -> str:
    """Return the class of a key: ``taken``, ``batch``, ``another run``, ``checkpoint`` or
    ``start``.
    """
    return CLASSES.get(key, _PARAMETER)[0]


def held_by_checkpoint(
    changed: Sequence[str], before: Settings, now: Settings
) -> list[tuple[str, str]]:
    """Return the changed keys that a checkpoint cannot follow, each with its subject."""
    conflicts = []
    schedules = (before.get("lr_scheduler_type"), now.get("lr_scheduler_type"))
    loss_schedulers = [name for name in _LOSS_SCHEDULERS if name in schedules]
    for key in changed:
        name, subject = CLASSES.get(key, _PARAMETER)
        if name == "checkpoint" and not _is_harmless(key, [before.get(key), now.get(key)]):
            conflicts.append((key, subject))
        elif loss_schedulers and key in _SCHEDULE:
            conflicts.append((key, f"lr_scheduler_type {loss_schedulers[0]} keeps its rate"))
    return conflicts


def _is_harmless(key: str, values: Sequence[object]) -> bool:
    """Return whether two values of such a key mean the same for a checkpoint."""
    # Training rows depend only on whether there are held-out rows, because overlaps are removed.
    if key == "eval_strategy":
        return not any(value in (None, "no") for value in values)
    same = (None, "adamw_torch", "adamw_torch_fused")
    return key == "optim" and all(value in same for value in values)
