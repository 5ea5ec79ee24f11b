"""``accelerate launch -m r1_recipes.sft recipes/NAME.yaml [--key value …]``: supervised fine-tuning, one YAML a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from r1_recipes import runtime
from r1_recipes.errors import RecipeError


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
        check_template(recipe.model.model_name_or_path, tokenizer, train[0])
        trainer = SFTTrainer(
            **runtime.model_arguments(recipe),
            args=recipe.training,
            train_dataset=train,
            eval_dataset=held_out,
            processing_class=tokenizer,
            callbacks=runtime.callbacks(run),
        )
        runtime.train_and_save(run, trainer, tokenizer)


def check_template(model: str, tokenizer: Any, row: dict[str, Any]) -> None:
    """Refuse a chat template that would not write the target into the training text.

    Templates of reasoning models (DeepSeek's distilled ones among them) cut the reasoning out of the assistant's turns; the loss would
    be on the bare answer, and nothing would say so.

    Raises:
        RecipeError: names the model and what to set.
    """
    messages = row["messages"] if "messages" in row else row["prompt"] + row["completion"]
    if isinstance(messages, str) or not isinstance(messages[-1].get("content"), str):
        return
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    # White space aside: some templates write the line breaks around the reasoning their own way.
    if "".join(messages[-1]["content"].split()) not in "".join(text.split()):
        raise RecipeError(
            f"chat_template: that of {model} cuts the assistant's turn short (of reasoning, it keeps only the answer), so SFT would not "
            "teach it; set chat_template to one that writes the turn as it is"
        )


if __name__ == "__main__":
    main()
