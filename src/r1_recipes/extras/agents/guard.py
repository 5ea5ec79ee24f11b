"""Bounds on tools and environments, and episodes as the table of completions shows them.

An error of a tool becomes an observation for the model: TRL shows it what the tool raises. It never
ends a run or floods a conversation.
"""

import asyncio
import contextlib
import functools
import inspect
import json
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError, defined_at, first_line, user_code_place
from r1_recipes.common.messages import clip, transcript, without_surrogates
from r1_recipes.recipe import Recipe

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


def guarded_environment(kind: Any, limits: Limits) -> type:
    """Return the environment with guarded methods.

    If ``reset`` or ``get_reward`` fails, the row gets no reward.
    """
    public: dict[str, Any] = {"__doc__": kind.__doc__}
    for name, method in inspect.getmembers(kind, predicate=inspect.isfunction):
        if not name.startswith("_"):
            static = isinstance(inspect.getattr_static(kind, name), staticmethod)
            public[name] = (
                staticmethod(guarded(method, limits)) if static else guarded(method, limits)
            )

    @functools.wraps(kind.reset)
    def reset(self: Any, **row: Any) -> Any:
        self._reset_failed = True  # until it has succeeded
        with _reported(kind, "reset", limits):
            result = _bounded(_in_time(lambda: kind.reset(self, **row), limits.seconds), limits)
            self._reset_failed = False
            return result

    def get_reward(self: Any) -> float | None:
        with _reported(kind, "get_reward", limits):
            if not self._reset_failed:
                value = _in_time(lambda: kind.get_reward(self), limits.seconds)
                if value is None or not math.isfinite(value):  # NumPy's and torch's are allowed
                    raise ValueError(f"must return a finite number, got {value}")
                return float(value)
        return None

    public["reset"] = reset
    if "get_reward" in public:
        public["get_reward"] = get_reward
    return type(kind.__name__, (kind,), public)


@contextlib.contextmanager
def _reported(kind: type, method: str, limits: Limits) -> Iterator[None]:
    """Warn that a method of an environment fails, or raise if the limits are strict."""
    try:
        yield
    except Exception as error:
        place = user_code_place(error) or defined_at(getattr(kind, method))
        message = f"environment {kind.__name__}: {method} fails: {first_line(error)[:-1]}{place}"
        if limits.strict:
            fix = "repair it, because in a run this row would get no reward"
            raise RecipeError(f"{message}. Fix: {fix}") from error
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
    future: Future[Any] = Future()

    def run() -> None:
        try:
            result = work()
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
            future.set_result(result)
        except Exception as error:
            future.set_exception(error)
        except BaseException as error:  # SystemExit: a tool must not end a run
            future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

    threading.Thread(target=run, daemon=True).start()
    return future.result(seconds)


def check_turns(recipe: Recipe) -> None:
    """Refuse tools on several processes that generate together.

    Each process asks for further turns until its own completions are done, so their numbers of
    calls differ (TRL 1.16: grpo_trainer.py, ``_tool_call_loop``). Where a call takes all processes,
    they would hang, or train on each other's completions.
    """
    from accelerate.utils import parse_flag_from_env  # heavy

    training, plugin = recipe.training, recipe.training.deepspeed_plugin
    sharded = parse_flag_from_env("ACCELERATE_USE_FSDP") or (plugin and plugin.zero_stage == 3)
    together = sharded and (training.vllm_enable_sleep_mode or not training.use_vllm)
    together = together or (
        training.use_vllm
        and (training.vllm_mode == "server" or training.vllm_tensor_parallel_size > 1)
    )
    if together and processes.world_size() > 1:
        raise RecipeError(
            f"{recipe.path}: tools, environment: processes that generate together would mix up "
            "their completions. Fix: use_vllm: true, vllm_mode: colocate, "
            "vllm_tensor_parallel_size: 1, vllm_enable_sleep_mode: false"
        )


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
