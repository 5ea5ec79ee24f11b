"""The reward of an environment of verifiers."""

from __future__ import annotations

import asyncio
import functools
import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from r1_recipes.common.errors import USER_ERRORS, RecipeError, first_line, user_code_place
from r1_recipes.common.messages import completion_texts
from r1_recipes.extras.verifiers.environment import LOADED, MADE, stamp
from r1_recipes.rewards.call import warn_once
from r1_recipes.rewards.registry import Column, Reward, Values, register_reward

# A judge that never answers must not stop all processes.
SECONDS = 240.0


@register_reward("verifiers")
class VerifiersReward(Reward):
    """Return the reward of the row's environment: the weighted sum of its reward functions.

    Range: the environment's; ``evaluate`` counts a completion as right from 1. Only the last
    message is scored. Return ``None``, with a warning, where a function fails (verifiers counts
    it as 0), the sum is not finite, or 240 s have passed. Source: ``Rubric.score_rollout`` and
    ``Task.score`` of verifiers 0.3.1.
    """

    judges = "answer"

    def __call__(
        self, completions: Column, *, verifiers: Column | None = None, **columns: Any
    ) -> Values:
        if verifiers is None:
            needed = "the column 'verifiers', which dataset_name: verifiers:NAME has"
            raise self.missing(needed, columns)
        job = _scores(verifiers, completion_texts(completions))
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # Some reward functions use signals, which need the main thread.
            return _loop().run_until_complete(job)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_loop().run_until_complete, job).result()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all batches, because connections to a judge belong to a loop."""
    return asyncio.new_event_loop()


async def _scores(specs: Column, texts: list[str]) -> Values:
    return await asyncio.gather(*map(_score, specs, texts))


async def _score(text_of_row: str | None, text: str) -> float | None:
    spec = json.loads(text_of_row or "{}")
    name = spec.get("environment")
    if name is None:  # An example row, or a row of another data set.
        return None
    environment = LOADED.get((name, spec["arguments"]))
    if environment is None or stamp(str(text_of_row)) not in MADE:
        raise RecipeError(
            f"reward_funcs: verifiers: a row names the environment {name!r}, which did not make "
            f"it. Fix: dataset_name: verifiers:{name}"
        )
    try:
        async with asyncio.timeout(SECONDS):
            reward = float(await environment.score(spec["row"], text))
        if math.isfinite(reward):
            return reward
        problem = f"the sum must be finite, got {reward}"
    except USER_ERRORS as error:
        problem = first_line(error)[:-1] + user_code_place(error.__context__ or error)
    warn_once(
        f"reward_funcs: verifiers: environment {name!r}: {problem}. The completion gets no reward. "
        "Fix: correct the environment"
    )
    return None
