"""``accelerate launch -m r1_recipes.sft recipes/NAME.yaml [--key value …]``: supervised fine-tuning, one YAML a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes import runtime
from r1_recipes.errors import RecipeError

if TYPE_CHECKING:
    from trl import SFTTrainer

    from r1_recipes.formats import ResponseFormat
    from r1_recipes.recipe import Recipe


def main(argv: Sequence[str] | None = None) -> None:
    """Run an SFT recipe; see :func:`r1_recipes.runtime.run_recipe`."""
    runtime.run_recipe(argv, "sft", build_trainer)


def build_trainer(recipe: Recipe, fmt: ResponseFormat, tokenizer: Any, arguments: dict[str, Any]) -> SFTTrainer:
    """TRL's SFT trainer; the loss is on the completion, which the response format rendered.

    Raises:
        RecipeError: the chat template would not write the target into the training text.
    """
    from trl import SFTTrainer

    check_template(recipe.model.model_name_or_path, tokenizer, arguments["train_dataset"][0])
    return SFTTrainer(**arguments)


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
