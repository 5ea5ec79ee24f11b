"""Bounds on tools and environments: what one does wrong is an observation for the model, and never
ends or floods a run.
"""

import asyncio
import contextlib
import functools
import inspect
import logging
import math
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.errors import RecipeError, defined_at, first_line, user_code_place
from r1_recipes.common.messages import clip, without_surrogates

logger = logging.getLogger(__name__)

_inside = ContextVar(
    "_inside", default=False
)  # a call is under way; those that it makes itself are not the model's


@dataclass(frozen=True)
class Limits:
    """What one call of a tool may take."""

    seconds: float = 10.0
    chars: int = 2000  # of its result, and of its error
    strict: bool = False  # a reset or get_reward that fails ends the run, as in a smoke run


class ToolError(RuntimeError):
    """A call that failed; TRL shows the text to the model and counts it."""


class _Quiet:
    """A standard output that drops what calls print; they may end in any order, or after they were
    given up.
    """

    def __init__(self, out: Any) -> None:
        self._out = out

    def write(self, text: str) -> int:
        return len(text) if _inside.get() else self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


def guarded(
    function: Callable, limits: Limits, late: Callable[[Any], list] | None = None
) -> Callable:
    """Return the tool with time, output and errors bounded, its prints dropped; the thread of a
    call that is given up goes on.

    ``late`` returns the list, by the method's object, that such threads are added to.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _inside.get():
            return function(*args, **kwargs)
        try:
            given_up = late(args[0]) if late else []
            return _in_time(
                lambda: _bounded(_awaited(function(*args, **kwargs), limits.seconds), limits),
                limits.seconds,
                given_up,
            )
        except TimeoutError as error:
            raise ToolError(f"no result after {limits.seconds:g} s") from error
        except Exception as error:
            raise ToolError(
                clip(without_surrogates(f"{type(error).__name__}: {error}"), limits.chars)
            ) from error

    @functools.wraps(function)
    async def wait(*args: Any, **kwargs: Any) -> Any:
        return await (
            function(*args, **kwargs) if _inside.get() else asyncio.to_thread(call, *args, **kwargs)
        )

    return wait if inspect.iscoroutinefunction(function) else call


def guarded_environment(kind: type, limits: Limits) -> type:
    """Return the environment with its methods as :func:`guarded`; a ``reset`` or ``get_reward``
    that fails leaves the row unjudged.
    """
    methods = dict(inspect.getmembers(kind, predicate=inspect.isfunction))
    static = {
        name for name in methods if isinstance(inspect.getattr_static(kind, name), staticmethod)
    }

    def late(self: Any) -> list[threading.Thread]:
        found: list[threading.Thread] = vars(self).setdefault("_late", [])
        return found

    own: dict[str, Any] = {
        name: staticmethod(guarded(method, limits))
        if name in static
        else guarded(method, limits, late)
        for name, method in methods.items()
        if not name.startswith("_")
    }

    bounded: dict[str, Any] = {**own, "reset": _bounded_reset(kind, own["reset"], limits, late)}
    if "get_reward" in methods:
        bounded["get_reward"] = _bounded_reward(kind, limits, late)
    return type(kind.__name__, (kind,), {**bounded, "__doc__": kind.__doc__})


_Late = Callable[[Any], list[threading.Thread]]  # an environment's calls that were given up


def _bounded_reset(kind: Any, guarded_reset: Callable, limits: Limits, late: _Late) -> Callable:
    @functools.wraps(kind.reset)
    def reset(self: Any, **row: Any) -> Any:
        self._reset_failed = True  # until it is done
        try:
            _check_ended(late(self))
            observation = guarded_reset(self, **row)
            if inspect.iscoroutine(observation):
                observation = asyncio.run(observation)
        except ToolError as error:
            _report(kind, "reset", error, limits)
            return None
        self._reset_failed = False
        return observation

    return reset


def _bounded_reward(kind: Any, limits: Limits, late: _Late) -> Callable:
    @functools.wraps(kind.get_reward)
    def get_reward(self: Any) -> float | None:
        def pay() -> Any:
            return _awaited(kind.get_reward(self), limits.seconds)

        try:
            if self._reset_failed:
                return None
            return _finite(_in_time(pay, limits.seconds, late(self)))
        except Exception as error:
            _report(kind, "get_reward", error, limits)
            return None

    return get_reward


def _report(kind: type, method: str, error: Exception, limits: Limits) -> None:
    """Warn that an environment's method fails, or raise where a trial wants to know."""
    cause = str(error) if isinstance(error, ToolError) else first_line(error)[:-1]
    place = user_code_place(error.__cause__ or error) or defined_at(getattr(kind, method))
    message = f"environment {kind.__name__}: {method} fails: {cause}{place}"
    if limits.strict:
        raise RecipeError(
            f"{message}. Fix: mend it; in a run that row would not be judged"
        ) from error
    logger.warning("%s", message)


def _check_ended(threads: list[threading.Thread]) -> None:
    """Refuse an environment whose abandoned call still runs: it would write into this episode."""
    if any(thread.is_alive() for thread in threads):
        raise ToolError(
            "a call of an earlier episode, given up after tool_timeout, has not ended yet"
        )
    threads.clear()


def _finite(value: Any) -> float:
    if value is None or not math.isfinite(value):  # a number of NumPy or Torch, too
        raise ValueError(f"must return a finite number, got {value}")
    return float(value)


_loops: list[asyncio.AbstractEventLoop] = []  # the last one is used
_one_at_a_time = threading.Lock()


def _awaited(result: Any, seconds: float) -> Any:
    """What a coroutine returns. All share one loop, since what one opens another may read; a loop
    that one of them blocks is left.
    """
    if not inspect.iscoroutine(result):
        return result
    with _one_at_a_time:
        if not (_loops and _answers(_loops[-1], min(1.0, seconds / 2))):
            _loops.append(asyncio.new_event_loop())
            threading.Thread(target=_loops[-1].run_forever, daemon=True).start()
        future = asyncio.run_coroutine_threadsafe(result, _loops[-1])
    try:
        return future.result(seconds)
    finally:
        future.cancel()


def _answers(loop: asyncio.AbstractEventLoop, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(seconds)
        return True
    return False


def _bounded(result: Any, limits: Limits) -> Any:
    def text(value: Any) -> str:
        return without_surrogates(clip(str(value), limits.chars))

    blocks = (
        result
        if isinstance(result, list)
        and all(isinstance(part, dict) and part.get("type") in part for part in result)
        else []
    )
    if any(part["type"] == "image" for part in blocks):  # as TRL takes pictures
        return [
            part if part["type"] == "image" else {"type": "text", "text": text(part[part["type"]])}
            for part in blocks
        ]
    # Not every template writes blocks of text.
    return (
        None
        if result is None
        else text("\n".join(str(part[part["type"]]) for part in blocks) if blocks else result)
    )


def _in_time(work: Callable[[], Any], seconds: float, late: list[threading.Thread]) -> Any:
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        _inside.set(True)
        try:
            outcome.append((work(), None))
        except BaseException as error:  # SystemExit, too: a tool does not end a run
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    if not isinstance(sys.stdout, _Quiet):
        sys.stdout = _Quiet(sys.stdout)
    thread.start()
    thread.join(seconds)
    if not outcome:
        late.append(thread)
        raise TimeoutError
    result, error = outcome[0]
    if error is not None:
        raise (
            error
            if isinstance(error, Exception)
            else RuntimeError(f"{type(error).__name__}: {error}")
        )
    return result
