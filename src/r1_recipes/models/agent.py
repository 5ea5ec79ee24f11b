"""A recipe's tools and environments, which the extra ``agents`` builds."""

from collections.abc import Callable
from typing import Any

from r1_recipes.common import extras
from r1_recipes.recipe import Recipe


def agent(
    recipe: Recipe, tokenizer: Any | None, strict: bool = False
) -> tuple[list[Callable], dict[str | None, Callable]]:
    """Return the recipe's tools, and its environments by the column of that name (``None``: for all
    rows); a server has the template.

    ``strict``: a reset or get_reward that fails is an error, as in a smoke run.
    """
    if recipe.script.tools or recipe.script.environment:
        built: tuple[list[Callable], dict[str | None, Callable]] = extras.needed(
            "agents", "tools"
        ).agent(recipe, tokenizer, strict)
        if any(built):
            return built
    if (
        tokenizer is not None
    ):  # an earlier run's, by which TRL would take the prefill for the model's words
        tokenizer.response_template = None
    return [], {}
