"""Train with supervised fine-tuning (SFT), one YAML per run.

``accelerate launch -q -m r1_recipes.sft recipes/NAME.yaml [--key value …]``
"""

import logging
from collections.abc import Sequence
from typing import Any

from r1_recipes.common.console import reported_errors
from r1_recipes.common.errors import RecipeError
from r1_recipes.models.load import (
    check_targets,
    load_tokenizer,
    train_template,
    turn_end,
)
from r1_recipes.training.train import load_splits, save, start, train, trainer_arguments

logger = logging.getLogger("r1_recipes.sft")  # with `python -m`, __name__ is __main__


@reported_errors()
def main(argv: Sequence[str] | None = None) -> None:
    """Run a recipe. Exit with 2 if it cannot be used, with 130 if it was interrupted."""
    run = start(argv, "sft")
    recipe, training = run.recipe, run.recipe.training
    if training.chat_template_path:
        raise RecipeError(
            f"{recipe.path}: chat_template_path: is not supported, because prefill and checks read "
            "chat_template. Fix: chat_template, as Jinja text or a file"
        )

    # Data: every row becomes a prompt and its worked answer in the recipe's format.
    tokenizer, fmt = load_tokenizer(recipe)
    rows = load_splits(recipe, fmt, tokenizer)
    if training.assistant_only_loss:
        train_template(tokenizer)
    check_targets(recipe, tokenizer, rows.train)  # some templates cut the reasoning out

    # The token that ends a turn becomes the eos_token: a base model has another, and never stops.
    training.eos_token = end = turn_end(
        recipe.model.model_name_or_path, tokenizer, training.eos_token
    )
    logger.info("eos_token is %r, which ends a turn; the model's is %r", end, tokenizer.eos_token)

    from trl import SFTTrainer  # heavy

    trainer = SFTTrainer(**trainer_arguments(run, fmt, tokenizer, rows))
    warn_about_cuts(trainer, len(rows.train))
    train(trainer, run)
    save(trainer, run)


def warn_about_cuts(trainer: Any, count: int) -> None:
    """Log how many of ``count`` training examples ``max_length`` cuts, or drops."""
    training, kept = trainer.args, trainer.train_dataset
    if training.max_length is None or training.packing:  # a row holds many examples
        return
    # Millions of rows, on every process: no lists of Python.
    lengths = [
        length
        for chunk in kept.with_format("arrow")["input_ids"][:].chunks
        for length in chunk.value_lengths().to_pylist()
    ]
    if dropped := count - len(kept):
        # TRL drops examples whose answer is cut away whole (1.16: sft_trainer.py:1462).
        logger.warning("%d of %d rows dropped: max_length cuts all of the answer", dropped, count)
    # The answer of an example as long as max_length was cut, or just fits.
    if cut := sum(length >= training.max_length for length in lengths):
        logger.warning(
            "max_length %d cuts up to %d of %d examples, so the model does not learn to stop from "
            "them. Fix: raise it",
            training.max_length,
            cut,
            len(lengths),
        )


if __name__ == "__main__":
    main()
