"""Train with on-policy distillation, one YAML per run.

``accelerate launch -q -m r1_recipes.distill recipes/NAME.yaml [--key value …]``

The student generates, and the teacher, which has the same vocabulary, gives the probability of each
of its tokens. For distillation by SFT on a teacher's completions, see ``generate`` and ``sft``.
"""

from collections.abc import Sequence

from r1_recipes.common.console import reported_errors
from r1_recipes.models.load import load_tokenizer, model_path
from r1_recipes.training.train import load_splits, save, start, train, trainer_arguments


@reported_errors()
def main(argv: Sequence[str] | None = None) -> None:
    """Run a recipe. Exit with 2 if it cannot be used, with 130 if it was interrupted."""
    run = start(argv, "distill")
    tokenizer, fmt = load_tokenizer(run.recipe)
    arguments = trainer_arguments(run, fmt, tokenizer, load_splits(run.recipe, fmt, tokenizer))
    training = run.recipe.training
    teacher = model_path(
        training.teacher_model_name_or_path,
        run.recipe.script.hub,
        training.teacher_model_revision,
        key="teacher_model_name_or_path",
    )

    from trl import DistillationTrainer  # heavy

    trainer = DistillationTrainer(**arguments, teacher_model=teacher)
    if trainer.is_fsdp_enabled:  # Accelerate 1.15 moves no model then (accelerator.py:1797)
        trainer.teacher_model.to(trainer.accelerator.device)
    train(trainer, run)
    save(trainer, run)


if __name__ == "__main__":
    main()
