"""Train with GRPO: accelerate launch -q -m r1_recipes.grpo recipes/NAME.yaml [--key value …]"""

import functools
from collections.abc import Sequence
from typing import Any

from r1_recipes import verification
from r1_recipes.common.console import reported_errors
from r1_recipes.extras.agents.build import agent
from r1_recipes.models.load import load_tokenizer
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.rewards.call import try_own_rewards
from r1_recipes.rewards.tasks import route
from r1_recipes.training.train import load_splits, save, start, train, trainer_arguments


@reported_errors()
def main(argv: Sequence[str] | None = None) -> None:
    """Run a recipe. Exit with 2 if it cannot be used, with 130 if it was interrupted."""
    run = start(argv, "grpo")  # YAML and command line; a new run, or one that resumes
    recipe, script = run.recipe, run.recipe.script

    # Data: every row becomes a prompt in the recipe's format, with its reference answer.
    tokenizer, fmt = load_tokenizer(recipe)
    rows = load_splits(recipe, fmt, tokenizer)

    # Rewards: by name, with the recipe's parameters. Two rows show a mistake in one of your own.
    rewards = get_reward_funcs(script.reward_funcs, fmt, **recipe.reward_params)
    if script.task_rewards:
        rewards = route(rewards, script.reward_funcs, script.task_rewards, script.task_column)
    for split in filter(None, (rows.train, rows.test)):
        try_own_rewards(script.reward_funcs, rewards, split, fmt, tokenizer)
    verification.start()  # its workers start while the model loads

    # Trainer: TRL's, with what recipes add.
    from r1_recipes.training.trainer import RecipeTrainer  # heavy

    tools, environments = (
        agent(recipe, tokenizer) if script.tools or script.environment else ([], {})
    )
    arguments = trainer_arguments(run, fmt, tokenizer, rows)
    factory = environments.get(None, environments) or None
    arguments |= {"tools": tools or None, "environment_factory": factory}
    trainer_class: Any = RecipeTrainer
    if script.dynamic_sampling:
        from r1_recipes.extras.dynamic_sampling import DynamicSamplingTrainer  # heavy

        trainer_class = functools.partial(DynamicSamplingTrainer, script=script)
    trainer = trainer_class(rewards, trim_padding=script.trim_padding, **arguments)

    train(trainer, run)  # Ctrl-C saves a checkpoint; the same command resumes
    save(trainer, run)  # model, tokenizer, card; maybe a push


if __name__ == "__main__":
    main()
