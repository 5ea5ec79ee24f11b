"""Train a reward model on preference pairs, one YAML per run.

``accelerate launch -q -m r1_recipes.reward recipes/NAME.yaml [--key value …]``

Its saved model can be the ``model`` of an entry of ``reward_models``.
"""

import logging
from collections.abc import Sequence

from r1_recipes.common.console import reported_errors
from r1_recipes.common.errors import RecipeError
from r1_recipes.models.load import check_targets, load_tokenizer
from r1_recipes.training.train import load_splits, save, start, train, trainer_arguments

logger = logging.getLogger("r1_recipes.reward")  # with `python -m`, __name__ is __main__


@reported_errors()
def main(argv: Sequence[str] | None = None) -> None:
    """Run a recipe. Exit with 2 if it cannot be used, with 130 if it was interrupted."""
    run = start(argv, "reward")
    recipe = run.recipe
    if recipe.model.use_peft:
        raise RecipeError(
            f"{recipe.path}: use_peft: must be false, got true, because reward_models cannot load "
            "adapters. Fix: unfrozen_parameters, including 'score', trains a part of the weights"
        )
    tokenizer, fmt = load_tokenizer(recipe)
    rows = load_splits(recipe, fmt, tokenizer)
    check_targets(recipe, tokenizer, rows.train)

    from trl import RewardTrainer  # heavy

    trainer = RewardTrainer(**trainer_arguments(run, fmt, tokenizer, rows))
    if dropped := len(rows.train) - len(trainer.train_dataset):
        logger.warning("max_length drops %d of %d pairs", dropped, len(rows.train))
    train(trainer, run)
    save(trainer, run)


if __name__ == "__main__":
    main()
