"""Whether the chat template begins and ends a response as the format and the trainer expect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import TemplateError

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, Report, listed
from r1_recipes.models.tokenizer import generation_prompt, load_tokenizer, turn_end
from r1_recipes.prompts import FORMATS, ResponseFormat, fitting_format, leaves_open
from r1_recipes.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def read_tokenizer(
    report: Report, recipe: Recipe
) -> tuple[PreTrainedTokenizerBase, ResponseFormat]:
    """Return the tokenizer and the format as training will have them."""
    with report.refusals("contract.tokenizer", essential=True):
        tokenizer, fmt = load_tokenizer(recipe)
        _check_beginning(report, recipe, tokenizer, fmt)
        _check_end(report, recipe, tokenizer)
    return tokenizer, fmt


def _check_beginning(
    report: Report, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, fmt: ResponseFormat
) -> None:
    tags, turn = fmt.reasoning_tags or (), generation_prompt(tokenizer)
    opened = {
        other.reasoning_tags[0]
        for other in FORMATS.values()
        if other.reasoning_tags and leaves_open(turn, other.reasoning_tags)
    }
    foreign = sorted(opened.difference(tags))
    template = f"the chat template of {recipe.model.model_name_or_path}"
    if foreign:
        reads = (
            f"looks for {tags[0]!r}: completions start in the wrong block"
            if tags
            else "reads thoughts as it does the answer"
        )
        said = (
            f"{template} opens the assistant's turn with {foreign[0]!r}, but response_format "
            f"{fmt.name!r} {reads}"
        )
        fits = fitting_format(
            [*foreign, *(mark for group in fmt.marks for mark in group if mark not in tags)], fmt
        )
        report.add(
            ERROR if tags else WARNING,
            "contract.prefill",
            f"{said}; write {fits}, or set chat_template",
        )
    elif fmt.prefill:
        whose = (
            "the recipe's prefill"
            if recipe.script.prefill
            else f"{template} (so leave prefill out)"
        )
        said = (
            f"the turn is already opened with {fmt.prefill!r} by {whose}; the model does not "
            f"write that again, and a reward of your own"
        )
        report.add(OK, "contract.prefill", f"{said} must not look for it")


def _check_end(report: Report, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
    from transformers import GenerationConfig

    model, sft = recipe.model.model_name_or_path, recipe.method == "sft"
    if tokenizer.eos_token is None:
        report.add(
            ERROR,
            "contract.eos",
            f"the tokenizer of {model} has no eos_token, so nothing ends a completion; set "
            f"it there",
        )
        return
    try:
        end = turn_end(model, tokenizer, getattr(recipe.training, "eos_token", None))
    except (RecipeError, TemplateError) as error:
        # GRPO generates with what is there, so its run does not fail by this.
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
    except OSError:  # the checkpoint has none
        ids = None
    stops = {
        tokenizer.eos_token,
        *tokenizer.convert_ids_to_tokens(
            ids if isinstance(ids, list) else [ids] if ids is not None else []
        ),
    }
    level, said = OK, f"the chat template ends a turn in {end!r}"
    if end in stops:
        said += ", and generation stops there"
    elif sft:
        said += f"; SFT makes it the eos_token (now {tokenizer.eos_token!r})"
    else:
        said += (
            f", but generation stops at {listed(sorted(map(repr, stops)))} only: completions may "
            f"run on to max_completion_length; set "
        )
        said += (
            f"eos_token_id to {tokenizer.convert_tokens_to_ids(end)} in the checkpoint's "
            f"generation_config.json, or start from SFT"
        )
        level = WARNING
    report.add(level, "contract.eos", said)
