"""What can be known to be wrong with a recipe before anything is loaded."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import get_mapper
from r1_recipes.prompts.formats import get_response_format
from r1_recipes.recipe.types import Recipe
from r1_recipes.rewards import REWARDS, check_task_rewards, get_reward_funcs
from r1_recipes.selection import KeepRules

# Methods whose recipes name rewards.
REWARDED = ("grpo", "generate", "evaluate")


def batch_hint(refusal: str, settings: dict[str, Any]) -> str:
    """What would fit, after TRL's sentence about a batch that groups of completions do not fill; else nothing."""
    numbers = [int(number) for number in re.findall(r"\d+", refusal)]
    if "generations used for evaluation" in refusal:
        device, processes, group = numbers
        per_device = next(size for size in range(device, device + group + 1) if size * processes % group == 0)
        return f" Fix: per_device_eval_batch_size: {per_device}, or num_generations_eval: 1"
    if "must be divisible by num_generations" in refusal:
        batch, group = numbers
        sizes = [size for size in range(2, batch + 1) if batch % size == 0]
        key = "generation_batch_size" if "generation_batch_size" in settings else "per_device_train_batch_size"
        more = math.lcm(batch, group) // batch * settings.get(key, batch)
        return " Fix: " + " or ".join([*([f"num_generations: {', '.join(map(str, sizes))}"] if sizes else []), f"{key}: {more}"])
    if "at least 2 generations" in refusal:
        return " Fix: num_generations: 8, and a batch that 8 divides"
    return ""


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
