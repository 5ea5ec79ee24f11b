"""Errors that say what is wrong, where, and what to write instead."""

import contextlib
import difflib
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

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


def install_hint(extra: str) -> str:
    """Return the command that installs one of this package's extras at the tested versions."""
    return f"pip install -c constraints.txt -e '.[{extra}]'"


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
