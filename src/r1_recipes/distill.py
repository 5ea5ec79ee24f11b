"""Train with on-policy distillation, one YAML per run.

``accelerate launch -q -m r1_recipes.distill recipes/NAME.yaml [--key value …]``

The student generates, and the teacher gives the probability of each of its tokens. For
distillation by SFT on a teacher's completions, see ``generate`` and ``sft``.
"""

from collections.abc import Sequence
from typing import Any

from r1_recipes.common.console import reported_errors
from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.models.tokenizer import load_tokenizer
from r1_recipes.models.weights import model_path
from r1_recipes.recipe.types import DistillRecipe
from r1_recipes.training.train import load_splits, save, start, train, trainer_arguments


@reported_errors()
def main(argv: Sequence[str] | None = None) -> None:
    """Run a recipe. Exit with 2 if it cannot be used, with 130 if it was interrupted."""
    run = start(argv, "distill")
    tokenizer, fmt = load_tokenizer(run.recipe)
    rows = load_splits(run.recipe, fmt, tokenizer)
    trainer = build_trainer(run.recipe, trainer_arguments(run, fmt, tokenizer, rows))
    train(trainer, run)
    save(trainer, run)


def build_trainer(recipe: DistillRecipe, arguments: dict[str, Any]) -> Any:
    """Return the TRL trainer that ``distill_with`` names. A smoke run's teacher is local."""
    script, training = recipe.script, recipe.training
    if script.distill_with == "server" and not script.smoke:
        import requests  # heavy
        from trl.experimental.server_distillation import ServerDistillationTrainer  # heavy

        try:
            return ServerDistillationTrainer(**arguments)
        except requests.ConnectionError as error:
            raise RecipeError(
                f"{recipe.path}: teacher_model_server_url: {first_line(error)}"
            ) from error
    if script.distill_with == "gold":
        from trl.experimental.gold import GOLDTrainer as Trainer  # heavy

        if arguments.pop("quantization_config"):
            raise RecipeError(
                f"{recipe.path}: load_in_4bit and load_in_8bit: must be false for "
                "distill_with: gold, which does not support them"
            )
    else:
        from trl import DistillationTrainer as Trainer  # heavy
    teacher = model_path(
        training.teacher_model_name_or_path,
        script.hub,
        training.teacher_model_revision,
        key="teacher_model_name_or_path",
    )
    return Trainer(teacher_model=teacher, **arguments)


if __name__ == "__main__":
    main()
