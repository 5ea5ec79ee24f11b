"""YAML and command-line values as the types of their keys."""

import json
import math
import re
import typing
from argparse import ArgumentTypeError
from types import NoneType, UnionType
from typing import Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.common.yaml_text import parse_yaml

# How messages name the source of an override.
COMMAND_LINE = "command line"

# Typed str by TRL and Transformers, although a bool has a meaning there too.
_STR_OR_BOOL = {"scale_rewards", "fsdp", "resume_from_checkpoint"}
# Lists of regular expressions, which have commas and brackets of their own.
_PATTERNS = ("unfrozen_parameters",)
# PyYAML reads 1e-6 as text; the type of a key says better, but what stands inside a mapping has no
# key of ours.
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
_COMMA = re.compile(r"[-+]?\d+,\d+([eE][-+]?\d+)?")
# Values out of these intervals would fail after minutes, or silently train nothing; a default is
# always allowed.
_INTERVALS = {
    "[1, inf)": "max_steps max_samples max_eval_samples "
    "max_prompt_tokens max_solution_tokens max_length "
    "max_completion_length "
    "eval_max_completion_length per_device_train_batch_size per_device_eval_batch_size "
    "gradient_accumulation_steps num_generations "
    "generation_batch_size steps_per_generation num_iterations lora_r max_logged_completions",
    "[0, inf)": "num_samples temperature eval_temperature beta "
    "epsilon epsilon_high delta weight_decay "
    "max_grad_norm warmup_steps seed",
    "[2, inf)": "tool_output_chars",
    "(0, inf)": "num_train_epochs logging_steps repetition_penalty lora_alpha tool_timeout",
    "(0, 1]": "top_p vllm_gpu_memory_utilization curriculum_threshold",
    "[0, 1]": "learning_rate min_p lora_dropout",
}
_RANGES = {key: interval for interval, keys in _INTERVALS.items() for key in keys.split()}


def convert(action: Any, hint: Any, value: Any, source: str) -> Any:
    """Return a YAML or command-line value as the type of its key, which an argparse action and a
    type hint describe.
    """
    key, types_ = action.dest, _plain_types(hint)
    if key in _STR_OR_BOOL and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    value = _read_text(action, types_, value, source)
    if value is None and NoneType in types_:
        return None
    if value is None:
        raise RecipeError(
            f"{source}: {key}: found None, no value; leave the key out for its default"
        )
    if isinstance(value, dict) and action.type is dict and list in types_:
        value = [value]
    if not isinstance(value, dict | list):
        converted = _scalar(action, types_, value, source)
        return [converted] if action.nargs == "+" else converted
    if type(value) not in types_:
        raise RecipeError(f"{source}: {key}: found {value!r}; expected {_type_names(types_)}")
    if isinstance(value, dict) or action.type is dict:
        return _with_numbers(value)
    return [_scalar(action, types_, item, source) for item in value]


def _read_text(action: Any, types_: set[type], value: Any, source: str) -> Any:
    """Read a list, a mapping or a null that is written as text."""
    key, typed = action.dest, source == COMMAND_LINE
    if typed and types_ <= {list, NoneType} and action.type is not dict:
        value = listed(key, value)
    if not isinstance(value, str):
        return value
    # In a file null is null and "none" is a text; the command line has no other word for it. A
    # list's "none" is one of its names.
    is_text = list in types_ or (str in types_ and dict not in types_ and not typed)
    if value.lower() in ("none", "null") and NoneType in types_ and not is_text:
        return None
    if value.lstrip().startswith(("{", "[")) and (dict in types_ or action.type is dict):
        return parse_yaml(value, f"{source}: {key}")
    return value


def listed(key: str, value: Any) -> Any:
    """Return a list as the command line may write it: ``a b``, ``a,b`` and ``[a, b]`` are
    the same.
    """
    words = value if isinstance(value, list) else [value]
    if key in _PATTERNS or not all(isinstance(word, str) for word in words):
        return value
    text = " ".join(words)
    if text.startswith("[") and text.endswith("]"):
        return parse_yaml(text, f"{COMMAND_LINE}: {key}")
    return [part.strip() for word in words for part in word.split(",") if part.strip()]


def _scalar(action: Any, types_: set[type], value: Any, source: str) -> Any:
    key, choices = action.dest, list(action.choices or ())
    found = f"{source}: {key}: found {value!r} ({type(value).__name__})"
    if value is False and bool not in types_ and "no" in choices:  # YAML reads a bare `no` as false
        return "no"
    expected = _type_names({action.type} if action.type in (int, float, str) else types_)
    if isinstance(value, bool) and bool not in types_:
        if source == COMMAND_LINE and value:
            raise RecipeError(f"{source}: --{key} needs a value: {expected}")
        quotes = "; text such as no and on needs quotes" if str in types_ else ""
        raise RecipeError(f"{found}; expected {expected}{quotes}")
    try:
        converted = action.type(value if isinstance(value, str) else str(value))
    except (ValueError, TypeError, OverflowError, ArgumentTypeError) as error:
        raise RecipeError(
            f"{found}; expected {expected}{_number_fix(action, value, source)}"
        ) from error
    if choices and converted not in choices:
        raise RecipeError(f"{found}; " + unknown_name("value", value, map(str, choices)))
    if key in _RANGES and converted != action.default:
        _check_range(f"{source}: {key}", _RANGES[key], converted, action.default)
    return converted


def _number_fix(action: Any, value: Any, source: str) -> str:
    if action.nargs == "+" and source == COMMAND_LINE and action.type in (int, float):
        return f". Fix: numbers apart, decimals with a point: --{action.dest} 1.0 0.5"
    if _COMMA.fullmatch(str(value)):
        return f". Fix: {value.replace(',', '.')}, with a decimal point"
    return ""


def _check_range(where: str, interval: str, value: float, default: Any) -> None:
    low, high = map(float, interval[1:-1].split(","))
    inside = (
        low <= value <= high and math.isfinite(value) and (value > low or interval.startswith("["))
    )
    if not inside:
        raise RecipeError(
            f"{where}: must be in {interval}, got {value:g}. Fix: leave it out for its "
            f"default, {default}"
        )


def _plain_types(hint: Any) -> set[type]:
    """The plain types of a hint: ``dict[str, Any] | str | None`` -> ``{dict, str, NoneType}``."""
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return {plain_type for part in typing.get_args(hint) for plain_type in _plain_types(part)}
    return {typing.get_origin(hint) or hint}


def _type_names(types_: set[type]) -> str:
    names: dict[type, str] = {list: "a list", dict: "a mapping", bool: "true/false"}
    return " or ".join(sorted(names.get(each, each.__name__) for each in types_ - {NoneType}))


def _with_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def plain(value: Any) -> Any:
    """A value as YAML can write it."""
    return json.loads(json.dumps(value, default=str))
