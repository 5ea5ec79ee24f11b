"""Build dataclasses from a file's mappings. :func:`limited` says which values are allowed."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, field, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from r1_recipes.common.errors import RecipeError, require, unknown_name

T = TypeVar("T")


def limited(condition: Callable[[Any], Any], allowed: str, default: Any = MISSING) -> Any:
    """Return a dataclass field with a condition on its values.

    ``allowed`` describes the values that meet the condition, for the error message.
    """
    return field(default=default, metadata={"condition": condition, "allowed": allowed})


def from_mapping(cls: type[T], mapping: Any, where: str) -> T:
    """Build a dataclass from a mapping; a value of ``None`` counts as absent, a list is a tuple.

    Fields may be dataclasses, or tuples of dataclasses. Raise RecipeError that begins with
    ``where`` and names the key.
    """
    known = {f.name: f.metadata for f in fields(cls)}  # type: ignore[arg-type]
    require(isinstance(mapping, Mapping), where, f"a mapping of {', '.join(known)}", mapping)
    hints, values = get_type_hints(cls), {}
    try:
        for key, value in mapping.items():
            if key not in known:
                raise ValueError(unknown_name("key", key, known))
            if value is not None:
                values[key] = _read(key, value, hints[key], known[key])
        return cls(**values)
    except (TypeError, ValueError) as error:  # a key is missing, or does not fit another one
        raise RecipeError(f"{where}: {error}") from error


def _read(key: str, value: Any, hint: Any, limits: Mapping[str, Any]) -> Any:
    kind: Any = next((part for part in (hint, *get_args(hint)) if is_dataclass(part)), None)
    if kind and isinstance(value, list):
        item = key.removesuffix("s")
        return tuple(from_mapping(kind, part, f"{item} {n}") for n, part in enumerate(value, 1))
    if kind:
        return from_mapping(kind, value, key)
    if limits:
        fits = False
        with suppress(TypeError, AttributeError):  # a value of another type
            fits = limits["condition"](value)
        require(fits, key, limits["allowed"], value)
    return tuple(value) if isinstance(value, list) else value
