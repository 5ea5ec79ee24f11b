"""``accelerate launch -m r1_recipes.grpo recipes/NAME.yaml [--key value …]``: GRPO with rule rewards, one YAML a run."""

from __future__ import annotations

from collections.abc import Sequence

from r1_recipes import runtime


def main(argv: Sequence[str] | None = None) -> None:
    """Run a GRPO recipe.

    Args:
        argv: command line without the program; ``None``: this process's.

    Raises:
        SystemExit: 2 where the recipe or its data cannot be used, 130 where the run was stopped.
    """
    with runtime.reported_errors():
        run = runtime.start(argv, "grpo")
        recipe = run.recipe
        from trl import GRPOTrainer

        from r1_recipes.data import load_dataset
        from r1_recipes.rewards import get_reward_funcs

        tokenizer, fmt = runtime.load_tokenizer(recipe)
        train, held_out = runtime.datasets_for(run, fmt, tokenizer, load_dataset)
        trainer = GRPOTrainer(
            **runtime.model_arguments(recipe),
            reward_funcs=get_reward_funcs(recipe.script.reward_funcs, fmt, **recipe.reward_params),
            args=recipe.training,
            train_dataset=train,
            eval_dataset=held_out,
            processing_class=tokenizer,
            callbacks=runtime.callbacks(run),
        )
        runtime.train_and_save(run, trainer, tokenizer)


if __name__ == "__main__":
    main()
