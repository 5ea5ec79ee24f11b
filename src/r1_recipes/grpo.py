"""Train with GRPO, one YAML per run.

``accelerate launch -q -m r1_recipes.grpo recipes/NAME.yaml [--key value …]``
"""

from collections.abc import Callable, Sequence
from typing import Any

from r1_recipes import verification
from r1_recipes.common.errors import RecipeError
from r1_recipes.metrics.scores import compares_with_gold
from r1_recipes.models.smoke import is_local
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe.types import GRPORecipe, GRPORecipeArguments
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.rewards.routing import route
from r1_recipes.rewards.trial import readable_golds, try_own_rewards
from r1_recipes.training.run import run_recipe


def main(argv: Sequence[str] | None = None) -> None:
    run_recipe(argv, "grpo", build_trainer)


def build_trainer(
    recipe: GRPORecipe, fmt: ResponseFormat, tokenizer: Any, arguments: dict[str, Any]
) -> Any:
    """Return TRL's GRPO trainer with the recipe's rewards, each on the rows of its tasks."""
    script = recipe.script
    rewards = get_reward_funcs(script.reward_funcs, fmt, **recipe.reward_params)
    if script.task_rewards is not None:
        rewards = route(rewards, script.reward_funcs, script.task_rewards, script.task_column)
    try:
        try_own_rewards(script.reward_funcs, rewards, arguments["train_dataset"], fmt, tokenizer)
    except RecipeError as error:
        if script.smoke and not is_local(script.dataset_name):
            raise RecipeError(
                f"{error} (a smoke run uses the mapper's example rows, which lack the values of "
                "the data's other columns). Fix: test the reward on real rows with preflight"
            ) from error
        raise
    _check_golds(recipe, rewards, arguments["train_dataset"])
    if any(map(compares_with_gold, rewards)):
        verification.start()  # workers start while the model loads
    from r1_recipes.extras.agents.build import agent

    tools, environments = agent(recipe, tokenizer)
    if tools or environments:
        arguments |= {
            "tools": tools,
            "environment_factory": environments.get(None, environments) or None,
        }
    return _trainer_class(script)(script=script, reward_funcs=rewards, **arguments)


def _trainer_class(script: GRPORecipeArguments) -> Any:
    from r1_recipes.training.trainer import RecipeGRPOTrainer  # heavy

    if script.dynamic_sampling is not None:
        from r1_recipes.extras.dynamic_sampling import DynamicSamplingGRPOTrainer

        return DynamicSamplingGRPOTrainer
    return RecipeGRPOTrainer


def _check_golds(recipe: GRPORecipe, rewards: Sequence[Callable], rows: Any) -> None:
    """Refuse data if a reward cannot parse any of the reference answers that it compares with.

    Preflight reports data with some unreadable reference answers.
    """
    if "solution" not in rows.column_names or recipe.script.smoke:
        return
    sample = rows.select(range(0, len(rows), max(1, len(rows) // 64)))
    for name, reward in zip(recipe.script.reward_funcs, rewards, strict=True):
        readable = readable_golds(name, reward, sample) if compares_with_gold(reward) else {}
        if readable and not any(readable.values()):
            raise RecipeError(
                f"{recipe.path}: reward_funcs: {name} cannot parse any of the {len(readable)} "
                f"reference answers tested. The first is {sample['solution'][min(readable)]!r}. "
                "Fix: solution_column, or reward_funcs: [answer_match] for answers in words"
            )


if __name__ == "__main__":
    main()
