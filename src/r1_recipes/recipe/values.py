"""YAML and command-line values as the types of their keys."""

from __future__ import annotations

import re
import types
import typing
from argparse import ArgumentTypeError
from typing import Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.recipe.text import parse_yaml
from r1_recipes.recipe.types import RecipeArguments

# How messages name the source of an override.
COMMAND_LINE = "command line"

# Typed str by TRL and Transformers, although a bool has a meaning there too.
_STR_OR_BOOL = {"scale_rewards", "fsdp", "resume_from_checkpoint"}
# PyYAML reads 1e-6 as text; the type of a key says better, but what stands inside a mapping has no key of ours.
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def convert(action: Any, hint: Any, value: Any, source: str) -> Any:
    """Return a YAML or command-line value as the type of its key.

    Args:
        action: of the parser; its ``dest``, ``type``, ``choices`` and ``nargs`` are read.

    Raises:
        RecipeError: names the source, the key, what was found and what would work.
    """
    key, kinds = action.dest, kinds_of(hint)
    if isinstance(value, str):
        # Of TRL's keys some take "none" as a word; of ours none does. In YAML a bare null is no text.
        unsets = str not in kinds or dict in kinds or (source == COMMAND_LINE and key in RecipeArguments.__dataclass_fields__)
        if value.lower() in ("none", "null") and type(None) in kinds and unsets:
            value = None
        elif value.lstrip()[:1] in ("{", "[") and (dict in kinds or action.type is dict):
            value = parse_yaml(value, f"{source}: {key}")
        elif value.lower() in ("true", "false") and key in _STR_OR_BOOL:
            value = value.lower() == "true"
    if value is None and type(None) in kinds:
        return None
    if value is None:
        raise RecipeError(f"{source}: {key}: found None, no value; leave the key out for its default")
    if isinstance(value, dict) and action.type is dict and list in kinds:
        value = [value]
    if not isinstance(value, dict | list):
        converted = _scalar(action, kinds, value, source)
        return [converted] if action.nargs == "+" else converted
    if type(value) not in kinds:
        raise RecipeError(f"{source}: {key}: found {value!r}; expected {_kind_names(kinds)}")
    if isinstance(value, dict) or action.type is dict:
        return _with_numbers(value)
    return [_scalar(action, kinds, item, source) for item in value]


def _scalar(action: Any, kinds: set[type], value: Any, source: str) -> Any:
    key, choices = action.dest, list(action.choices or ())
    found = f"{source}: {key}: found {value!r} ({type(value).__name__})"
    expected = _kind_names({action.type} if action.type in (int, float, str) else kinds)
    if isinstance(value, bool) and bool not in kinds:
        if value is False and "no" in choices:  # YAML reads a bare `no` as false
            return "no"
        if key in _STR_OR_BOOL:
            return value
        if source == COMMAND_LINE and value is True:
            raise RecipeError(f"{source}: --{key} needs a value: {expected}")
        raise RecipeError(f"{found}; expected {expected}" + ("; text such as no and on needs quotes" if str in kinds else ""))
    try:
        converted = action.type(value if isinstance(value, str) else str(value))
    except (ValueError, TypeError, OverflowError, ArgumentTypeError) as error:
        raise RecipeError(f"{found}; expected {expected}") from error
    if choices and converted not in choices:
        raise RecipeError(f"{found}; " + unknown_name("value", value, map(str, choices)))
    return converted


def kinds_of(hint: Any) -> set[type]:
    """The plain types of a hint: ``dict[str, Any] | str | None`` -> ``{dict, str, NoneType}``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return {kind for part in typing.get_args(hint) for kind in kinds_of(part)}
    return {typing.get_origin(hint) or hint}


def _kind_names(kinds: set[type]) -> str:
    names: dict[type, str] = {list: "a list", dict: "a mapping", bool: "true/false"}
    return " or ".join(sorted(names.get(kind, kind.__name__) for kind in kinds if kind is not type(None)))


def _with_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def plain(value: Any) -> Any:
    """A value as YAML can write it."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    return getattr(value, "value", None) or str(value)
