"""Build dataclasses from a file's mappings.

Annotations and :func:`limited` say which values are allowed.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from sys import float_info
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from r1_recipes.common.errors import RecipeError, require, unknown_name

T = TypeVar("T")

_VALUE_CHECKS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: type(value) is int),
    # Not infinite, not NaN, and no whole number that a float cannot hold.
    float: ("a number", lambda value: type(value) in (int, float) and abs(value) <= float_info.max),
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
    if not isinstance(mapping, Mapping):
        raise RecipeError(f"{where}: must be a mapping of {', '.join(known)}, got {mapping!r}")
    if unknown := [key for key in mapping if key not in known]:
        raise RecipeError(f"{where}: " + unknown_name("key", unknown[0], known))
    present = {key: value for key, value in mapping.items() if value is not None}
    if missing := [
        name for name, f in known.items() if name not in present and f.default is MISSING
    ]:
        raise RecipeError(f"{where}: {', '.join(missing)}: missing")
    types = get_type_hints(cls)
    values = {
        key: _read(known[key], types[key], value, f"{where}: {key}")
        for key, value in present.items()
    }
    try:
        return cls(**values)
    except ValueError as error:
        raise RecipeError(f"{where}: {error}") from None


def _read(f: Field, hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, UnionType):
        [hint] = (part for part in get_args(hint) if part is not NoneType)
    if is_dataclass(hint):
        return from_mapping(hint, value, where)  # type: ignore[arg-type]
    origin = get_origin(hint) or hint
    if origin is tuple and is_dataclass(entry := get_args(hint)[0]):
        names = ", ".join(part.name for part in fields(entry))
        require(isinstance(value, list) and value, where, f"a list of mappings of {names}", value)
        item_name = where.removesuffix("s")
        return tuple(
            _read(f, entry, item, f"{item_name} {number}")
            for number, item in enumerate(value, start=1)
        )
    allowed, fits = _VALUE_CHECKS[origin]
    holds = fits(value) and f.metadata.get("condition", fits)(value)
    require(holds, where, f.metadata.get("allowed", allowed), value)
    return tuple(value) if origin is tuple else value
