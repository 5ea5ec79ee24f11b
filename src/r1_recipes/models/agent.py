"""A recipe's tools and environments, which the extra ``agents`` builds."""

from collections.abc import Callable
from typing import Any

from r1_recipes.recipe import Recipe

# Tools, and a factory of each environment by its name in the column ``environment``; ``None``
# stands for all rows.
Agent = tuple[list[Callable], dict[str | None, Callable]]


def agent(recipe: Recipe, tokenizer: Any | None, strict: bool = False) -> Agent:
    """Return the recipe's tools and environments.

    ``tokenizer`` is ``None`` if a server has the chat template. With ``strict``, a failing
    ``reset`` or ``get_reward`` raises, as in a smoke run.
    """
    if recipe.script.tools or recipe.script.environment:
        from r1_recipes.extras.agents import build

        built: Agent = build.agent(recipe, tokenizer, strict)
        if any(built):
            return built
    # A response template of an earlier run would make TRL count the prefill as the model's text.
    if tokenizer is not None:
        tokenizer.response_template = None
    return [], {}
