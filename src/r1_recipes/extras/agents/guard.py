"""Bounds on tools and environments.

An error of a tool becomes an observation for the model. It never ends a run or floods its output.
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

# True during a call. The bounds do not apply to calls that a tool makes itself.
_inside = ContextVar("_inside", default=False)


@dataclass(frozen=True)
class Limits:
    """The limits of a call of a tool.

    Attributes:
        seconds: The time limit.
        chars: The length limit of its result and of its error.
        strict: End the run if ``reset`` or ``get_reward`` fails, as in a smoke run.
    """

    seconds: float = 10.0
    chars: int = 2000
    strict: bool = False


class ToolError(RuntimeError):
    """Raised for a call that failed. TRL counts it and shows the text to the model."""


class _Quiet:
    """A standard output that drops everything that calls print.

    Calls may end in any order, also after they were abandoned.
    """

    def __init__(self, out: Any) -> None:
        self._out = out

    def write(self, text: str) -> int:
        return len(text) if _inside.get() else self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


def guarded(
    function: Callable, limits: Limits, abandoned_threads: Callable[[Any], list] | None = None
) -> Callable:
    """Return a tool with limits on time, output and errors. Its prints are dropped.

    The thread of an abandoned call continues to run. ``abandoned_threads`` returns the list of such
    threads for the object of a method.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _inside.get():
            return function(*args, **kwargs)
        try:
            abandoned = abandoned_threads(args[0]) if abandoned_threads else []
            return _in_time(
                lambda: _bounded(_awaited(function(*args, **kwargs), limits.seconds), limits),
                limits.seconds,
                abandoned,
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
    """Return the environment with guarded methods.

    If ``reset`` or ``get_reward`` fails, the row gets no reward.
    """
    methods = dict(inspect.getmembers(kind, predicate=inspect.isfunction))
    static = {
        name for name in methods if isinstance(inspect.getattr_static(kind, name), staticmethod)
    }

    def abandoned_threads(self: Any) -> list[threading.Thread]:
        threads: list[threading.Thread] = vars(self).setdefault("_abandoned_threads", [])
        return threads

    public: dict[str, Any] = {
        name: staticmethod(guarded(method, limits))
        if name in static
        else guarded(method, limits, abandoned_threads)
        for name, method in methods.items()
        if not name.startswith("_")
    }

    bounded: dict[str, Any] = {
        **public,
        "reset": _bounded_reset(kind, public["reset"], limits, abandoned_threads),
    }
    if "get_reward" in methods:
        bounded["get_reward"] = _bounded_reward(kind, limits, abandoned_threads)
    return type(kind.__name__, (kind,), {**bounded, "__doc__": kind.__doc__})


_Threads = Callable[[Any], list[threading.Thread]]  # The abandoned threads of an environment.


def _bounded_reset(
    kind: Any, guarded_reset: Callable, limits: Limits, abandoned_threads: _Threads
) -> Callable:
    @functools.wraps(kind.reset)
    def reset(self: Any, **row: Any) -> Any:
        self._reset_failed = True  # Until it has succeeded.
        try:
            _check_ended(abandoned_threads(self))
            observation = guarded_reset(self, **row)
            if inspect.iscoroutine(observation):
                observation = asyncio.run(observation)
        except ToolError as error:
            _report(kind, "reset", error, limits)
            return None
        self._reset_failed = False
        return observation

    return reset


def _bounded_reward(kind: Any, limits: Limits, abandoned_threads: _Threads) -> Callable:
    @functools.wraps(kind.get_reward)
    def get_reward(self: Any) -> float | None:
        def score() -> Any:
            return _awaited(kind.get_reward(self), limits.seconds)

        try:
            if self._reset_failed:
                return None
            return _finite(_in_time(score, limits.seconds, abandoned_threads(self)))
        except Exception as error:
            _report(kind, "get_reward", error, limits)
            return None

    return get_reward


def _report(kind: type, method: str, error: Exception, limits: Limits) -> None:
    """Warn that a method of an environment fails, or raise if the limits are strict."""
    cause = str(error) if isinstance(error, ToolError) else first_line(error)[:-1]
    place = user_code_place(error.__cause__ or error) or defined_at(getattr(kind, method))
    message = f"environment {kind.__name__}: {method} fails: {cause}{place}"
    if limits.strict:
        raise RecipeError(
            f"{message}. Fix: repair it, because in a run this row would get no reward"
        ) from error
    logger.warning("%s", message)


def _check_ended(threads: list[threading.Thread]) -> None:
    """Raise if an abandoned call still runs, because it could change this episode."""
    if any(thread.is_alive() for thread in threads):
        raise ToolError(
            "a call of an earlier episode, abandoned after tool_timeout, has not ended yet"
        )
    threads.clear()


def _finite(value: Any) -> float:
    if value is None or not math.isfinite(value):  # Numbers of NumPy and Torch are allowed.
        raise ValueError(f"must return a finite number, got {value}")
    return float(value)


_loops: list[asyncio.AbstractEventLoop] = []  # Only the last one is used.
_loops_lock = threading.Lock()


def _awaited(result: Any, seconds: float) -> Any:
    """Return the result of a coroutine; any other result is returned unchanged.

    All coroutines share an event loop, because one may read a connection that another opened. A
    blocked loop is replaced.
    """
    if not inspect.iscoroutine(result):
        return result
    with _loops_lock:
        if not (_loops and _responds(_loops[-1], min(1.0, seconds / 2))):
            _loops.append(asyncio.new_event_loop())
            threading.Thread(target=_loops[-1].run_forever, daemon=True).start()
        future = asyncio.run_coroutine_threadsafe(result, _loops[-1])
    try:
        return future.result(seconds)
    finally:
        future.cancel()


def _responds(loop: asyncio.AbstractEventLoop, seconds: float) -> bool:
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
    if any(part["type"] == "image" for part in blocks):  # TRL reads pictures in this format.
        return [
            part if part["type"] == "image" else {"type": "text", "text": text(part[part["type"]])}
            for part in blocks
        ]
    # Some chat templates cannot write blocks of text, so join them.
    return (
        None
        if result is None
        else text("\n".join(str(part[part["type"]]) for part in blocks) if blocks else result)
    )


def _in_time(work: Callable[[], Any], seconds: float, abandoned: list[threading.Thread]) -> Any:
    """Return the result of ``work``, run in a thread. Raise TimeoutError if it is too slow."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        _inside.set(True)
        try:
            outcome.append((work(), None))
        except BaseException as error:  # Also SystemExit: a tool must not end a run.
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    if not isinstance(sys.stdout, _Quiet):
        sys.stdout = _Quiet(sys.stdout)
    thread.start()
    thread.join(seconds)
    if not outcome:
        abandoned.append(thread)
        raise TimeoutError
    result, error = outcome[0]
    if error is not None:
        raise (
            error
            if isinstance(error, Exception)
            else RuntimeError(f"{type(error).__name__}: {error}")
        )
    return result
