"""Convert values of YAML and the command line to the types of their keys."""

import dataclasses
import json
import math
import re
import typing
from argparse import ArgumentTypeError
from collections.abc import Collection, Iterable
from types import NoneType, UnionType
from typing import Any

from r1_recipes.common.errors import RecipeError, nearest, unknown_name
from r1_recipes.common.yaml_text import parse_yaml

# How messages name the source of an override.
COMMAND_LINE = "command line"

# TRL and Transformers type these keys as str, but accept a bool too.
_STR_OR_BOOL = {"scale_rewards", "fsdp", "resume_from_checkpoint"}
# Lists of regular expressions, which may contain commas and brackets.
_PATTERNS = ("unfrozen_parameters",)
# PyYAML reads 1e-6 as text. The type of a key corrects that, but values inside a mapping have no
# typed key.
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
_COMMA = re.compile(r"[-+]?\d+,\d+([eE][-+]?\d+)?")
# Values outside these intervals would fail after minutes, or silently train nothing. A default is
# always allowed.
_INTERVALS = {
    "[1, inf)": "max_steps max_samples max_eval_samples "
    "max_prompt_tokens max_solution_tokens max_length "
    "max_completion_length "
    "eval_max_completion_length per_device_train_batch_size per_device_eval_batch_size "
    "gradient_accumulation_steps num_generations "
    "generation_batch_size steps_per_generation num_iterations lora_r max_logged_completions "
    "teacher_sync_steps max_reprompt_len distillation_topk",
    "[0, inf)": "num_samples temperature eval_temperature beta "
    "epsilon epsilon_high delta weight_decay "
    "max_grad_norm warmup_steps seed",
    "[2, inf)": "tool_output_chars",
    "(0, inf)": "num_train_epochs logging_steps repetition_penalty lora_alpha tool_timeout",
    "(0, 1]": "top_p vllm_gpu_memory_utilization",
    "[0, 1]": "learning_rate min_p lora_dropout teacher_update_rate",
}
_RANGES = {key: interval for interval, keys in _INTERVALS.items() for key in keys.split()}


def convert(action: Any, hint: Any, value: Any, source: str) -> Any:
    """Return a value of YAML or the command line, converted to the type of its key.

    An argparse action and a type hint describe the key. Raise RecipeError if the value does not
    fit.
    """
    key = action.dest
    types_ = _plain_types(hint)
    if key in _STR_OR_BOOL and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    value = _read_text(action, types_, value, source)
    if value is None:
        if NoneType in types_:
            return None
        raise RecipeError(
            f"{source}: {key}: has no value. Fix: remove the key to use its default, or set a value"
        )
    if isinstance(value, dict) and action.type is dict and list in types_:
        value = [value]
    if not isinstance(value, dict | list):
        converted = _scalar(action, types_, value, source)
        return [converted] if action.nargs == "+" else converted
    if type(value) not in types_:
        raise RecipeError(f"{source}: {key}: must be {_type_names(types_)}, got {value!r}")
    if isinstance(value, dict) or action.type is dict:
        return value if key == "few_shot" else _with_numbers(value)
    return [_scalar(action, types_, item, source) for item in value]


def _read_text(action: Any, types_: set[type], value: Any, source: str) -> Any:
    """Parse a list, a mapping or a null that is written as text."""
    key = action.dest
    typed = source == COMMAND_LINE
    if typed and types_ <= {list, NoneType} and action.type is not dict:
        value = split_list(key, value)
    if not isinstance(value, str):
        return value
    # In a file, null is null and "none" is text. On the command line, both mean null. In a list,
    # "none" is an entry.
    is_text = list in types_ or (str in types_ and dict not in types_ and not typed)
    if value.lower() in ("none", "null") and NoneType in types_ and not is_text:
        return None
    if value.lstrip().startswith(("{", "[")) and (dict in types_ or action.type is dict):
        return parse_yaml(value, f"{source}: {key}")
    return value


