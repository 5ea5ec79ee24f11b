"""Check that the chat template starts and ends a response as the format and trainer expect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import TemplateError

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, Report, join_names
from r1_recipes.models.tokenizer import generation_prompt, load_tokenizer, turn_end
from r1_recipes.prompts import FORMATS, ResponseFormat, fitting_format, leaves_open
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
    opened = {
        other.reasoning_tags[0]
        for other in FORMATS.values()
        if other.reasoning_tags and leaves_open(opening, other.reasoning_tags)
    }
    foreign = sorted(opened.difference(tags))
    template = f"the chat template of {recipe.model.model_name_or_path}"
    if foreign:
        reads = (
            f"expects {tags[0]!r}, so completions start in the wrong block"
            if tags
            else "does not separate reasoning from the answer"
        )
        message = (
            f"{template} opens the assistant's turn with {foreign[0]!r}, but response_format "
            f"{fmt.name!r} {reads}"
        )
        fits = fitting_format(
            [*foreign, *(mark for group in fmt.marks for mark in group if mark not in tags)], fmt
        )
        report.add(
            ERROR if tags else WARNING,
            "contract.prefill",
            f"{message}. Fix: {fits}, or another chat_template",
        )
    elif fmt.prefill:
        origin = (
            "the recipe's prefill"
            if recipe.script.prefill
            else f"{template} (so do not set prefill)"
        )
        message = (
            f"{origin} already opens the assistant's turn with {fmt.prefill!r}. The model does not "
            f"repeat it, so a reward of your own"
        )
        report.add(OK, "contract.prefill", f"{message} must not look for it")


def _check_end(report: Report, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
    from transformers import GenerationConfig

    model, sft = recipe.model.model_name_or_path, recipe.method == "sft"
    if tokenizer.eos_token is None:
        report.add(
            ERROR,
            "contract.eos",
            f"the tokenizer of {model} has no eos_token, so no completion ends. Fix: set "
            f"eos_token in the tokenizer",
        )
        return
    try:
        end = turn_end(model, tokenizer, getattr(recipe.training, "eos_token", None))
    except (RecipeError, TemplateError) as error:
        # A GRPO run never writes this text, so it does not fail.
        report.add(
            ERROR if sft else WARNING,
            "contract.eos",
            f"the chat template of {model} cannot write an assistant's turn: {error}",
        )
        return
    try:
        ids = GenerationConfig.from_pretrained(
            model, revision=recipe.model.model_revision
        ).eos_token_id
    except OSError:  # The checkpoint has no generation config.
        ids = None
    stops = {
        tokenizer.eos_token,
        *tokenizer.convert_ids_to_tokens(
            ids if isinstance(ids, list) else [ids] if ids is not None else []
        ),
    }
    level, message = OK, f"the chat template ends a message with {end!r}"
    if end in stops:
        message += ", and generation stops there"
    elif sft:
        message += f"; SFT makes it the eos_token (now {tokenizer.eos_token!r})"
    else:
        message += (
            f", but generation stops only at {join_names(sorted(map(repr, stops)))}, so "
            f"completions may continue up to max_completion_length. Fix: set "
        )
        message += (
            f"eos_token_id to {tokenizer.convert_tokens_to_ids(end)} in the checkpoint's "
            f"generation_config.json, or start from SFT"
        )
        level = WARNING
    report.add(level, "contract.eos", message)
