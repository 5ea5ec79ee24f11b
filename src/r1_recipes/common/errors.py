"""Errors that teach: what was found, where, and what would work."""

import contextlib
import difflib
import inspect
import site
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

_PACKAGE = str(Path(__file__).parents[1])
# Where code lies that is nobody's own: this package, Python's library, what is installed, code
# without a file.
_FOREIGN = (
    _PACKAGE,
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    site.getusersitepackages(),
    "<",
)
OWN_FAULTS = (
    Exception,
    SystemExit,
)  # what own code may raise: its sys.exit() must not end a run in silence


class RecipeError(ValueError):
    """A recipe, or the data it names, cannot be used as written. The message names the file, the
    key and a remedy.
    """


class StoppedTogether(RecipeError):
    """A run cannot go on. Every process raises it at the same place, so that they can still save a
    checkpoint together.
    """


class BatchError(RecipeError):
    """Groups of completions do not fill a batch."""


def require(condition: object, key: str, allowed: str, value: object, fix: str = "") -> None:
    """Raise a RecipeError, ``KEY: must be ALLOWED, got VALUE``, unless ``condition`` holds."""
    if not condition:
        raise RecipeError(
            f"{key}: must be {allowed}, got {value!r}" + (f". Fix: {fix}" if fix else "")
        )


@contextlib.contextmanager
def located(where: object) -> Iterator[None]:
    """Raise a ValueError of this block as a RecipeError that says ``where`` first."""
    try:
        yield
    except ValueError as error:
        raise RecipeError(f"{where}: {error}") from error


def nearest(name: str, choices: Iterable[str], n: int = 3) -> list[str]:
    """The ``n`` choices most like ``name``, best first; empty where none is close."""
    return difflib.get_close_matches(name, list(choices), n=n, cutoff=0.5)


def unknown_name(kind: str, name: object, choices: Iterable[str]) -> str:
    """The sentence for a name that is in no registry: the name, the nearest valid ones, and all
    there are.
    """
    choices = sorted(choices)
    close = nearest(str(name), choices)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    return f"unknown {kind} {name!r}.{hint} Available: {', '.join(choices)}."


def install_hint(extra: str) -> str:
    """The command that adds one of this package's extras to a clone's environment, at the tested
    versions.
    """
    return f"pip install -c constraints.txt -e '.[{extra}]'"


def first_line(error: BaseException) -> str:
    """A library's error as half a sentence with its full stop: its kind and the first line of its
    message.
    """
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": .") + "."


def is_foreign(file: str) -> bool:
    """Whether code is nobody's own: this package's, a library's, or without a file."""
    return file.startswith(_FOREIGN)


def own_place(error: BaseException) -> str:
    """`` (FILE:LINE)`` of the last line of the user's own code that an error passed through; ``""``
    if there is none.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not is_foreign(frame.filename)
    ]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def defined_at(function: Any) -> str:
    """`` (FILE:LINE)`` of where a function of the user's own, or a class's ``__init__``, begins;
    ``""`` if there is none.
    """
    begins = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    code = getattr(inspect.unwrap(begins), "__code__", None)
    return (
        ""
        if code is None or is_foreign(code.co_filename)
        else f" ({code.co_filename}:{code.co_firstlineno})"
    )


@contextlib.contextmanager
def own_code(what: str, function: Callable, fix: str = "mend it") -> Iterator[None]:
    """Turn what the user's own ``function`` raises in this block into a RecipeError that says
    ``what`` fails, where and why.
    """
    try:
        yield
    except RecipeError:
        raise
    except OWN_FAULTS as error:
        place = own_place(error) or defined_at(function)
        raise RecipeError(f"{what} fails: {first_line(error)[:-1]}{place}. Fix: {fix}") from error
