"""Train with on-policy distillation, one YAML per run.

``accelerate launch -q -m r1_recipes.distill recipes/NAME.yaml [--key value …]``

The student generates, and the teacher gives the probability of each of its tokens. For
distillation by SFT on a teacher's completions, see ``generate`` and ``sft``.
"""

from collections.abc import Sequence

from r1_recipes.common.console import reported_errors
from r1_recipes.common.errors import RecipeError
from r1_recipes.models.tokenizer import load_tokenizer
from r1_recipes.models.weights import model_path
from r1_recipes.training.train import load_splits, save, start, train, trainer_arguments


@reported_errors()
def main(argv: Sequence[str] | None = None) -> None:
    """Run a recipe. Exit with 2 if it cannot be used, with 130 if it was interrupted."""
    run = start(argv, "distill")
    tokenizer, fmt = load_tokenizer(run.recipe)
    rows = load_splits(run.recipe, fmt, tokenizer)
    arguments = trainer_arguments(run, fmt, tokenizer, rows)
    script, training = run.recipe.script, run.recipe.training
    served = script.distill_with == "server" and not script.smoke  # a smoke run's is local
    if script.distill_with == "gold":
        from trl.experimental.gold import GOLDTrainer as Trainer  # heavy

        if arguments.pop("quantization_config"):
            raise RecipeError(
                f"{run.recipe.path}: load_in_4bit and load_in_8bit: must be false for "
                "distill_with: gold, which does not support them"
            )
    elif served:
        from trl.experimental.server_distillation import ServerDistillationTrainer as Trainer
    else:
        from trl import DistillationTrainer as Trainer  # heavy
    if not served:
        arguments["teacher_model"] = model_path(
            training.teacher_model_name_or_path,
            script.hub,
            training.teacher_model_revision,
            key="teacher_model_name_or_path",
        )
    trainer = Trainer(**arguments)
    train(trainer, run)
    save(trainer, run)


if __name__ == "__main__":
    main()
