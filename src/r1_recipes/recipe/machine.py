"""What a recipe takes from the machine: device and precision."""

from __future__ import annotations

from typing import Any

from r1_recipes.recipe.keys import OWN_TYPES
from r1_recipes.recipe.types import Recipe


def follow_machine(recipe: Recipe, settings: dict[str, Any], typed: set[str]) -> dict[str, Any]:
    """Set device, precision and vLLM in ``settings`` as a machine without an accelerator can run them, with one warning.

    Args:
        typed: keys of the command line, which stay as they are.

    Returns:
        The values before, by key.
    """
    import torch

    use_cpu = settings.get("use_cpu", False)
    if not isinstance(OWN_TYPES[recipe.method][1], str) or (torch.accelerator.is_available() and not use_cpu):
        return {}
    asked = {"use_cpu": use_cpu, "bf16": not settings.get("fp16")}  # TRL's default
    asked |= {key: value for key, value in settings.items() if value is not None}
    changes = {"use_vllm": False} if asked.get("vllm_mode", "colocate") == "colocate" else {}
    if not use_cpu:  # with use_cpu: true, the precision is the recipe's own choice for a CPU
        changes |= {"use_cpu": True, "bf16": False, "fp16": False, "tf32": False}
    changes = {key: value for key, value in changes.items() if key not in typed and asked.get(key, value) != value}
    if not changes:
        return {}
    before = {key: asked[key] for key in changes}
    why = "use_cpu is true" if use_cpu else "no accelerator is visible"
    now, shown = (", ".join(f"{key}: {str(value).lower()}" for key, value in of.items()) for of in (changes, before))
    recipe.warnings.append(
        f"{recipe.path}: {why}: the run has {now} instead of {shown}; expect it to be hundreds of times slower than on a GPU (--smoke "
        "checks a recipe in seconds)"
    )
    settings |= changes
    if "fp16" in changes:
        settings.setdefault("bf16", False)  # TRL takes the one if the other is off
    return before
