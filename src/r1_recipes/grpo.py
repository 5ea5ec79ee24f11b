"""``accelerate launch -m r1_recipes.grpo recipes/NAME.yaml [--key value …]``: GRPO, one YAML a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes import runtime

if TYPE_CHECKING:
    from trl import GRPOTrainer

    from r1_recipes.formats import ResponseFormat
    from r1_recipes.recipe import Recipe


def main(argv: Sequence[str] | None = None) -> None:
    """Run a GRPO recipe; see :func:`r1_recipes.runtime.run_recipe`."""
    runtime.run_recipe(argv, "grpo", build_trainer)


def build_trainer(recipe: Recipe, fmt: ResponseFormat, tokenizer: Any, arguments: dict[str, Any]) -> GRPOTrainer:
    """TRL's GRPO trainer with the recipe's rewards, which read completions through its response format, each on the rows of its tasks."""
    from trl import GRPOTrainer

    from r1_recipes.rewards import get_reward_funcs, route

    script = recipe.script
    rewards = get_reward_funcs(script.reward_funcs, fmt, **recipe.reward_params)
    if script.task_rewards is not None:
        rewards = route(rewards, script.reward_funcs, script.task_rewards, script.task_column)
    return GRPOTrainer(reward_funcs=rewards, **arguments)


if __name__ == "__main__":
    main()
