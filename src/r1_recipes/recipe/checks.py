"""What can be known to be wrong with a recipe before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import BatchError, RecipeError
from r1_recipes.data import get_mapper
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe.types import Recipe
from r1_recipes.rewards import REWARDS, check_task_rewards, get_reward_funcs
from r1_recipes.selection.rules import KeepRules

# Methods whose recipes name rewards.
REWARDED = ("grpo", "generate", "evaluate")


def check(recipe: Recipe, chosen_params: dict[str, Any], used: set[str]) -> None:
    """What can be known to be wrong before anything is loaded."""
    path, script, training = recipe.path, recipe.script, recipe.training
    if not recipe.model.model_name_or_path and recipe.method != "evaluate":  # a benchmark is told which models
        raise RecipeError(f"{path}: model_name_or_path: missing; a hub id or a local checkpoint folder")
    if 0 < getattr(training, "max_steps", 0) <= getattr(training, "warmup_steps", 0) and not script.smoke:
        recipe.warnings.append(
            f"{path}: warmup_steps {training.warmup_steps:g} of max_steps {training.max_steps}: learning_rate is reached late or never"
        )
    for key in sorted(set(chosen_params) - used):
        recipe.warnings.append(f"{path}: {key} is ignored: none of reward_funcs {getattr(script, 'reward_funcs', [])} has it")
    try:
        fmt = get_response_format(script.response_format)
        if script.mapper != "auto":
            get_mapper(script.mapper, **(script.mapper_config or {}))
    except ValueError as error:
        raise RecipeError(f"{path}: {error}") from error
    if hasattr(training, "output_dir") and not training.output_dir:
        raise RecipeError(f"{path}: output_dir: found {training.output_dir!r}; the folder that the run is written to")
    if recipe.method == "distill" and not training.teacher_model_name_or_path:
        raise RecipeError(f"{path}: teacher_model_name_or_path: missing; the model whose distribution the student learns")
    if script.merge_adapters and not recipe.model.use_peft:
        raise RecipeError(f"{path}: merge_adapters: true without use_peft: true; there are no adapters to merge")
    if recipe.method == "generate":
        _check_generate(recipe)
    if recipe.method == "evaluate":
        _check_evaluate(recipe)
    if recipe.method not in REWARDED:
        return
    if not script.reward_funcs and recipe.method == "grpo":
        raise RecipeError(f"{path}: reward_funcs: missing; name at least one of {', '.join(sorted(REWARDS))}")
    weights = getattr(training, "reward_weights", None)
    if weights and not any(weights):
        raise RecipeError(f"{path}: reward_weights: must have one that is not 0, got {weights}. Fix: leave it out for 1 each")
    if weights is not None and len(weights) != len(script.reward_funcs):
        raise RecipeError(
            f"{path}: reward_weights has {len(weights)} entries for {len(script.reward_funcs)} reward_funcs {script.reward_funcs}"
        )
    try:
        get_reward_funcs(script.reward_funcs, fmt, **recipe.reward_params)
        if getattr(script, "task_rewards", None) is not None:
            check_task_rewards(script.task_rewards, script.reward_funcs)
        elif getattr(script, "task_column", None) is not None:
            raise RecipeError("task_column has no meaning without task_rewards")
    except ValueError as error:
        raise RecipeError(with_path(path, error)) from error


def _check_generate(recipe: Recipe) -> None:
    script = recipe.script
    try:
        rules = KeepRules.parse(script.keep)
    except ValueError as error:
        raise RecipeError(with_path(recipe.path, error)) from error
    if (rules.correct or rules.pass_rate) and not script.reward_funcs:
        raise RecipeError(f"{recipe.path}: keep: correct and pass_rate need reward_funcs; the first one says what is correct")
    if script.backend == "openai" and (script.max_prompt_tokens or script.max_solution_tokens or script.chat_template):
        raise RecipeError(
            f"{recipe.path}: backend openai: max_prompt_tokens, max_solution_tokens and chat_template need the model's tokenizer, which "
            "the server keeps; leave them out"
        )
    if script.backend != "openai" and recipe.training.seed is None:
        raise RecipeError(f"{recipe.path}: seed: found no value; only backend openai goes without")
    _refuse_idle_keys(recipe)


def _check_evaluate(recipe: Recipe) -> None:
    script, training = recipe.script, recipe.training
    if training.seed is None:
        raise RecipeError(f"{recipe.path}: seed: found no value; a whole number")
    if training.temperature == 0 and script.num_samples > 1:
        raise RecipeError(f"{recipe.path}: temperature: 0 gives {script.num_samples} equal samples a row; set num_samples: 0, or sample")
    _refuse_idle_keys(recipe)


def _refuse_idle_keys(recipe: Recipe) -> None:
    idle = [key for key in ("use_peft", "load_in_4bit", "load_in_8bit") if getattr(recipe.model, key)]
    idle += [
        key
        for key in ("unfrozen_parameters", "merge_adapters", "strict_hardware", "wandb_project", "wandb_entity", "wandb_run_group")
        if getattr(recipe.script, key)
    ]
    if idle:
        raise RecipeError(f"{recipe.path}: {', '.join(idle)}: of no effect on generation; leave out")


def with_path(path: Path, error: Exception) -> str:
    text = str(error)
    return text if str(path) in text else f"{path}: {text}"


def check_batch(path: Path, value: Callable[[str], Any], world_size: int) -> None:
    """Refuse GRPO's batches that groups of completions do not fill, with numbers that would fit.

    Args:
        value: the value of a key, its default if the recipe has none.
    """
    group, device = value("num_generations"), value("per_device_train_batch_size")
    if not group or not device:
        return
    if group < 2:
        raise RecipeError(f"{path}: num_generations: must be at least 2, got {group}: a group of one has no other to compare with. Fix: 8")
    step = device * world_size
    key = next((key for key in ("generation_batch_size", "steps_per_generation") if value(key)), "gradient_accumulation_steps")
    batch = value("generation_batch_size") or step * (value("steps_per_generation") or value("gradient_accumulation_steps"))
    common = math.lcm(step, group)
    if batch % common:
        fits = -(-batch // common) * common
        sizes = [size for size in range(2, batch + 1) if batch % size == 0]
        other = f", or num_generations: {min(sizes, key=lambda size: abs(size - group))}" if sizes and batch % step == 0 else ""
        raise BatchError(
            f"{path}: {key}: must make the batch a multiple of {step} (per_device_train_batch_size {device} x {world_size} processes) "
            f"and of num_generations {group}, got {batch}. Fix: {key}: {fits if key == 'generation_batch_size' else fits // step}{other}"
        )
    evaluated, held_out = value("num_generations_eval") or group, value("per_device_eval_batch_size")
    if value("eval_strategy") != "no" and held_out * world_size % evaluated:
        multiple = evaluated // math.gcd(evaluated, world_size)
        raise BatchError(
            f"{path}: per_device_eval_batch_size: must make a multiple of {evaluated} completions over {world_size} processes, got "
            f"{held_out}. Fix: per_device_eval_batch_size: {-(-held_out // multiple) * multiple}, or num_generations_eval: 1"
        )
