"""``accelerate launch -m r1_recipes.sft recipes/NAME.yaml [--key value …]``: supervised fine-tuning, one YAML a run."""

from __future__ import annotations

from collections.abc import Sequence

from r1_recipes import runtime


def main(argv: Sequence[str] | None = None) -> None:
    """Run an SFT recipe: the loss is on the completion, rendered by the response format.

    Args:
        argv: command line without the program; ``None``: this process's.

    Raises:
        SystemExit: 2 where the recipe or its data cannot be used, 130 where the run was stopped.
    """
    with runtime.reported_errors():
        run = runtime.start(argv, "sft")
        recipe = run.recipe
        from trl import SFTTrainer

        from r1_recipes.data import load_dataset

        tokenizer, fmt = runtime.load_tokenizer(recipe)
        train, held_out = runtime.datasets_for(run, fmt, tokenizer, load_dataset)
        trainer = SFTTrainer(
            **runtime.model_arguments(recipe),
            args=recipe.training,
            train_dataset=train,
            eval_dataset=held_out,
            processing_class=tokenizer,
            callbacks=runtime.callbacks(run),
        )
        runtime.train_and_save(run, trainer, tokenizer)


if __name__ == "__main__":
    main()
