"""``accelerate launch -q -m r1_recipes.distill recipes/NAME.yaml [--key value …]``: on-policy distillation with TRL's trainer.

The student writes, the teacher says how likely each of its tokens should have been. For distillation by SFT on a teacher's completions
see ``generate`` and ``sft``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from r1_recipes.models.weights import model_path
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe import Recipe
from r1_recipes.training.run import run_recipe


def main(argv: Sequence[str] | None = None) -> None:
    """Run an on-policy distillation recipe; see :func:`r1_recipes.training.run.run_recipe`."""
    run_recipe(argv, "distill", build_trainer)


def build_trainer(recipe: Recipe, fmt: ResponseFormat, tokenizer: Any, arguments: dict[str, Any]) -> Any:
    """Return TRL's on-policy distillation trainer; the teacher is the recipe's ``teacher_model_name_or_path``."""
    from trl import DistillationTrainer  # heavy

    teacher = model_path(recipe.training.teacher_model_name_or_path, recipe.script.hub, recipe.training.teacher_model_revision)
    return DistillationTrainer(teacher_model=teacher, **arguments)


if __name__ == "__main__":
    main()
