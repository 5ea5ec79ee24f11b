"""The prompt: the shape that it asks for, and how the chat template begins and ends the assistant's turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.messages import words
from r1_recipes.models.tokenizer import check_target, generation_prompt, load_tokenizer, turn_end
from r1_recipes.preflight.data import rendered
from r1_recipes.preflight.findings import ERROR, OK, WARNING, Report, listed, spread
from r1_recipes.prompts import FORMATS, ResponseFormat, get_response_format
from r1_recipes.recipe.load import Recipe

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

_SAMPLE = 16
_TAG = re.compile(r"<([A-Za-z_]\w*)>")


def read_tokenizer(report: Report, recipe: Recipe) -> tuple[PreTrainedTokenizerBase | None, ResponseFormat]:
    """Return the tokenizer and the format as training will have them; without a tokenizer (``None``) the report says why."""
    from jinja2 import TemplateError

    with report.refusals("contract.tokenizer"):
        try:
            tokenizer, fmt = load_tokenizer(recipe)
            _check_beginning(report, recipe, tokenizer, fmt)
            _check_end(report, recipe, tokenizer)
            return tokenizer, fmt
        except TemplateError as error:
            raise RecipeError(f"chat_template: that of {recipe.model.model_name_or_path} cannot be used: {first_line(error)}") from error
    script = recipe.script
    return None, get_response_format(script.response_format, system_prompt=script.system_prompt, prefill=script.prefill)


def _check_beginning(report: Report, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, fmt: ResponseFormat) -> None:
    tags, turn = fmt.reasoning_tags, generation_prompt(tokenizer)
    others = sorted({other.reasoning_tags[0] for other in FORMATS.values() if other.reasoning_tags} - set(tags or ()))
    foreign = [tag for tag in others if tag in turn]
    template = f"the chat template of {recipe.model.model_name_or_path}"
    if tags and foreign:
        told = f"{template} opens the assistant's turn with {foreign[0]!r}, but response_format {fmt.name!r} looks for {tags[0]!r}: "
        told += f"completions start in the wrong block; write {_format_for(foreign, fmt)}, or set chat_template"
        report.add(ERROR, "contract.prefill", told)
    elif tags and tags[1] in fmt.prefill:
        told = f"the assistant's turn starts with {fmt.prefill!r}, a reasoning block that is closed before the model writes a word, so no "
        report.add(ERROR, "contract.prefill", f"{told}completion can be in the format; set chat_template to one without it")
    elif fmt.prefill:
        whose = "the recipe's prefill" if recipe.script.prefill else f"{template} (so leave prefill out)"
        said = f"the turn is already opened with {fmt.prefill!r} by {whose}; the model does not write that again"
        own = [name for name in getattr(recipe.script, "reward_funcs", ()) if ":" in name]
        if own:
            said += f", and {listed(own)} must not look for it: completions come without it"
        report.add(WARNING if own else OK, "contract.prefill", said)


def _check_end(report: Report, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
    from jinja2 import TemplateError

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
    stops = _stop_tokens(recipe, tokenizer)
    said = f"the chat template ends a turn in {end!r}"
    if end in stops:
        report.add(OK, "contract.eos", f"{said}, and generation stops there")
    elif sft:
        report.add(OK, "contract.eos", f"{said}; SFT makes it the eos_token (now {tokenizer.eos_token!r})")
    else:
        said += f", but generation stops at {listed(sorted(map(repr, stops)))} only: completions may run on to max_completion_length; set "
        said += f"eos_token_id to {tokenizer.convert_tokens_to_ids(end)} in the checkpoint's generation_config.json, or start from an SFT "
        report.add(WARNING, "contract.eos", f"{said}checkpoint of ours, which has it")


def _stop_tokens(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Where TRL's generation stops: the tokenizer's end token and those of the model's generation config."""
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(recipe.model.model_name_or_path, revision=recipe.model.model_revision).eos_token_id
    except OSError:  # the checkpoint has none
        ends = None
    ids = ends if isinstance(ends, list) else [ends]
    return {tokenizer.eos_token, *(tokenizer.convert_ids_to_tokens(token) for token in ids if token is not None)}


def check_prompt(report: Report, recipe: Recipe, fmt: ResponseFormat, rows: Dataset) -> None:
    """Check that the prompt asks for the shape that the rewards (GRPO) or the targets (SFT) have."""
    sft, wanted = recipe.method == "sft", _marks(fmt)
    sample = [rows[index] for index in spread(len(rows), _SAMPLE)]
    prompts = [words(row["prompt"]) for row in sample]
    if sft:  # rows that are taken as they are need not be in the format
        wanted = [mark for mark in wanted if all(mark in words(row["completion"]) for row in sample)]
    # What the turn starts with need not be asked for.
    missing = [[mark for mark in wanted if mark not in prompt and mark not in fmt.prefill] for prompt in prompts]
    asked = [[mark for mark in _asked(row["prompt"], prompt) if mark not in wanted] for row, prompt in zip(sample, prompts, strict=True)]
    conflicts = [(other, lacking) for other, lacking in zip(asked, missing, strict=True) if other and lacking]
    if conflicts:
        # A GRPO format without tags searches the whole completion, so another shape may be paid too.
        searched = not sft and not (fmt.reasoning_tags or fmt.answer_tags or fmt.delimited)
        other, lacking = map(" and ".join, conflicts[0])
        whose = "which the targets have" if sft else "which the rewards read"
        told = f"the prompt asks for {other}, but response_format {fmt.name!r}, {whose}, "
        told += f"wants {lacking} ({len(conflicts)} of {len(sample)} sampled rows): who does as asked is paid "
        told += "only if its text gives a final answer" if searched else "nothing for it"
        told += f"; write {_format_for(conflicts[0][0], fmt)}, or leave system_prompt out"
        report.add(ERROR if 2 * len(conflicts) >= len(sample) and not searched else WARNING, "contract.prompt", told)
        return
    silent = " and ".join(mark for mark in wanted if all(mark in lacking for lacking in missing))
    if silent and sft:
        report.add(OK, "contract.prompt", f"the targets have {silent} without being asked; SFT teaches it")
    elif silent:
        told = f"nothing in the prompt asks for {silent}, which response_format {fmt.name!r} wants: only models trained on it give it"
        report.add(WARNING, "contract.prompt", f"{told}; leave system_prompt out to have the format's own instruction")
    elif wanted:
        report.add(OK, "contract.prompt", f"the prompt asks for {' and '.join(wanted)}, as response_format {fmt.name!r} has it")


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
    if not isinstance(sample[0]["completion"], list):
        report.add(OK, "contract.target", "prompts and completions are plain texts; no chat template comes in")
        return
    with report.refusals("contract.target"):
        for row in sample:
            rendered(tokenizer, row["prompt"])
            check_target(recipe.model.model_name_or_path, tokenizer, row)
        report.add(OK, "contract.target", f"the chat template writes all {len(sample)} sampled targets whole, right after the prompt")
