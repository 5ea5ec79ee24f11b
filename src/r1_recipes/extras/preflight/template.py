"""Check that the chat template starts and ends a response as the format and trainer expect."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, Report, join_names
from r1_recipes.models.tokenizer import generation_prompt, load_tokenizer, turn_end
from r1_recipes.prompts import FORMATS, ResponseFormat, leaves_open
from r1_recipes.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def read_tokenizer(
    report: Report, recipe: Recipe
) -> tuple[PreTrainedTokenizerBase, ResponseFormat]:
    """Return the tokenizer and the response format of the training."""
    with report.refusals("contract.tokenizer", essential=True):
        tokenizer, fmt = load_tokenizer(recipe)
        _check_start(report, recipe, tokenizer, fmt)
        _check_end(report, recipe, tokenizer)
    return tokenizer, fmt


def _check_start(
    report: Report, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, fmt: ResponseFormat
) -> None:
    tags, opening = fmt.reasoning_tags or (), generation_prompt(tokenizer)
    pairs = {other.reasoning_tags for other in FORMATS.values() if other.reasoning_tags}
    opened = {pair[0] for pair in pairs if leaves_open(opening, pair)}
    foreign = sorted(opened.difference(tags))
    origin = f"the chat template of {recipe.model.model_name_or_path}"
    if foreign:
        level = WARNING
        reads = "does not separate reasoning from the answer"
        if tags:
            level = ERROR
            reads = f"expects {tags[0]!r}, so completions start in the wrong block"
        message = (
            f"{origin} opens the assistant's turn with {foreign[0]!r}, but response_format "
            f"{fmt.name!r} {reads}. Fix: a response_format with {foreign[0]!r}, or another "
            f"chat_template"
        )
        report.add(level, "contract.prefill", message)
    elif fmt.prefill:
        origin += " (so do not set prefill)"
        if recipe.script.prefill:
            origin = "the recipe's prefill"
        message = (
            f"{origin} already opens the assistant's turn with {fmt.prefill!r}. The model does not "
            f"repeat it, so a reward of your own must not look for it"
        )
        report.add(OK, "contract.prefill", message)


def _check_end(report: Report, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
    from transformers import GenerationConfig

    model, sft = recipe.model.model_name_or_path, recipe.method == "sft"
    if tokenizer.eos_token is None:
        message = f"the tokenizer of {model} has no eos_token, so no completion ends. "
        message += "Fix: set eos_token in the tokenizer"
        report.add(ERROR, "contract.eos", message)
        return
    try:
        end = turn_end(model, tokenizer, getattr(recipe.training, "eos_token", None))
    except (RecipeError, TemplateError) as error:
        message = f"the chat template of {model} cannot write an assistant's turn: {error}"
        # A GRPO run never writes this text, so it does not fail.
        report.add(ERROR if sft else WARNING, "contract.eos", message)
        return
    stops = {tokenizer.eos_token}
    # The checkpoint may have no generation config.
    with contextlib.suppress(OSError):
        config = GenerationConfig.from_pretrained(model, revision=recipe.model.model_revision)
        ids = config.eos_token_id
        if isinstance(ids, int):
            ids = [ids]
        stops.update(tokenizer.convert_ids_to_tokens(ids or []))
    level, message = OK, f"the chat template ends a message with {end!r}"
    if end in stops:
        message += ", and generation stops there"
    elif sft:
        message += f"; SFT makes it the eos_token (now {tokenizer.eos_token!r})"
    else:
        tokens = join_names(sorted(map(repr, stops)))
        message += (
            f", but generation stops only at {tokens}, so completions may continue up to "
            f"max_completion_length. Fix: set eos_token_id to "
            f"{tokenizer.convert_tokens_to_ids(end)} in the checkpoint's generation_config.json, "
            f"or start from SFT"
        )
        level = WARNING
    report.add(level, "contract.eos", message)
