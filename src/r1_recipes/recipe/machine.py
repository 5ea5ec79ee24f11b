"""What a recipe takes from the machine: environment variables, device and precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.recipe.keys import OWN_TYPES
from r1_recipes.recipe.types import Recipe

def follow_machine(recipe: Recipe, settings: dict[str, Any], typed: set[str]) -> dict[str, Any]:
    """Set device, precision and vLLM in ``settings`` as a machine without an accelerator can run them, with one warning.

    Args:
        typed: keys of the command line, which stay as they are.

    Returns:
        The values before, by key.

    Raises:
        RecipeError: something would have to change, and ``strict_hardware`` is true.
    """
    import torch

    asked = {"use_cpu": False, "fp16": False, "vllm_mode": "colocate", **settings}
    asked["bf16"] = not asked["fp16"] if asked.get("bf16") is None else asked["bf16"]  # TRL's default
    if not isinstance(OWN_TYPES[recipe.method][1], str) or (torch.accelerator.is_available() and not asked["use_cpu"]):
        return {}
    changes: dict[str, Any] = {}
    if not asked["use_cpu"]:  # with use_cpu: true, the precision is the recipe's own choice for a CPU
        changes |= {"use_cpu": True} | {key: False for key in ("bf16", "fp16", "tf32") if asked.get(key)}
    if asked.get("use_vllm") and asked["vllm_mode"] == "colocate":
        changes["use_vllm"] = False
    changes = {key: value for key, value in changes.items() if key not in typed}
    if not changes:
        return {}
    before = {key: asked[key] for key in changes}
    why = "use_cpu is true" if asked["use_cpu"] else "no accelerator is visible"
    now, shown = (", ".join(f"{key}: {str(value).lower()}" for key, value in of.items()) for of in (changes, before))
    if settings.get("strict_hardware"):
        raise RecipeError(
            f"{recipe.path}: strict_hardware: {why}, and the run is to have {shown}. Fix: a machine with a GPU, or --strict_hardware false"
        )
    recipe.warnings.append(
        f"{recipe.path}: {why}: the run has {now} instead of {shown}; expect it to be hundreds of times slower than on a GPU (--smoke "
        "checks a recipe in seconds; strict_hardware: true refuses instead)"
    )
    settings |= changes
    if "fp16" in changes:
        settings.setdefault("bf16", False)  # TRL takes the one if the other is off
    return before
