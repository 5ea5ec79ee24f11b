"""Errors that say what is wrong, where, and what to write instead, and mappings read with them."""

import contextlib
import difflib
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

T = TypeVar("T")

# Places of code that the user did not write: this package, Python's library, installed packages,
# and code without a file.
_FOREIGN_PLACES = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    "<",
)
# What the user's code may raise. Its sys.exit() must not end a run silently.
USER_ERRORS = (Exception, SystemExit)


class RecipeError(ValueError):
    """Raised when a recipe, or the data it names, cannot be used as written.

    The message names the file, the key and a fix.
    """


def require(condition: object, key: str, allowed: str, value: object, fix: str = "") -> None:
    """Raise RecipeError, ``KEY: must be ALLOWED, got VALUE``, unless ``condition`` holds."""
    if not condition:
        end = f". Fix: {fix}" if fix else ""
        raise RecipeError(f"{key}: must be {allowed}, got {value!r}{end}")


@contextlib.contextmanager
def located(where: object) -> Iterator[None]:
    """Prefix a ValueError of this block with ``where`` and raise it as a RecipeError."""
    try:
        yield
    except ValueError as error:
        raise RecipeError(f"{where}: {error}") from error


def nearest(name: str, choices: Iterable[str], n: int = 3) -> list[str]:
    """Return the ``n`` choices closest to ``name``, best first. Empty if none is close."""
    return difflib.get_close_matches(name, list(choices), n=n, cutoff=0.5)


def unknown_name(kind: str, name: object, choices: Iterable[str]) -> str:
    """Return the message for an unknown name: the closest valid names, and all valid names."""
    choices = sorted(choices)
    close = nearest(str(name), choices)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    return f"unknown {kind} {name!r}.{hint} Available: {', '.join(choices)}."


def first_line(error: BaseException) -> str:
    """Return a library's error as ``TYPE: FIRST LINE.``"""
    line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}".rstrip(": .") + "."


def user_code_place(error: BaseException) -> str:
    """Return `` (FILE:LINE)`` of the last line of the user's code that an error passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_FOREIGN_PLACES)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


@contextlib.contextmanager
def own_code(what: str, fix: str = "correct it") -> Iterator[None]:
    """Raise errors of the user's code as a RecipeError: what fails, where and why."""
    try:
        yield
    except RecipeError:
        raise
    except USER_ERRORS as error:
        text = f"{first_line(error)[:-1]}{user_code_place(error)}"
        raise RecipeError(f"{what} fails: {text}. Fix: {fix}") from error


# Dataclasses from the mappings of a file


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
        with contextlib.suppress(TypeError, AttributeError):  # a value of another type
            fits = limits["condition"](value)
        require(fits, key, limits["allowed"], value)
    return tuple(value) if isinstance(value, list) else value
