"""``accelerate launch -q -m r1_recipes.sft recipes/NAME.yaml [--key value …]``: supervised fine-tuning, one YAML a run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes import runtime
from r1_recipes.errors import RecipeError, first_line

if TYPE_CHECKING:
    from trl import SFTTrainer

    from r1_recipes.formats import ResponseFormat
    from r1_recipes.recipe import Recipe

logger = logging.getLogger("r1_recipes.sft")  # under `python -m` this module is called __main__

# A mixture's parts differ, so one row does not stand for all; rendering all would read the data twice.
_CHECKED_ROWS = 16


def main(argv: Sequence[str] | None = None) -> None:
    """Run an SFT recipe; see :func:`r1_recipes.runtime.run_recipe`."""
    runtime.run_recipe(argv, "sft", build_trainer)


def build_trainer(recipe: Recipe, fmt: ResponseFormat, tokenizer: Any, arguments: dict[str, Any]) -> SFTTrainer:
    """TRL's SFT trainer; the loss is on the completion: the assistant's turn, and what the chat template ends it with.

    The token that ends it becomes the ``eos_token`` of tokenizer, model and generation config. (A base model's is another one, so that
    the tuned model would write on after its answer: Qwen2.5's is ``<|endoftext|>``, its template's turns end in ``<|im_end|>``.)

    Raises:
        RecipeError: the chat template would not write the target into the training text, or not after the prompt that generation will
            be given, or ends the turn in nothing that a model could stop at.
    """
    from trl import SFTTrainer

    model, training, rows = recipe.model.model_name_or_path, arguments["args"], arguments["train_dataset"]
    if training.chat_template_path:
        raise RecipeError(
            f"{recipe.path}: chat_template_path: write chat_template (Jinja text, or a file); prefill and the checks before a run go by it"
        )
    if isinstance(rows[0]["completion"], list):
        for row in rows.select(range(0, len(rows), max(1, len(rows) // _CHECKED_ROWS))):
            check_target(model, tokenizer, row)
        end = turn_end(model, tokenizer, training.eos_token)
        if end != tokenizer.eos_token:
            logger.info("eos_token is %r, in which the chat template ends the assistant's turn; %s had %r", end, model, tokenizer.eos_token)
        training.eos_token = end
    trainer = SFTTrainer(**arguments)
    warn_about_cuts(trainer)
    return trainer


def check_target(model: str, tokenizer: Any, row: dict[str, Any]) -> None:
    """Refuse a chat template that would not write the target into the training text, right after the prompt.

    Templates of reasoning models (DeepSeek's distilled ones among them) cut the reasoning out of the assistant's turns; the loss would
    be on the bare answer, and nothing would say so. Others open the turn to come with what they leave out of a turn that is there.

    Args:
        model: for the message.
        tokenizer: with the chat template.
        row: ``prompt`` and ``completion``, both messages.

    Raises:
        RecipeError: names the model and what to set.
    """
    from jinja2 import TemplateError

    messages = row["prompt"] + row["completion"]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=True)["input_ids"]
        whole = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
    except TemplateError as error:
        raise RecipeError(f"chat_template: that of {model} cannot write a training row: {first_line(error)}") from error
    # White space aside: some templates write the line breaks around the reasoning their own way.
    if "".join(messages[-1]["content"].split()) not in "".join(text.split()):
        raise RecipeError(
            f"chat_template: that of {model} cuts the assistant's turn short (of reasoning, it keeps only the answer), so SFT would not "
            "teach it; set chat_template to one that writes the turn as it is"
        )
    same = next((index for index, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(whole))
    if same < len(prompt):
        raise RecipeError(
            f"chat_template: that of {model} ends a prompt in {tokenizer.decode(prompt[same:])!r}, which is not what stands there, token "
            "for token, once an answer follows, so the model would be trained on other prompts than it is given; end prefill in a line "
            "break, or set chat_template to one that writes both alike"
        )


def turn_end(model: str, tokenizer: Any, eos_token: str | None = None) -> str:
    """The token that the chat template ends an assistant's turn with, where a tuned model is to stop.

    Args:
        model: for the message.
        tokenizer: with the chat template.
        eos_token: the recipe's own choice, which must be a token that the template writes after the turn.

    Raises:
        RecipeError: the template ends the turn in no special token, or not in ``eos_token``.
    """
    answer = "forty-two"
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
    tail = tokenizer.apply_chat_template(messages, tokenize=False).rpartition(answer)[2].strip()
    special = {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}
    end = max((token for token in special if token and tail.startswith(token)), key=len, default=None)
    if end is None:
        raise RecipeError(
            f"chat_template: that of {model} ends the assistant's turn in {tail!r}, which begins with no special token of the tokenizer, "
            f"so the tuned model could not stop there; set chat_template to one whose turns end in {tokenizer.eos_token!r}"
        )
    if eos_token is None:
        return end
    if eos_token not in special or eos_token not in tail:
        raise RecipeError(
            f"eos_token: {eos_token!r} is not what the chat template of {model} ends the assistant's turn with; leave it out ({end!r})"
        )
    return eos_token


def warn_about_cuts(trainer: SFTTrainer) -> int:
    """Say how many training examples fill ``max_length``: they were cut (or just fit), and teach no end. Returns that number."""
    import pyarrow.compute as pc

    training, rows = trainer.args, trainer.train_dataset
    if training.max_length is None or (training.packing and training.packing_strategy == "wrapped"):
        return 0
    cut = total = 0
    for batch in rows.with_format("arrow").iter(1000):
        # One packed row holds many examples.
        lengths = pc.list_flatten(batch["seq_lengths"]) if training.packing else pc.list_value_length(batch["input_ids"])
        total += len(lengths)
        cut += pc.sum(pc.greater_equal(lengths, training.max_length)).as_py() or 0
    if cut:
        logger.warning(
            "max_length %d cuts up to %d of %d examples, which then teach no end; raise it, or drop them with max_solution_tokens",
            training.max_length,
            cut,
            total,
        )
    return cut


if __name__ == "__main__":
    main()
