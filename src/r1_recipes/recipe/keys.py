"""The keys of a recipe, read from TRL's source: importing TRL takes seconds, and a typing mistake need not wait for it."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib.util
import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from r1_recipes.common.errors import RecipeError, nearest
from r1_recipes.recipe import types
from r1_recipes.recipe.values import convert
from r1_recipes.rewards import REWARDS, reward_parameters

_FILES = {
    "GRPOConfig": "trl/trainer/grpo_config.py",
    "SFTConfig": "trl/trainer/sft_config.py",
    "DistillationConfig": "trl/trainer/distillation_config.py",
    "ModelConfig": "trl/trainer/model_config.py",
    "_BaseConfig": "trl/trainer/base_config.py",
    "TrainingArguments": "transformers/training_args.py",
}


@functools.cache
def config_fields(name: str) -> dict[str, tuple[str, Any]]:
    """Return the annotation and the default of each field of a configuration class, those of its bases included, as written.

    A default that is no literal is ``None``. tests/recipe/test_load.py compares all with the classes.
    """
    package, _, inside = _FILES[name].partition("/")
    spec = importlib.util.find_spec(package)  # finds, does not import
    assert spec and spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / inside
    classes = {node.name: node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.ClassDef)}
    fields: dict[str, tuple[str, Any]] = {}
    for base in classes[name].bases:
        fields |= config_fields(ast.unparse(base))
    for node in classes[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = node.value
            if isinstance(default, ast.Call):  # field(default=…)
                default = next((keyword.value for keyword in default.keywords if keyword.arg == "default"), None)
            literal = None
            with contextlib.suppress(ValueError):
                literal = ast.literal_eval(default) if default else None
            fields[node.target.id] = (ast.unparse(node.annotation), literal)
    return fields


# Values out of these intervals would fail after minutes, or silently train nothing; a default is always allowed.
_INTERVALS = {
    "[1, inf)": "max_steps max_samples max_eval_samples max_prompt_tokens max_solution_tokens max_length max_completion_length "
    "eval_max_completion_length per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps num_generations "
    "generation_batch_size steps_per_generation num_iterations lora_r",
    "[0, inf)": "num_samples temperature eval_temperature beta epsilon epsilon_high delta weight_decay max_grad_norm warmup_steps seed",
    "(0, inf)": "num_train_epochs logging_steps repetition_penalty lora_alpha",
    "(0, 1]": "top_p vllm_gpu_memory_utilization",
    "[0, 1]": "learning_rate min_p lora_dropout",
}
_RANGES = {key: interval for interval, keys in _INTERVALS.items() for key in keys.split()}
_NUMBERS = {"int": (int, int), "float": (float, float), "int | None": (int | None, int), "float | None": (float | None, float)}


# The class of our keys for a method, and that of its trainer's settings, TRL's by name alone.
OWN_TYPES: dict[str, tuple[type, type | str]] = {
    "grpo": (types.GRPORecipeArguments, "GRPOConfig"),
    "sft": (types.RecipeArguments, "SFTConfig"),
    "distill": (types.RecipeArguments, "DistillationConfig"),
    "generate": (types.GenerateRecipeArguments, types.GenerationSettings),
    "evaluate": (types.EvaluateRecipeArguments, types.SamplingSettings),
}


def argument_types(method: str) -> tuple[type, type, type]:
    """Return the classes that have the keys of a recipe: ours, the trainer's (or our own settings), the model's."""
    # bitsandbytes warns of a kernel that only another package brings, for 4-bit models on CPUs.
    logging.getLogger("bitsandbytes.backends").setLevel(logging.ERROR)
    import trl

    own, config = OWN_TYPES[method]
    return own, getattr(trl, config) if isinstance(config, str) else config, trl.ModelConfig


def fields_of(method: str) -> dict[str, tuple[str, Any]]:
    """Return annotation and default of every key but the rewards' parameters, without TRL."""
    found: dict[str, tuple[str, Any]] = {}
    for kind in (*OWN_TYPES[method], "ModelConfig"):
        if isinstance(kind, str):
            found |= config_fields(kind)
            continue
        # Not the fields' types, which Transformers' parser changes.
        written = {key: text for base in reversed(kind.__mro__) for key, text in vars(base).get("__annotations__", {}).items()}
        found |= {f.name: (written[f.name], f.default) for f in dataclasses.fields(kind)}
    return found


def check_keys(source: str, values: dict[str, Any], method: str, reward_fields: dict[str, dataclasses.Field]) -> None:
    """Refuse unknown keys and impossible numbers before TRL is imported."""
    known = fields_of(method)
    names = [*known, *reward_parameters(REWARDS), *reward_fields]
    for key, value in values.items():
        if key not in names:
            close = nearest(key, names)
            hint = f" Nearest: {', '.join(close)}." if close else ""
            raise RecipeError(
                f"{source}: unknown key {key!r} for {method}.{hint} Keys are those of trl's config, of ModelConfig, and docs/recipes.md."
            )
        annotation, default = known.get(key, ("", None))
        if annotation not in _NUMBERS:
            continue
        hint_type, kind = _NUMBERS[annotation]
        number = convert(SimpleNamespace(dest=key, type=kind, choices=None, nargs=None), hint_type, value, source)
        interval = _RANGES.get(key)
        if interval is None or number is None or number == default:
            continue
        low, high = map(float, interval[1:-1].split(","))
        if not low <= number <= high or math.isinf(number) or (number == low and interval[0] == "("):
            raise RecipeError(f"{source}: {key}: must be in {interval}, got {number:g}. Fix: leave it out for its default, {default}")
