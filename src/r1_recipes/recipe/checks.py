"""Check a recipe before anything is loaded."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import BatchError, RecipeError, located
from r1_recipes.recipe.rules import RULES
from r1_recipes.recipe.types import Recipe

# Methods whose recipes have reward_funcs.
REWARDED = ("grpo", "generate", "evaluate")


def check(recipe: Recipe) -> None:
    """Raise RecipeError if a recipe breaks a rule of its method."""
    with located(recipe.path):
        for rule in RULES[recipe.method]:
            rule(recipe)


def idle_keys(recipe: Recipe) -> list[str]:
    """Return a warning for each key that has no effect, or not the expected one."""
    script = recipe.script
    training = recipe.training
    warnings = []
    if recipe.method == "reward":
        for key in ("system_prompt", "few_shot"):
            if getattr(script, key):
                warnings.append(
                    f"{recipe.path}: {key} is ignored, because pairs are used as they are"
                )
    if recipe.method in ("generate", "evaluate") or script.smoke:
        return warnings
    if 0 < training.max_steps <= training.warmup_steps:
        steps = f"warmup_steps {training.warmup_steps:g} of max_steps {training.max_steps}"
        warnings.append(f"{recipe.path}: {steps}: the warmup reaches learning_rate late or never")
    return warnings


def check_batch(path: Path, value: Callable[[str], Any], world_size: int) -> None:
    """Raise if groups of completions do not fill GRPO's batches, and name numbers that fit.

    ``value`` returns the value of a key, or its default.
    """
    group = value("num_generations")
    device = value("per_device_train_batch_size")
    if not group or not device:
        return
    if group < 2:
        raise RecipeError(
            f"{path}: num_generations: must be at least 2, got {group}, because GRPO compares the "
            f"completions of a prompt with each other. Fix: num_generations: 8"
        )
    keys = [key for key in ("generation_batch_size", "steps_per_generation") if value(key)]
    if len(keys) > 1:
        raise RecipeError(
            f"{path}: generation_batch_size, steps_per_generation: only one of them may be set, "
            f"got both. Fix: remove one of them"
        )
    key = keys[0] if keys else "gradient_accumulation_steps"
    counts_all_processes = key == "generation_batch_size"
    step = device * world_size
    unit = 1 if counts_all_processes else step
    batch = unit * value(key)
    multiple = math.lcm(step, group)
    if batch % multiple:
        fixes = [f"{key}: {_next_multiple(batch, multiple) // unit}"]
        divisors = [size for size in range(2, batch + 1) if batch % size == 0]
        if divisors and batch % step == 0:
            fixes.append(f"num_generations: {min(divisors, key=lambda size: abs(size - group))}")
        share = 0 if counts_all_processes else batch // world_size
        counts = [
            count
            for count in range(1, max(9, world_size))
            if (share * count or batch) % math.lcm(device * count, group) == 0
        ]
        if counts:
            fixes.append(f"{counts[-1]} processes (accelerate launch --num_processes {counts[-1]})")
        raise BatchError(
            f"{path}: {key}: the batch must be a multiple of {step} "
            f"(per_device_train_batch_size {device} x {world_size} processes) "
            f"and of num_generations {group}, got {batch}. Fix: {', or '.join(fixes)}"
        )
    eval_group = value("num_generations_eval") or group
    eval_device = value("per_device_eval_batch_size")
    if value("eval_strategy") != "no" and eval_device * world_size % eval_group:
        multiple = eval_group // math.gcd(eval_group, world_size)
        raise BatchError(
            f"{path}: per_device_eval_batch_size: the batch of all {world_size} processes must be "
            f"a multiple of {eval_group} completions, got {eval_device} per process. "
            f"Fix: per_device_eval_batch_size: "
            f"{_next_multiple(eval_device, multiple)}, or num_generations_eval: 1"
        )


def _next_multiple(number: int, of: int) -> int:
    return math.ceil(number / of) * of
