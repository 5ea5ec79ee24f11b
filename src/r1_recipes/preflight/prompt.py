"""The prompt: the shape that it asks for, and how the chat template begins and ends the assistant's turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.messages import words
from r1_recipes.models.tokenizer import check_target, generation_prompt, load_tokenizer, turn_end
from r1_recipes.preflight.data import rendered
from r1_recipes.preflight.findings import ERROR, OK, WARNING, Report, graded, listed, spread
from r1_recipes.prompts import FORMATS, ResponseFormat
from r1_recipes.recipe import Recipe

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

_SAMPLE = 16
_TAG = re.compile(r"<([A-Za-z_]\w*)>")


def read_tokenizer(report: Report, recipe: Recipe) -> tuple[PreTrainedTokenizerBase, ResponseFormat]:
    """Return the tokenizer and the format as training will have them."""
    from jinja2 import TemplateError

    with report.refusals("contract.tokenizer", essential=True):
        try:
            tokenizer, fmt = load_tokenizer(recipe)
            _check_beginning(report, recipe, tokenizer, fmt)
            _check_end(report, recipe, tokenizer)
        except TemplateError as error:
            raise RecipeError(f"chat_template: that of {recipe.model.model_name_or_path} cannot be used: {first_line(error)}") from error
    return tokenizer, fmt


def _check_beginning(report: Report, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, fmt: ResponseFormat) -> None:
    tags, turn = fmt.reasoning_tags or (), generation_prompt(tokenizer)
    opened = {other.reasoning_tags[0] for other in FORMATS.values() if other.reasoning_tags and other.reasoning_tags[0] in turn}
    foreign = sorted(opened.difference(tags))
    template = f"the chat template of {recipe.model.model_name_or_path}"
    level, said = ERROR, ""
    if tags and foreign:
        said = f"{template} opens the assistant's turn with {foreign[0]!r}, but response_format {fmt.name!r} looks for {tags[0]!r}: "
        said += f"completions start in the wrong block; write {_format_for(foreign, fmt)}, or set chat_template"
    elif tags and tags[1] in fmt.prefill:
        said = f"the assistant's turn starts with {fmt.prefill!r}, a reasoning block that is closed before the model writes a word; set "
        said += "chat_template to one without it"
    elif fmt.prefill:
        whose = "the recipe's prefill" if recipe.script.prefill else f"{template} (so leave prefill out)"
        said = f"the turn is already opened with {fmt.prefill!r} by {whose}; the model does not write that again"
        own = [name for name in getattr(recipe.script, "reward_funcs", ()) if ":" in name]
        said += f", and {listed(own)} must not look for it: completions come without it" if own else ""
        level = WARNING if own else OK
    if said:
        report.add(level, "contract.prefill", said)


def _check_end(report: Report, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
    from jinja2 import TemplateError
    from transformers import GenerationConfig

    model, sft = recipe.model.model_name_or_path, recipe.method == "sft"
    if tokenizer.eos_token is None:
        report.add(ERROR, "contract.eos", f"the tokenizer of {model} has no eos_token, so nothing ends a completion; set it there")
        return
    try:
        end = turn_end(model, tokenizer, getattr(recipe.training, "eos_token", None))
    except (RecipeError, TemplateError) as error:
        # GRPO generates with what is there, so its run does not fail by this.
        report.add(ERROR if sft else WARNING, "contract.eos", f"the chat template of {model} cannot write an assistant's turn: {error}")
        return
    try:
        ids = GenerationConfig.from_pretrained(model, revision=recipe.model.model_revision).eos_token_id
    except OSError:  # the checkpoint has none
        ids = None
    stops = {tokenizer.eos_token, *tokenizer.convert_ids_to_tokens(ids if isinstance(ids, list) else [ids] if ids is not None else [])}
    said = f"the chat template ends a turn in {end!r}"
    if end in stops:
        said += ", and generation stops there"
    elif sft:
        said += f"; SFT makes it the eos_token (now {tokenizer.eos_token!r})"
    else:
        said += f", but generation stops at {listed(sorted(map(repr, stops)))} only: completions may run on to max_completion_length; set "
        said += f"eos_token_id to {tokenizer.convert_tokens_to_ids(end)} in the checkpoint's generation_config.json, or start from SFT"
    report.add(OK if sft or end in stops else WARNING, "contract.eos", said)


def check_prompt(report: Report, recipe: Recipe, fmt: ResponseFormat, rows: Dataset) -> None:
    """Check that the prompt asks for the shape that the rewards (GRPO) or the targets (SFT) have."""
    sft, wanted = recipe.method == "sft", _marks(fmt)
    sample = [rows[index] for index in spread(len(rows), _SAMPLE)]
    if sft:  # rows that are taken as they are need not be in the format
        wanted = [mark for mark in wanted if all(mark in words(row["completion"]) for row in sample)]
    prompts = [words(row["prompt"]) for row in sample]
    # What the turn starts with need not be asked for.
    missing = [[mark for mark in wanted if mark not in prompt and mark not in fmt.prefill] for prompt in prompts]
    asked = [[mark for mark in _asked(row["prompt"], prompt) if mark not in wanted] for row, prompt in zip(sample, prompts, strict=True)]
    conflicts = [(other, lacking) for other, lacking in zip(asked, missing, strict=True) if other and lacking]
    silent = " and ".join(mark for mark in wanted if all(mark in lacking for lacking in missing))
    if conflicts:
        # A GRPO format without tags searches the whole completion, so another shape may be paid too.
        searched = not sft and not (fmt.reasoning_tags or fmt.answer_tags or fmt.delimited)
        level = WARNING if searched else graded(len(conflicts) / len(sample), vain=0.5)
        other, lacking = map(" and ".join, conflicts[0])
        said = (
            f"the prompt asks for {other}, but response_format {fmt.name!r}, which the {'targets have' if sft else 'rewards read'}, wants "
            f"{lacking} ({len(conflicts)} of {len(sample)} sampled rows); write {_format_for(conflicts[0][0], fmt)}, or leave "
            "system_prompt out"
        )
    elif silent and sft:
        level, said = OK, f"the targets have {silent} without being asked; SFT teaches it"
    elif silent:
        said = f"nothing in the prompt asks for {silent}, which response_format {fmt.name!r} wants: only models trained on it give it"
        level, said = WARNING, f"{said}; leave system_prompt out to have the format's own instruction"
    else:
        level, said = OK, f"the prompt asks for {' and '.join(wanted) or 'no shape'}, as response_format {fmt.name!r} has it"
    report.add(level, "contract.prompt", said)


def _marks(fmt: ResponseFormat) -> list[str]:
    """What a prompt names when it asks for this format."""
    return [tags[0] for tags in (fmt.reasoning_tags, fmt.answer_tags) if tags] + ["\\boxed"] * fmt.boxed


def _asked(prompt: str | list[dict[str, str]], text: str) -> list[str]:
    """Marks of a shape: those of any format in the whole prompt, and other tags in its instruction that are opened and closed."""
    known = [mark for fmt in FORMATS.values() for mark in _marks(fmt) if mark in text]
    first = prompt[0]
    instruction = first["content"] if isinstance(first, dict) and first["role"] == "system" else ""
    others = [f"<{name}>" for name in _TAG.findall(instruction) if f"</{name}>" in instruction]
    return list(dict.fromkeys([*known, *others]))


def _format_for(marks: Sequence[str], present: ResponseFormat) -> str:
    """The recipe key that would agree with these marks."""
    fitting = [fmt.name for fmt in FORMATS.values() if set(marks) <= set(_marks(fmt)) and fmt.name != present.name]
    return f"response_format: {fitting[0]}" if fitting else "a system_prompt that asks for what is wanted"


def check_targets(report: Report, recipe: Recipe, rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> None:
    """SFT: check that the chat template writes the target whole, right after the prompt that generation will be given."""
    sample = [rows[index] for index in spread(len(rows), _SAMPLE)]
    if isinstance(sample[0]["completion"], list):  # no chat template comes into plain texts
        with report.refusals("contract.target"):
            for row in sample:
                rendered(tokenizer, row["prompt"])
                check_target(recipe.model.model_name_or_path, tokenizer, row)
            report.add(OK, "contract.target", f"the chat template writes all {len(sample)} sampled targets whole, right after the prompt")
