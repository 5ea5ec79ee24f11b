"""The recipe's rewards, called the way TRL calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe import Recipe

NEEDS_MODEL = "reward_model"
# What a right answer in the right shape gets of a rule; other rewards' best value is their author's to know.
_FULL = ["accuracy", "answer_contains", "countdown", "multiply", "format", "format_partial", "tag_count", "reasoning_steps"]
_FULL += ["code", "binary_code", "code_format"]
FULL_MARKS = dict.fromkeys([*_FULL, "xml_soft_format", "xml_strict_format"], 1.0) | {"repetition_penalty": 0.0}
# These judge by the gold, as verification.grade reads it.
GRADED = ("accuracy", "cosine", "length")


def reward_functions(recipe: Recipe, fmt: ResponseFormat, *, with_models: bool) -> list[tuple[str, Callable | None]]:
    """Each reward by its name in the recipe; ``None`` for one that needs a model of its own, if those are left out."""
    from r1_recipes.rewards import get_reward_funcs, route

    script = recipe.script
    left_out = {} if with_models or "match_judge" not in recipe.reward_params else {"match_judge": ""}
    functions = get_reward_funcs(script.reward_funcs, fmt, **{**recipe.reward_params, **left_out})
    if script.task_rewards is not None:
        functions = route(functions, script.reward_funcs, script.task_rewards, script.task_column)
    return [
        (name, function if with_models or name != NEEDS_MODEL else None)
        for name, function in zip(script.reward_funcs, functions, strict=True)
    ]


def weights(recipe: Recipe) -> list[float]:
    """One weight a reward, as TRL has them."""
    return recipe.training.reward_weights or [1.0] * len(recipe.script.reward_funcs)


def total(scores: Sequence[float | None], reward_weights: Sequence[float]) -> float | None:
    """TRL's sum of one completion's rewards: what is not judged adds nothing; ``None`` where nothing is."""
    judged = [value * weight for value, weight in zip(scores, reward_weights, strict=True) if value is not None]
    return sum(judged) if judged else None
