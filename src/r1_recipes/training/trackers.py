"""Experiment trackers: what they need before a run."""

from __future__ import annotations

import importlib.util
import logging
import os
from pathlib import Path

from r1_recipes.common.errors import RecipeError, install_hint
from r1_recipes.recipe import Recipe

logger = logging.getLogger(__name__)


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
