"""Which keys a run that goes on takes, and which it refuses; ``resume.yaml`` has the table."""

from pathlib import Path

import yaml

_TABLE = yaml.safe_load(Path(__file__).with_name("resume.yaml").read_text(encoding="utf-8"))
# By key, its class and what it is about.
CLASSES = {key: (name, about) for name, groups in _TABLE.items() for about, keys in groups.items() for key in keys.split()}
# A key that is not in the table is a parameter of a reward or an environment.
_PARAMETER = ("checkpoint", "what is asked and judged")
_SCHEDULE = ("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps")
# Their rate depends on the losses that they have seen, so no setting says what it is at a step.
_BY_LOSS = ("reduce_lr_on_plateau", "greedy")


def kind(key: str) -> str:
    """The class of a key: ``taken``, ``batch``, ``another run``, ``checkpoint`` or ``start``."""
    return CLASSES.get(key, _PARAMETER)[0]


def held_by_checkpoint(changed: list[str], schedules: set[object]) -> list[tuple[str, str]]:
    """Return of changed keys those that a checkpoint cannot follow, each with what it is about; ``schedules`` are those then and now."""
    found = [(key, CLASSES.get(key, _PARAMETER)[1]) for key in changed if kind(key) == "checkpoint"]
    if by_loss := [str(name) for name in _BY_LOSS if name in schedules]:
        found += [(key, f"lr_scheduler_type {by_loss[0]} keeps its rate") for key in changed if key in _SCHEDULE]
    return found