def split_list(key: str, value: Any) -> Any:
    """Return a list from its forms on the command line: ``a b``, ``a,b`` and ``[a, b]`` are
    equal.
    """
    words = value if isinstance(value, list) else [value]
    if key in _PATTERNS or not all(isinstance(word, str) for word in words):
        return value
    text = " ".join(words)
    if text.startswith("[") and text.endswith("]"):
        return parse_yaml(text, f"{COMMAND_LINE}: {key}")
    return [part.strip() for word in words for part in word.split(",") if part.strip()]


def _scalar(action: Any, types_: set[type], value: Any, source: str) -> Any:
    key = action.dest
    choices = list(action.choices or ())
    where = f"{source}: {key}"
    if value is False and bool not in types_ and "no" in choices:  # YAML reads a bare `no` as false
        return "no"
    expected = _type_names({action.type} if action.type in (int, float, str) else types_)
    refusal = f"{where}: must be {expected}, got {value!r} ({type(value).__name__})"
    if isinstance(value, bool) and bool not in types_:
        if source == COMMAND_LINE and value:
            raise RecipeError(f"{source}: --{key} needs a value: {expected}")
        quotes = ". Fix: put text such as no and on in quotes" if str in types_ else ""
        raise RecipeError(refusal + quotes)
    try:
        converted = action.type(str(value))
    except (ValueError, TypeError, OverflowError, ArgumentTypeError) as error:
        raise RecipeError(refusal + _number_fix(action, value, source)) from error
    if choices and converted not in choices:
        raise RecipeError(f"{where}: " + unknown_name("value", value, map(str, choices)))
    if key in _RANGES and converted != action.default:
        _check_range(where, _RANGES[key], converted, action.default)
    return converted


def _number_fix(action: Any, value: Any, source: str) -> str:
    if action.nargs == "+" and source == COMMAND_LINE and action.type in (int, float):
        return (
            f". Fix: separate numbers by spaces and write a decimal point: --{action.dest} 1.0 0.5"
        )
    if _COMMA.fullmatch(str(value)):
        return f". Fix: {value.replace(',', '.')}, with a decimal point"
    return ""


def _check_range(where: str, interval: str, value: float, default: Any) -> None:
    low, high = map(float, interval[1:-1].split(","))
    inside = low <= value <= high and math.isfinite(value)
    if value == low and interval.startswith("("):
        inside = False
    if not inside:
        raise RecipeError(
            f"{where}: must be in {interval}, got {value:g}. Fix: remove it to use its default, "
            f"{default}"
        )


def _plain_types(hint: Any) -> set[type]:
    """Return the plain types of a hint: ``dict[str, Any] | None`` -> ``{dict, NoneType}``."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, UnionType):
        return set().union(*map(_plain_types, typing.get_args(hint)))
    return {origin or hint}


def _type_names(types_: set[type]) -> str:
    special: dict[type, str] = {list: "a list", dict: "a mapping", bool: "true/false"}
    names = [special.get(type_, type_.__name__) for type_ in types_ - {NoneType}]
    return " or ".join(sorted(names))


def _with_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        return float(value)
    return value


def to_builtin(value: Any) -> Any:
    """Return a value in types that YAML can write."""
    return json.loads(json.dumps(value, default=str))


def keys_of(types_: Iterable[type]) -> set[str]:
    """Return the names of the fields of dataclasses."""
    return {f.name for part in types_ for f in dataclasses.fields(part)}


def unknown_key(key: str, source: str, known: Collection[str], method: str) -> RecipeError:
    """Return the error for a key that the method does not have, with what was probably meant."""
    from r1_recipes.extras.foreign import SHORT

    nearest_keys = [SHORT[key]] if key in SHORT else nearest(key, known)
    hint = f" Did you mean {' or '.join(nearest_keys)}?" if nearest_keys else ""
    return RecipeError(
        f"{source}: unknown key {key!r} for {method}.{hint} Valid keys: TRL's config, "
        "ModelConfig and docs/keys.md. For keys of other projects, see docs/migration.md."
    )
