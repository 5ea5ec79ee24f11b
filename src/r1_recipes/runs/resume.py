"""Which keys a run that goes on takes, and which it refuses; ``resume.yaml`` has the table."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

_TABLE = yaml.safe_load(Path(__file__).with_name("resume.yaml").read_text(encoding="utf-8"))
# By key, its class and what it is about.
CLASSES = {
    key: (name, about)
    for name, groups in _TABLE.items()
    for about, keys in groups.items()
    for key in keys.split()
}
# A key that is not in the table is a parameter of a reward or an environment.
_PARAMETER = ("checkpoint", "what is asked and judged")
_SCHEDULE = ("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps")
# Their rate depends on the losses that they have seen, so no setting says what it is at a step.
_BY_LOSS = ("reduce_lr_on_plateau", "greedy")


def kind(key: str) -> str:
    """The class of a key: ``taken``, ``batch``, ``another run``, ``checkpoint`` or ``start``."""
    return CLASSES.get(key, _PARAMETER)[0]


def held_by_checkpoint(
    changed: Sequence[str], before: Mapping[str, object], now: Mapping[str, object]
) -> list[tuple[str, str]]:
    """Return those of the changed keys that a checkpoint cannot follow, each with what it
    is about.
    """
    held = []
    schedules = (before.get("lr_scheduler_type"), now.get("lr_scheduler_type"))
    by_loss = [name for name in _BY_LOSS if name in schedules]
    for key in changed:
        if kind(key) == "checkpoint" and not _is_harmless(key, [before.get(key), now.get(key)]):
            held.append((key, CLASSES.get(key, _PARAMETER)[1]))
        elif by_loss and key in _SCHEDULE:
            held.append((key, f"lr_scheduler_type {by_loss[0]} keeps its rate"))
    return held


def _is_harmless(key: str, values: Sequence[object]) -> bool:
    """Whether these two values of a key that a checkpoint holds mean the same for it."""
    if (
        key == "eval_strategy"
    ):  # which rows overlap with held-out ones depends only on whether there are any
        return not any(value in (None, "no") for value in values)
    return key == "optim" and all(
        value in (None, "adamw_torch", "adamw_torch_fused") for value in values
    )
