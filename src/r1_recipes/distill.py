"""Train with on-policy distillation, one YAML per run.

``accelerate launch -q -m r1_recipes.distill recipes/NAME.yaml [--key value …]``

The student generates, and the teacher gives the probability of each of its tokens. For
distillation by SFT on a teacher's completions, see ``generate`` and ``sft``.
"""

from collections.abc import Sequence
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.models.weights import model_path
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe.types import DistillRecipe
from r1_recipes.training.run import run_recipe


def main(argv: Sequence[str] | None = None) -> None:
    run_recipe(argv, "distill", build_trainer)


def build_trainer(
    recipe: DistillRecipe, fmt: ResponseFormat, tokenizer: Any, arguments: dict[str, Any]
) -> Any:
    """Return the TRL trainer that ``distill_with`` names.

    A smoke run has no server and uses a local teacher.
    """
    from r1_recipes.training.engine import engine_of  # heavy

    if recipe.script.distill_with == "server" and not recipe.script.smoke:
        import requests  # heavy
        from trl.experimental.server_distillation import ServerDistillationTrainer  # heavy

        try:
            with engine_of(ServerDistillationTrainer, recipe.training.seed):
                return ServerDistillationTrainer(**arguments)
        except requests.ConnectionError as error:
            raise RecipeError(
                f"{recipe.path}: teacher_model_server_url: {first_line(error)}"
            ) from error
    if recipe.script.distill_with == "gold":
        from trl.experimental.gold import GOLDTrainer as Trainer  # heavy

        if arguments.pop("quantization_config"):
            raise RecipeError(
                f"{recipe.path}: load_in_4bit and load_in_8bit: must be false for "
                f"distill_with: gold, which does not support them"
            )
    else:
        from trl import DistillationTrainer as Trainer  # heavy
    training = recipe.training
    teacher = model_path(
        training.teacher_model_name_or_path,
        recipe.script.hub,
        training.teacher_model_revision,
        key="teacher_model_name_or_path",
    )
    with engine_of(Trainer, training.seed):
        return Trainer(teacher_model=teacher, **arguments)


if __name__ == "__main__":
    main()
