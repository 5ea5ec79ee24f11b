"""Tokenizers with the recipe's chat template and prefill, and what a chat template must do for
training.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.files import shipped
from r1_recipes.models.weights import model_path
from r1_recipes.prompts import (
    ResponseFormat,
    get_response_format,
    leaves_open,
    served_template,
    template_prefill,
)
from r1_recipes.recipe import Recipe
from r1_recipes.recipe.types import namespace_value

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


def recipe_format(recipe: Recipe) -> ResponseFormat:
    """Return the response format with the recipe's own system prompt and prefill."""
    script = recipe.script
    return get_response_format(
        script.response_format, system_prompt=script.system_prompt, prefill=script.prefill
    )


def load_tokenizer(recipe: Recipe) -> tuple[PreTrainedTokenizerBase, ResponseFormat]:
    """Return the tokenizer with the recipe's chat template and prefill, and the format as it will
    see completions.

    A prefill becomes part of the generation prompt, so that training, vLLM and a served checkpoint
    start the assistant's turn alike. A template that already opens the reasoning (DeepSeek's
    distilled models) counts as the prefill. What an earlier run added to the template is taken out;
    its prefill stays if the recipe names none and the format is its own, and its variables if the
    recipe has no chat_template_kwargs. These become defaults in the template's text: all that
    render it, and whoever serves the checkpoint, get them.
    """
    script, model = recipe.script, recipe.model
    fmt = recipe_format(recipe)
    model.model_name_or_path = name = model_path(
        model.model_name_or_path, script.hub, model.model_revision
    )
    try:
        tokenizer = from_pretrained("AutoTokenizer", recipe)
    except (
        Exception
    ) as error:  # offline, gated, misspelt, not a checkpoint: Transformers' own words say which
        # A run that was stopped has no model of its own yet.
        newest = max(
            Path(name).glob("checkpoint-*"),
            key=lambda path: path.stat().st_mtime,
            default="PATH of a local checkpoint",
        )
        raise RecipeError(
            f"{recipe.path}: model_name_or_path: {name!r} cannot be loaded "
            f"({first_line(error)[:-1]}). "
            f"Fix: --model_name_or_path {newest}, or embedded:SmolLM2-135M-Instruct; or "
            f"--hub modelscope"
        ) from error
    tokenizer.chat_template, added = served_template.unwrap(tokenizer.chat_template)
    keeps_prefill = not script.chat_template and script.prefill is None
    if keeps_prefill and (
        added.response_format == fmt.name or template_prefill(added.prefill, fmt)
    ):
        fmt = replace(fmt, prefill=added.prefill)
    tokenizer.chat_template = _chat_template(recipe, fmt, tokenizer)
    variables = namespace_value(recipe, "chat_template_kwargs")
    if variables is None and not script.chat_template:
        variables = added.variables
    tokenizer.chat_template = served_template.wrap(
        tokenizer.chat_template, variables=_checked(variables or {}, recipe, tokenizer)
    )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    fmt = _with_opened_turn(recipe, tokenizer, fmt)
    if recipe.method not in ("sft", "reward"):  # which check their rows
        _check_beginning(recipe, tokenizer, fmt)
    return tokenizer, fmt


def _with_opened_turn(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, fmt: ResponseFormat
) -> ResponseFormat:
    """Add the prefill to the generation prompt; return the format with what the template opens the
    turn with by itself.
    """
    turn, prefill = generation_prompt(tokenizer), fmt.prefill
    opened = template_prefill(turn, fmt)
    if prefill and turn.endswith(prefill):
        return fmt
    if not opened:
        if prefill:
            tokenizer.chat_template = served_template.wrap(
                tokenizer.chat_template, response_format=fmt.name, prefill=prefill
            )
        return fmt
    if prefill:
        raise RecipeError(
            f"{recipe.path}: prefill: the chat template of {recipe.model.model_name_or_path} "
            f"already opens the turn with {opened!r}; "
            "leave prefill out"
        )
    logger.info(
        "the chat template opens the assistant's turn with %r; rewards read completions with "
        "it in front",
        opened,
    )
    return replace(fmt, prefill=opened)


