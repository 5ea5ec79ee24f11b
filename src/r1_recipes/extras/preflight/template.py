"""Check that the chat template starts and ends a response as the format and trainer expect."""

import contextlib
from typing import Any

from jinja2 import TemplateError

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, Report, join_names
from r1_recipes.models.tokenizer import generation_prompt, load_tokenizer, turn_end
from r1_recipes.prompts import FORMATS, ResponseFormat, leaves_open
from r1_recipes.recipe import Recipe


def read_tokenizer(report: Report, recipe: Recipe) -> tuple[Any, ResponseFormat]:
    """Return the tokenizer and the response format of the training."""
    with report.refusals("contract.tokenizer", essential=True):
        tokenizer, fmt = load_tokenizer(recipe)
        _check_start(report, recipe, tokenizer, fmt)
        _check_end(report, recipe, tokenizer)
    return tokenizer, fmt


def _check_start(report: Report, recipe: Recipe, tokenizer: Any, fmt: ResponseFormat) -> None:
    """Report a turn that opens with the reasoning tag of another format (R1's distills do)."""
    tags, opening = fmt.reasoning_tags or (), generation_prompt(tokenizer)
    pairs = {other.reasoning_tags for other in FORMATS.values() if other.reasoning_tags}
    opened = sorted({pair[0] for pair in pairs if leaves_open(opening, pair)}.difference(tags))
    if opened:
        message = (
            f"the chat template of {recipe.model.model_name_or_path} opens the assistant's turn "
            f"with {opened[0]!r}, which response_format {fmt.name!r} does not read. Fix: a "
            f"response_format with {opened[0]!r}, or another chat_template"
        )
        report.add(ERROR if tags else WARNING, "contract.prefill", message)
    elif fmt.prefill:
        message = (
            f"the assistant's turn already starts with {fmt.prefill!r}. The model does not repeat "
            "it, so a reward of your own must not look for it"
        )
        report.add(OK, "contract.prefill", message)


def _check_end(report: Report, recipe: Recipe, tokenizer: Any) -> None:
    """Report a model that does not stop where the template ends a message, as base models do."""
    from transformers import GenerationConfig

    model, sft = recipe.model.model_name_or_path, recipe.method == "sft"
    try:
        end = turn_end(model, tokenizer, getattr(recipe.training, "eos_token", None))
    except (RecipeError, TemplateError) as error:
        # A GRPO run never writes this text, so it does not fail.
        report.add(ERROR if sft else WARNING, "contract.eos", str(error))
        return
    ids = tokenizer.eos_token_id
    with contextlib.suppress(OSError):  # The checkpoint may have no generation config.
        config = GenerationConfig.from_pretrained(model, revision=recipe.model.model_revision)
        ids = config.eos_token_id or ids
    stops = tokenizer.convert_ids_to_tokens(ids if isinstance(ids, list) else [ids])
    stops = sorted({*filter(None, stops), tokenizer.eos_token or end})
    level, message = OK, f"the chat template ends a message with {end!r}"
    if end in stops:
        message += ", and generation stops there"
    elif sft:
        message += f"; SFT makes it the eos_token (now {tokenizer.eos_token!r})"
    else:
        level = WARNING
        message += (
            f", but generation stops only at {join_names([*map(repr, stops)])}, so completions may "
            f"continue up to max_completion_length. Fix: eos_token_id "
            f"{tokenizer.convert_tokens_to_ids(end)} in the checkpoint's generation_config.json, "
            "or start from SFT"
        )
    report.add(level, "contract.eos", message)
