"""Train with supervised fine-tuning (SFT), one YAML per run.

``accelerate launch -q -m r1_recipes.sft recipes/NAME.yaml [--key value …]``
"""

import logging
from collections.abc import Sequence
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.models.tokenizer import check_targets, train_template, turn_end
from r1_recipes.prompts import ResponseFormat
from r1_recipes.recipe.types import SFTRecipe
from r1_recipes.training.run import run_recipe

logger = logging.getLogger("r1_recipes.sft")  # with `python -m`, __name__ is __main__


def main(argv: Sequence[str] | None = None) -> None:
    run_recipe(argv, "sft", build_trainer)


def build_trainer(
    recipe: SFTRecipe, fmt: ResponseFormat, tokenizer: Any, arguments: dict[str, Any]
) -> Any:
    """Return TRL's SFT trainer.

    The token that ends a turn in the chat template becomes the ``eos_token``. A base model's
    tokenizer has another one.
    """
    from trl import SFTTrainer

    model = recipe.model.model_name_or_path
    training = arguments["args"]
    rows = arguments["train_dataset"]
    if training.chat_template_path:
        raise RecipeError(
            f"{recipe.path}: chat_template_path: is not supported, because prefill and checks read "
            f"chat_template. Fix: chat_template, as Jinja text or a file"
        )
    if training.assistant_only_loss:
        train_template(tokenizer)
    check_targets(recipe, tokenizer, rows)
    end = turn_end(model, tokenizer, training.eos_token)
    if end != tokenizer.eos_token:
        logger.info(
            "eos_token is %r, because the chat template ends the assistant's turn with it; %s "
            "had %r",
            end,
            model,
            tokenizer.eos_token,
        )
    training.eos_token = end
    trainer = SFTTrainer(**arguments)
    warn_about_cuts(trainer)
    return trainer


def warn_about_cuts(trainer: Any) -> int:
    """Log and return how many training examples fill ``max_length``.

    They were cut or just fit, so the model does not learn from them to stop.
    """
    import pyarrow.compute as pc

    training = trainer.args
    if training.max_length is None or (training.packing and training.packing_strategy == "wrapped"):
        return 0
    cut = total = 0
    for batch in trainer.train_dataset.with_format("arrow").iter(1000):
        # One packed row holds many examples.
        lengths = (
            pc.list_flatten(batch["seq_lengths"])
            if training.packing
            else pc.list_value_length(batch["input_ids"])
        )
        total += len(lengths)
        cut += pc.sum(pc.greater_equal(lengths, training.max_length)).as_py() or 0
    if cut:
        logger.warning(
            "max_length %d cuts up to %d of %d examples, so the model does not learn to stop from "
            "them. Fix: raise it",
            training.max_length,
            cut,
            total,
        )
    return cut


if __name__ == "__main__":
    main()
