"""Bounds on tools and environments: what one does wrong is an observation for the model, and never ends or floods a run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import io
import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.errors import first_line
from r1_recipes.common.messages import clip, without_surrogates

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What one call of a tool may take."""

    seconds: float = 10.0
    chars: int = 2000  # of its result, and of its error


class ToolError(RuntimeError):
    """A call that failed; TRL shows the text to the model and counts it."""


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


def guarded(function: Callable, limits: Limits) -> Callable:
    """Return the tool with its time, output and errors bounded; what it prints is dropped.

    A call that takes too long is given up: its thread, which Python cannot end, goes on until it returns.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wait(*args: Any, **kwargs: Any) -> Any:
            with _as_tool_error(limits), contextlib.redirect_stdout(_Nowhere()):
                return _bounded(await asyncio.wait_for(function(*args, **kwargs), limits.seconds), limits)

        return wait

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _as_tool_error(limits):
            return _in_time(lambda: _bounded(function(*args, **kwargs), limits), limits.seconds)

    return call


def guarded_environment(kind: type, limits: Limits) -> type:
    """Return the environment with its methods as :func:`guarded`; a ``reset`` or ``get_reward`` that fails leaves the row unjudged."""
    methods = dict(inspect.getmembers(kind, predicate=inspect.isfunction))
    own = {name: guarded(method, limits) for name, method in methods.items() if not name.startswith("_")}

    def reset(self: Any, **row: Any) -> Any:
        self.failed = True  # until it is done
        try:
            observation = own["reset"](self, **row)
        except ToolError as error:
            logger.warning("environment %s: reset fails: %s", kind.__name__, error)
            return None
        self.failed = False
        return observation

    def get_reward(self: Any) -> float | None:
        try:
            value = None if self.failed else _in_time(lambda: _awaited(kind.get_reward(self)), limits.seconds)  # type: ignore[attr-defined]
        except Exception as error:
            logger.warning("environment %s: get_reward fails: %s", kind.__name__, first_line(error))
            return None
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    bounded: dict[str, Any] = {**own, "reset": functools.wraps(methods["reset"])(reset)}
    if "get_reward" in methods:
        bounded["get_reward"] = functools.wraps(methods["get_reward"])(get_reward)
    return type(kind.__name__, (kind,), {**bounded, "__doc__": kind.__doc__})


def _awaited(result: Any) -> Any:
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def _bounded(result: Any, limits: Limits) -> Any:
    if result is None or isinstance(result, list):  # no observation; content blocks, with pictures
        return result
    return clip(without_surrogates(str(result)), limits.chars)


@contextlib.contextmanager
def _as_tool_error(limits: Limits) -> Any:
    try:
        yield
    except TimeoutError as error:
        raise ToolError(f"no result after {limits.seconds:g} s") from error
    except Exception as error:
        raise ToolError(clip(without_surrogates(f"{type(error).__name__}: {error}"), limits.chars)) from error


def _in_time(work: Callable[[], Any], seconds: float) -> Any:
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:  # SystemExit, too: a tool does not end a run
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    with contextlib.redirect_stdout(_Nowhere()):
        thread.start()
        thread.join(seconds)
    if not outcome:
        raise TimeoutError
    result, error = outcome[0]
    if error is not None:
        raise error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
    return result
