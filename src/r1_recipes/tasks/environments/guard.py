"""Bounds on tools and environments: what one does wrong is an observation for the model, and never ends or floods a run."""

import asyncio
import contextlib
import functools
import inspect
import io
import logging
import math
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.errors import first_line
from r1_recipes.common.messages import clip, without_surrogates

logger = logging.getLogger(__name__)

_inside = ContextVar("_inside", default=False)  # a call is under way; those that it makes itself are not the model's


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
    """Return the tool with time, output and errors bounded, its prints dropped; the thread of a call that is given up goes on."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wait(*args: Any, **kwargs: Any) -> Any:
            if _inside.get():
                return await function(*args, **kwargs)
            _inside.set(True)  # in this task
            with _as_tool_error(limits), contextlib.redirect_stdout(_Nowhere()):
                return _bounded(await asyncio.wait_for(function(*args, **kwargs), limits.seconds), limits)

        return wait

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _inside.get():
            return function(*args, **kwargs)
        with _as_tool_error(limits):
            return _in_time(lambda: _bounded(function(*args, **kwargs), limits), limits.seconds)

    return call


def guarded_environment(kind: type, limits: Limits) -> type:
    """Return the environment with its methods as :func:`guarded`; a ``reset`` or ``get_reward`` that fails leaves the row unjudged."""
    methods = dict(inspect.getmembers(kind, predicate=inspect.isfunction))
    own: dict[str, Any] = {name: guarded(method, limits) for name, method in methods.items() if not name.startswith("_")}
    own |= {name: staticmethod(tool) for name, tool in own.items() if isinstance(inspect.getattr_static(kind, name), staticmethod)}

    def reset(self: Any, **row: Any) -> Any:
        self._reset_failed = True  # until it is done
        try:
            observation = _awaited(own["reset"](self, **row))
        except ToolError as error:
            logger.warning("environment %s: reset fails: %s", kind.__name__, error)
            return None
        self._reset_failed = False
        return observation

    def get_reward(self: Any) -> float | None:
        try:
            value = None if self._reset_failed else _in_time(lambda: _awaited(kind.get_reward(self)), limits.seconds)  # type: ignore[attr-defined]
            if value is None or math.isfinite(paid := float(value)):  # of NumPy and Torch, too
                return value if value is None else paid
            raise ValueError(f"must pay a finite number, got {paid}")
        except Exception as error:
            logger.warning("environment %s: get_reward fails: %s", kind.__name__, first_line(error))
            return None

    bounded: dict[str, Any] = {**own, "reset": functools.wraps(methods["reset"])(reset)}
    if "get_reward" in methods:
        bounded["get_reward"] = functools.wraps(methods["get_reward"])(get_reward)
    return type(kind.__name__, (kind,), {**bounded, "__doc__": kind.__doc__})


def _awaited(result: Any) -> Any:
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def _bounded(result: Any, limits: Limits) -> Any:
    blocks = isinstance(result, list) and result and all(isinstance(part, dict) and "type" in part for part in result)
    if result is None or blocks:  # no observation; content blocks, with pictures
        return result
    return without_surrogates(clip(str(result), limits.chars))


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
        _inside.set(True)
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