def from_pretrained(auto_class: str, recipe: Recipe, **options: Any) -> Any:
    """Load a part of the recipe's model with one of Transformers' auto classes."""
    import transformers

    options |= {
        "revision": recipe.model.model_revision,
        "trust_remote_code": recipe.training.trust_remote_code,
    }
    return getattr(transformers, auto_class).from_pretrained(
        recipe.model.model_name_or_path, **options
    )


def _chat_template(recipe: Recipe, fmt: ResponseFormat, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the recipe's chat template, the format's, or the model's own, in this order."""
    text = recipe.script.chat_template
    if text and "{" not in text:
        try:
            return shipped(Path(text).expanduser()).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(
                f"{recipe.path}: chat_template: {text!r} is neither Jinja text nor a file "
                f"that can be read"
            ) from error
    if template := text or fmt.chat_template or tokenizer.chat_template:
        return template
    raise RecipeError(
        f"{recipe.path}: {recipe.model.model_name_or_path} has no chat template. "
        "Fix: response_format: r1_zero (plain text, for base models), chat_template (ChatML: "
        "docs/migration.md), or an SFT checkpoint"
    )


def _checked(
    variables: dict[str, Any], recipe: Recipe, tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    for name, value in variables.items():
        where = f"{recipe.path}: chat_template_kwargs: {name}:"
        if not re.search(rf"\b{re.escape(str(name))}\b", str(tokenizer.chat_template)):
            raise RecipeError(
                f"{where} the chat template of {recipe.model.model_name_or_path} reads no "
                f"such variable. "
                "Fix: leave it out, or a model whose template has such a switch"
            )
        if not isinstance(value, bool | int | float | str) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            raise RecipeError(
                f"{where} must be true, false, a number or a text, got {value!r}. Fix: as in "
                f"{{enable_thinking: false}}"
            )
    return variables


def load_processor(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Any:
    """Return what makes words and pictures a vision-language model's input, with this tokenizer and
    its chat template.
    """
    where = f"{recipe.path}: model_name_or_path: {recipe.model.model_name_or_path!r}"
    try:
        processor = from_pretrained("AutoProcessor", recipe)
        picture: str = processor.image_token
    # Offline, no vision-language model, or a package for pictures or videos is missing.
    except Exception as error:
        raise RecipeError(
            f"{where}: the data have pictures, and no processor for them can be loaded: "
            f"{first_line(error)}"
        ) from error
    tokenizer.padding_side = "left"  # pictures are counted from the end of the prompt
    processor.tokenizer, processor.chat_template = tokenizer, tokenizer.chat_template
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
    if picture not in processor.apply_chat_template(turn, tokenize=False):
        raise RecipeError(
            f"{where}: its chat template has no place for a picture; set chat_template to "
            f"one that writes {picture!r}"
        )
    return processor


def train_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Change the model's own template to TRL's for training: earlier turns stay as they were, and
    the model's are marked.
    """
    from trl.chat_template_utils import get_training_chat_template  # heavy

    plain = copy.copy(tokenizer)
    plain.chat_template, added = served_template.unwrap(
        tokenizer.chat_template
    )  # TRL knows whole templates
    tokenizer.chat_template = served_template.wrap(
        get_training_chat_template(plain) or plain.chat_template, **vars(added)
    )


def generation_prompt(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what the chat template adds for the assistant's turn to come."""
    asked = [{"role": "user", "content": "?"}]
    whole = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    return str(whole).removeprefix(str(tokenizer.apply_chat_template(asked, tokenize=False)))


def _check_beginning(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, fmt: ResponseFormat
) -> None:
    """Refuse generation prompts that an answer does not go on from."""
    tags, turn, model = (
        fmt.reasoning_tags,
        generation_prompt(tokenizer),
        recipe.model.model_name_or_path,
    )
    if tags and tags[1] in turn and not leaves_open(turn, tags) and not fmt.parse("").reasoning:
        switch = (
            "chat_template_kwargs: {enable_thinking: true}"
            if "enable_thinking" in str(tokenizer.chat_template)
            else "chat_template"
        )
        raise RecipeError(
            f"{recipe.path}: response_format: {fmt.name} must hold reasoning, but the "
            f"assistant's turn starts with {turn!r}, where it is "
            f"closed before the model writes a word. Fix: response_format: boxed for a model "
            f"that does not think, or {switch}"
        )
    asked = [{"role": "system", "content": fmt.system_prompt}, {"role": "user", "content": "?"}]
    with contextlib.suppress(TemplateError):  # it takes no system message, which preflight tells
        text = tokenizer.apply_chat_template(asked, tokenize=False)
        if fmt.system_prompt[:16] in text and fmt.system_prompt.strip() not in text:
            raise RecipeError(
                f"{recipe.path}: system_prompt: the chat template of {model} writes another text. "
                "Fix: system_prompt without /think (SmolLM3's takes </think> for a switch), "
                "or '' for none"
            )
    try:
        answer = (
            fmt.prefill + fmt.render_completion("1 + 1 = 2", "2").lstrip()
        )  # a model need not keep to the layout's white space
    except ValueError:  # a prefill that no response in the format starts with; preflight tells
        return
    turns = {
        "prompt": [{"role": "user", "content": "?"}],
        "completion": [{"role": "assistant", "content": answer}],
    }
    check_target(model, tokenizer, turns, taught=False)


def check_targets(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, rows: Dataset) -> None:
    """Hold a sample of training rows to :func:`check_target`; a mixture's parts differ, so that one
    row does not stand for all.
    """
    # Without a masked prompt, or generation, where the prompt ends does not matter.
    masked = recipe.method == "sft" and recipe.training.completion_only_loss is not False
    for row in rows.select(range(0, len(rows), max(1, len(rows) // 16))):
        turns = {
            "prompt": row["prompt"],
            "completion": row["completion" if recipe.method == "sft" else "chosen"],
        }
        check_target(recipe.model.model_name_or_path, tokenizer, turns, masked=masked)


def check_target(
    model: str,
    tokenizer: PreTrainedTokenizerBase,
    row: dict[str, Any],
    *,
    masked: bool = True,
    taught: bool = True,
) -> None:
    """Refuse a chat template that would not write the target into the training text, right after
    the prompt (which ``masked`` has no loss).

    Those of DeepSeek's distilled models cut the reasoning out of a turn that is there; others open
    only the turn to come: unless the target is ``taught``, both pass.
    """
    messages = row["prompt"] + row["completion"]
    where = f"chat_template: that of {model}"
    try:
        texts = [
            tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        ]
        texts += [tokenizer.apply_chat_template(messages, tokenize=False), messages[-1]["content"]]
        prompt = tokenizer.apply_chat_template(
            row["prompt"], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        whole = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
    except TemplateError as error:
        if not taught:
            return
        raise RecipeError(f"{where} cannot write a training row: {first_line(error)}") from error
    # White space aside: some templates write the line breaks around the reasoning their own way.
    asked, text, target = ("".join(str(each).split()) for each in texts)
    if not taught and not text.startswith(asked):
        return
    if taught and target not in text:
        raise RecipeError(
            f"{where} cuts the reasoning out of the assistant's turn, which training is to "
            f"show. Fix: another chat_template"
        )
    if masked and prompt != whole[: len(prompt)]:
        same = 0
        while same < len(whole) and prompt[same] == whole[same]:
            same += 1
        raise RecipeError(
            f"{where} ends a prompt in {tokenizer.decode(prompt[same:])!r}, and has other "
            f"tokens there once an answer follows: "
            "training on other prompts. "
            "Fix: begin prefill as the template begins a turn, end prefill in a line break, "
            "or another chat_template"
        )


def turn_end(model: str, tokenizer: PreTrainedTokenizerBase, eos_token: str | None = None) -> str:
    """Return the token that ends an assistant's turn: the recipe's ``eos_token``, or the first that
    the chat template writes after it.
    """
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "forty-two"}]
    tail = (
        str(tokenizer.apply_chat_template(turns, tokenize=False)).rpartition("forty-two")[2].strip()
    )
    special = {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}
    end = max(
        (token for token in special if token and tail.startswith(token)), key=len, default=None
    )
    if end is None:
        raise RecipeError(
            f"chat_template: that of {model} ends the assistant's turn in {tail!r}, which "
            f"begins with no special token; "
            f"the model would not stop there. Fix: a chat_template whose turns end in "
            f"{tokenizer.eos_token!r}"
        )
    if eos_token is not None and (eos_token not in special or eos_token not in tail):
        raise RecipeError(
            f"eos_token: must be what the chat template of {model} ends a turn with, "
            f"{end!r}, got {eos_token!r}"
        )
    return eos_token or end
