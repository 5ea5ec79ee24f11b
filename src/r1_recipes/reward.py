"""Train a reward model on preference pairs, one YAML per run.

``accelerate launch -q -m r1_recipes.reward recipes/NAME.yaml [--key value …]``
"""

import logging
from collections.abc import Sequence
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.models.tokenizer import check_targets
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe.types import RewardRecipe
from r1_recipes.training.run import run_recipe

logger = logging.getLogger("r1_recipes.reward")  # with `python -m`, __name__ is __main__


def main(argv: Sequence[str] | None = None) -> None:
    run_recipe(argv, "reward", build_trainer)


def build_trainer(
    recipe: RewardRecipe, fmt: ResponseFormat, tokenizer: Any, arguments: dict[str, Any]
) -> Any:
    """Return TRL's reward trainer.

    Its saved model can be the ``model`` of an entry of ``reward_models``.
    """
    from trl import RewardTrainer  # heavy

    rows = arguments["train_dataset"]
    limit = recipe.training.max_length
    if recipe.model.use_peft:
        raise RecipeError(
            f"{recipe.path}: use_peft: must be false, got true, because reward_models cannot load "
            "adapters. Fix: unfrozen_parameters, including 'score', trains a part of the weights"
        )
    check_targets(recipe, tokenizer, rows)
    trainer = RewardTrainer(**arguments)
    dropped = len(rows) - len(trainer.train_dataset)
    if dropped == len(rows):
        raise RecipeError(
            f"{recipe.path}: max_length: {limit} drops all {len(rows)} pairs. Fix: a larger "
            "max_length"
        )
    if dropped:
        logger.warning("max_length %d drops %d of %d pairs", limit, dropped, len(rows))
    return trainer


if __name__ == "__main__":
    main()
