"""The recipe's rewards, called the way TRL calls them."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from r1_recipes.errors import RecipeError, first_line
from r1_recipes.formats import ResponseFormat
from r1_recipes.recipe import Recipe

NEEDS_MODEL = "reward_model"
# What a right answer in the right shape gets of a rule; other rewards' best value is their author's to know.
_FULL = ["accuracy", "answer_contains", "countdown", "multiply", "format", "format_partial", "tag_count", "reasoning_steps"]
_FULL += ["code", "binary_code", "code_format"]
FULL_MARKS = dict.fromkeys([*_FULL, "xml_soft_format", "xml_strict_format"], 1.0) | {"repetition_penalty": 0.0}
# These judge by the gold, as verification.grade reads it.
GRADED = ("accuracy", "cosine", "length")


def reward_functions(recipe: Recipe, fmt: ResponseFormat, *, with_models: bool) -> list[tuple[str, Callable | None]]:
    """Each reward by its name in the recipe; ``None`` for one that needs a model of its own, where those are left out."""
    from r1_recipes.rewards import get_reward_funcs, route

    script = recipe.script
    functions = get_reward_funcs(script.reward_funcs, fmt, **recipe.reward_params)
    if script.task_rewards is not None:
        functions = route(functions, script.reward_funcs, script.task_rewards, script.task_column)
    return [
        (name, function if with_models or name != NEEDS_MODEL else None)
        for name, function in zip(script.reward_funcs, functions, strict=True)
    ]


def weights(recipe: Recipe) -> list[float]:
    """One weight a reward, as TRL has them."""
    return recipe.training.reward_weights or [1.0] * len(recipe.script.reward_funcs)


def score(
    name: str,
    function: Callable,
    rows: Sequence[dict[str, Any]],
    texts: Sequence[str],
    tokenizer: Any,
    tokens: Sequence[int] | None = None,
) -> list[float | None]:
    """Judge one completion a row.

    Args:
        name: for the message.
        rows: the dataset's rows; each text's own, repeated where a row has several.
        texts: completions.
        tokens: how many tokens were generated for each; ``None``: as many as the text has.

    Returns:
        ``None`` where the reward does not judge.

    Raises:
        RecipeError: the reward fails, or returns something else than a number or ``None`` a completion.
    """
    from transformers import TrainerState

    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    if tokens is not None:
        # What ended the turn, and special tokens, are not in the text; their number counts.
        ids = [(one + [tokenizer.pad_token_id] * count)[:count] for one, count in zip(ids, tokens, strict=True)]
    columns = {key: [row[key] for row in rows] for key in rows[0] if key not in ("prompt", "completion", "completion_ids")}
    try:
        result = function(
            prompts=[row["prompt"] for row in rows],
            completions=[[{"role": "assistant", "content": text}] for text in texts],
            completion_ids=ids,
            trainer_state=TrainerState(),
            log_extra=_ignore,
            log_metric=_ignore,
            **columns,
        )
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
    except RecipeError:
        raise
    except Exception as error:
        raise RecipeError(f"reward {name!r} fails on {len(texts)} completions, and would end the run: {first_line(error)}") from error
    if not isinstance(result, list | tuple) or len(result) != len(texts):
        found = f"{len(result)} scores" if isinstance(result, list | tuple) else type(result).__name__
        raise RecipeError(f"reward {name!r} returned {found} for {len(texts)} completions; it must return a list with one a completion")
    try:
        scores = [None if value is None else float(value) for value in result]
    except (TypeError, ValueError) as error:
        raise RecipeError(f"reward {name!r} returned what is neither a number nor None: {first_line(error)}") from error
    return [None if value is None or math.isnan(value) else value for value in scores]


def total(scores: Sequence[float | None], reward_weights: Sequence[float]) -> float | None:
    """TRL's sum of one completion's rewards: what is not judged adds nothing; ``None`` where nothing is."""
    judged = [value * weight for value, weight in zip(scores, reward_weights, strict=True) if value is not None]
    return sum(judged) if judged else None


def _ignore(*values: Any) -> None:
    """In place of TRL's logging."""


async def _awaited(result: Awaitable) -> Any:
    return await result
