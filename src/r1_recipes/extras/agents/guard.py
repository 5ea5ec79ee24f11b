"""Bounds on tools and environments, and episodes as the table of completions shows them.

An error of a tool becomes an observation for the model: TRL shows it what the tool raises. It never
ends a run or floods a conversation.
"""

import asyncio
import functools
import inspect
import json
import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.errors import RecipeError, defined_at, first_line, user_code_place
from r1_recipes.common.messages import clip, transcript, without_surrogates

logger = logging.getLogger(__name__)


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


def guarded(function: Callable, limits: Limits) -> Callable:
    """Return a tool with limits on time, output and errors.

    The thread of an abandoned call continues to run, because Python cannot end it.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return _bounded(_in_time(lambda: function(*args, **kwargs), limits.seconds), limits)
        except Exception as error:
            raise _tool_error(error, limits) from error

    @functools.wraps(function)
    async def wait(*args: Any, **kwargs: Any) -> Any:
        try:
            result = await asyncio.wait_for(function(*args, **kwargs), limits.seconds)
            return _bounded(result, limits)
        except Exception as error:
            raise _tool_error(error, limits) from error

    return wait if inspect.iscoroutinefunction(function) else call


def _tool_error(error: Exception, limits: Limits) -> ToolError:
    if isinstance(error, TimeoutError):
        return ToolError(f"no result after {limits.seconds:g} s")
    return ToolError(clip(without_surrogates(f"{type(error).__name__}: {error}"), limits.chars))


def guarded_environment(kind: type, limits: Limits) -> type:
    """Return the environment with guarded methods.

    If ``reset`` or ``get_reward`` fails, the row gets no reward.
    """
    public: dict[str, Any] = {"__doc__": kind.__doc__}
    for name, method in inspect.getmembers(kind, predicate=inspect.isfunction):
        if not name.startswith("_"):
            public[name] = guarded(method, limits)
            if isinstance(inspect.getattr_static(kind, name), staticmethod):
                public[name] = staticmethod(public[name])

    def reset(self: Any, **row: Any) -> Any:
        self._reset_failed = True  # until it has succeeded
        try:
            observation = _bounded(_in_time(lambda: kind.reset(self, **row), limits.seconds), limits)
        except Exception as error:
            _report(kind, "reset", error, limits)
            return None
        self._reset_failed = False
        return observation

    def get_reward(self: Any) -> float | None:
        if self._reset_failed:
            return None
        try:
            value = _in_time(lambda: kind.get_reward(self), limits.seconds)
            if value is None or not math.isfinite(value):  # numbers of NumPy and torch are allowed
                raise ValueError(f"must return a finite number, got {value}")
            return float(value)
        except Exception as error:
            _report(kind, "get_reward", error, limits)
            return None

    public["reset"] = functools.wraps(kind.reset)(reset)
    if "get_reward" in public:
        public["get_reward"] = get_reward
    return type(kind.__name__, (kind,), public)


def _report(kind: type, method: str, error: Exception, limits: Limits) -> None:
    """Warn that a method of an environment fails, or raise if the limits are strict."""
    place = user_code_place(error) or defined_at(getattr(kind, method))
    message = f"environment {kind.__name__}: {method} fails: {first_line(error)[:-1]}{place}"
    if limits.strict:
        raise RecipeError(
            f"{message}. Fix: repair it, because in a run this row would get no reward"
        ) from error
    logger.warning("%s", message)


def _bounded(result: Any, limits: Limits) -> Any:
    """Return a result as text that is not too long. Pictures, in TRL's blocks, stay."""
    if result is None:
        return None
    if isinstance(result, list) and any(
        isinstance(part, dict) and part.get("type") == "image" for part in result
    ):
        return result
    return without_surrogates(clip(str(result), limits.chars))


def _in_time(work: Callable[[], Any], seconds: float) -> Any:
    """Return the result of ``work``, run in a thread. Raise TimeoutError if it is too slow."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            result = work()
            if inspect.iscoroutine(result):
                result = asyncio.run(asyncio.wait_for(result, seconds))
            outcome.append((result, None))
        except BaseException as error:  # also SystemExit: a tool must not end a run
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError(f"no result after {seconds:g} s")
    result, error = outcome[0]
    if isinstance(error, Exception):
        raise error
    if error is not None:
        raise RuntimeError(f"{type(error).__name__}: {error}")
    return result


def for_the_table(episodes: Sequence[list[dict[str, Any]]]) -> list[str]:
    """Return each episode as text for people, and make the arguments of its calls text.

    TRL logs the messages, and Parquet writes neither ``{}`` nor ``{"n": 1}`` beside
    ``{"n": "one"}``.
    """
    texts = [transcript(turns) for turns in episodes]
    for message in (message for turns in episodes for message in turns):
        for call in message.get("tool_calls") or ():
            function = call["function"]
            arguments = json.dumps(function.get("arguments"))
            call["function"] = {"name": str(function["name"]), "arguments": arguments}
    return texts
