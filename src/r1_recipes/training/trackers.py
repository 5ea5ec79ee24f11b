"""Experiment trackers: what they need before a run, and what they are given."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError, install_hint
from r1_recipes.common.messages import clip, words
from r1_recipes.recipe.load import Recipe

logger = logging.getLogger(__name__)

# TensorBoard keeps what it is given in memory: completions per log entry, and characters of each.
_SHOWN_COMPLETIONS = 5
_SHOWN_CHARACTERS = 4_000


def check_trackers(recipe: Recipe) -> None:
    """Refuse a tracker in ``report_to`` that is not installed.

    Raises:
        RecipeError: names the extra that brings it.
    """
    for tracker in recipe.training.report_to:
        if tracker in ("wandb", "tensorboard", "trackio") and importlib.util.find_spec(tracker) is None:
            raise RecipeError(f"{recipe.path}: report_to: {tracker} is not installed; {install_hint(tracker)}, or --report_to none")


def prepare_trackers(recipe: Recipe) -> None:
    """Set W&B's environment variables; without an API key it logs offline."""
    for key in ("wandb_entity", "wandb_project", "wandb_run_group"):
        if value := getattr(recipe.script, key):
            os.environ[key.upper()] = value
    if "wandb" in recipe.training.report_to and "WANDB_MODE" not in os.environ and not _wandb_has_key():
        os.environ["WANDB_MODE"] = "offline"
        logger.warning("wandb has no API key: this run is logged offline under ./wandb; upload it later with `wandb sync`")


def _wandb_has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    netrc = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    return netrc.is_file() and "wandb" in netrc.read_text(errors="replace")


def completions_text(logs: Mapping[str, Any], reward_weights: Sequence[float] | None) -> str:
    """Return five of a trainer's last completions, from the lowest weighted reward to the highest, as Markdown.

    Args:
        logs: TRL's, one value per completion: ``prompt``, ``completion`` and, if there are rewards, ``rewards`` (by name), ``advantages``.
        reward_weights: one per reward; ``None``: there are no rewards.
    """
    scores = dict(zip(logs["rewards"], reward_weights, strict=True)) if reward_weights else {}
    totals = []
    for i in range(len(logs["completion"])):
        weighted = [weight * logs["rewards"][name][i] for name, weight in scores.items()]
        totals.append(sum(value for value in weighted if not math.isnan(value)))
    order = sorted(range(len(totals)), key=totals.__getitem__)
    last = len(order) - 1
    shown = []
    for i in dict.fromkeys(order[place * last // (_SHOWN_COMPLETIONS - 1)] for place in range(_SHOWN_COMPLETIONS)):
        parts = []
        if scores:
            each = ", ".join(f"{name} {logs['rewards'][name][i]:.4g}" for name in scores)
            parts.append(f"**reward {totals[i]:.4g}**, {each}, advantage {logs['advantages'][i]:.3g}")
        for title, text in (("prompt:", words(logs["prompt"][i], roles=True)), ("completion:", words(logs["completion"][i]))):
            # An indented block shows a text as it is, whatever Markdown it contains.
            parts += [title, "\n".join(f"    {line}" for line in clip(text, _SHOWN_CHARACTERS).splitlines())]
        shown.append("\n\n".join(parts))
    return "\n\n---\n\n".join(shown)
