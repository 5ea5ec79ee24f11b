"""Build dataclasses from a file's mappings.

Annotations and :func:`limited` say which values are allowed.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from math import isfinite
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from r1_recipes.common.errors import located, require, unknown_name

T = TypeVar("T")

_TYPES: dict[type, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: type(value) is int),
    float: ("a number", lambda value: type(value) in (int, float) and isfinite(value)),
    str: ("some text", lambda value: isinstance(value, str)),
    dict: ("a mapping", lambda value: isinstance(value, dict)),
    tuple: ("a list", lambda value: isinstance(value, list | tuple)),
}


def limited(condition: Callable[[Any], bool], allowed: str, default: Any = MISSING) -> Any:
    """Return a dataclass field with a condition on its values.

    ``allowed`` describes the values that meet the condition, for the error message.
    """
    return field(default=default, metadata={"condition": condition, "allowed": allowed})


def from_mapping(cls: type[T], mapping: Any, where: str) -> T:
    """Build a dataclass from a mapping; a value of ``None`` counts as absent.

    Fields may be plain types, dataclasses, or tuples of dataclasses. Raise RecipeError that begins
    with ``where``.
    """
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    require(isinstance(mapping, Mapping), where, f"a mapping of {', '.join(known)}", mapping)
    present = {key: value for key, value in mapping.items() if value is not None}
    with located(where):
        for key in mapping:
            if key not in known:
                raise ValueError(unknown_name("key", key, known))
        for name, f in known.items():
            if f.default is MISSING and name not in present:
                raise ValueError(f"{name}: missing")
        hints = get_type_hints(cls)
        return cls(**{key: _read(known[key], hints[key], present[key], key) for key in present})


def _read(f: Field, hint: Any, value: Any, where: str) -> Any:
    [hint] = (
        [kind for kind in get_args(hint) if kind is not NoneType]
        if NoneType in get_args(hint)
        else [hint]
    )
    if is_dataclass(hint):
        return from_mapping(hint, value, where)  # type: ignore[arg-type]
    origin, (entry, *_) = get_origin(hint) or hint, (*get_args(hint), None)
    if origin is tuple and is_dataclass(entry):
        names = ", ".join(part.name for part in fields(entry))
        require(isinstance(value, list) and value, where, f"a list of mappings of {names}", value)
        item = where.removesuffix("s")
        return tuple(
            from_mapping(entry, each, f"{item} {n}")  # type: ignore[arg-type]
            for n, each in enumerate(value, 1)
        )
    allowed, fits = _TYPES[origin]
    holds = fits(value) and f.metadata.get("condition", fits)(value)
    require(holds, where, f.metadata.get("allowed", allowed), value)
    return tuple(value) if origin is tuple else value
