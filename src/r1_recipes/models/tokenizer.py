"""Load tokenizers with the recipe's chat template and prefill, and check that a template fits
training.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import re
from dataclasses import replace
from functools import partial
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
    served,
    template_prefill,
)
from r1_recipes.recipe import Recipe
from r1_recipes.recipe.types import Settings, namespace_value

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


def recipe_format(recipe: Recipe) -> ResponseFormat:
    """Return the response format with the recipe's system prompt and prefill."""
    script = recipe.script
    return get_response_format(
        script.response_format, system_prompt=script.system_prompt, prefill=script.prefill
    )


def load_tokenizer(recipe: Recipe) -> tuple[PreTrainedTokenizerBase, ResponseFormat]:
    """Return the tokenizer with the recipe's chat template and prefill, and its response format.

    The prefill becomes part of the generation prompt, so that training, vLLM and a served
    checkpoint start the assistant's turn in the same way. If the template already opens the
    reasoning (DeepSeek's distilled models), that opening counts as the prefill.

    What an earlier run added to the template is removed. chat_template_kwargs become defaults in
    the template's text, since some of TRL's trainers take none.

    Raises:
        RecipeError: The tokenizer cannot be loaded, or its chat template does not fit the format.
    """
    script = recipe.script
    model = recipe.model
    fmt = recipe_format(recipe)
    model.model_name_or_path = name = model_path(
        model.model_name_or_path, script.hub, model.model_revision
    )
    try:
        tokenizer = from_pretrained("AutoTokenizer", recipe)
    # The model is offline, gated, misspelt or not a checkpoint. Transformers' message says which.
    except Exception as error:
        # A run that was stopped has no model yet, only checkpoints.
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
    template = tokenizer.chat_template
    template = template.get("default") if isinstance(template, dict) else template
    tokenizer.chat_template = served.own_template(template or "")
    fmt = _with_saved_prefill(recipe, fmt, served.saved_prefill(template or ""))
    tokenizer.chat_template = _chat_template(recipe, fmt, tokenizer)
    if script.chat_template:
        _warn_without_bos(recipe, tokenizer)
    _repair(tokenizer)
    variables = namespace_value(recipe, "chat_template_kwargs") or {}
    _check_variables(variables, recipe, tokenizer)
    tokenizer.chat_template = served.with_opening(
        tokenizer.chat_template, served.default_variables(variables)
    )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    fmt = _with_opened_turn(recipe, tokenizer, fmt)
    if recipe.method not in ("sft", "reward"):  # these methods check their rows
        _check_generation_prompt(recipe, tokenizer, fmt)
    return tokenizer, fmt


def _with_saved_prefill(recipe: Recipe, fmt: ResponseFormat, saved: str) -> ResponseFormat:
    """Return the format with the prefill of the run that trained the model, if it fits.

    A benchmark's recipe says nothing of it, and the model is to be asked as it was trained.
    """
    script = recipe.script
    if not saved or script.prefill is not None or script.chat_template or fmt.chat_template:
        return fmt
    if template_prefill(saved, fmt):
        return replace(fmt, prefill=saved)
    logger.warning(
        "%s was trained with prefill %r, which is no start of format %r, so it is left out. "
        "Fix: prefill: %r, or prefill: '' to leave it out",
        recipe.model.model_name_or_path,
        saved,
        fmt.name,
        saved,
    )
    return fmt


def _with_opened_turn(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, fmt: ResponseFormat
) -> ResponseFormat:
    """Add the prefill to the generation prompt, or take the template's opening as the prefill.

    Return the format with the prefill that completions start with.
    """
    turn = generation_prompt(tokenizer)
    prefill = fmt.prefill
    opened = template_prefill(turn, fmt)
    if prefill and turn.endswith(prefill):
        return fmt
    if not opened:
        if prefill:
            tokenizer.chat_template = served.with_prefill(tokenizer.chat_template, prefill)
        return fmt
    if prefill:
        raise RecipeError(
            f"{recipe.path}: prefill: the chat template of {recipe.model.model_name_or_path} "
            f"already opens the assistant's turn with {opened!r}. Fix: remove prefill"
        )
    logger.info(
        "the chat template opens the assistant's turn with %r, so rewards read completions with "
        "this text in front",
        opened,
    )
    return replace(fmt, prefill=opened)


def _repair(tokenizer: PreTrainedTokenizerBase) -> None:
    """Let a chat template write system messages and reasoning, if it does not."""
    asked = [{"role": "user", "content": "?"}]
    instructed = [{"role": "system", "content": "!"}, *asked]
    answered = [*asked, {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nso"}]
    if _rendered(tokenizer, asked) and not _rendered(tokenizer, instructed):
        logger.info("the chat template takes no system message, so the user's turn starts with it")
        tokenizer.chat_template = served.SYSTEM_BEFORE_USER + tokenizer.chat_template
    if _rendered(tokenizer, answered).count("<think>") > 1:
        logger.info("the chat template gets the reasoning of messages in a field of its own")
        tokenizer.chat_template = served.REASONING_IN_FIELD + tokenizer.chat_template


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> str:
    """Return the text of messages, or "" if the chat template refuses them."""
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False))
    except TemplateError:
        return ""


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
    """Return the chat template of the recipe, of the format, or of the model, in this order."""
    text = recipe.script.chat_template
    if text and "{" not in text:
        try:
            return shipped(Path(text)).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(
                f"{recipe.path}: chat_template: must be Jinja text or a readable file, got {text!r}"
            ) from error
    if not text and fmt.chat_template:
        # Llama's and Gemma's tokenizers start every text with a token, without which a base model
        # writes nonsense. Text that a template has rendered gets none.
        return ("{{ bos_token }}" if _adds_bos(tokenizer) else "") + fmt.chat_template
    template = text or tokenizer.chat_template
    if template:
        return template
    raise RecipeError(
        f"{recipe.path}: {recipe.model.model_name_or_path} has no chat template. "
        "Fix: response_format: r1_zero (plain text, for base models), chat_template (ChatML: "
        "docs/migration.md), or an SFT checkpoint"
    )


def _adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the tokenizer starts every plain text with its BOS token."""
    bare, whole = (tokenizer("a", add_special_tokens=adds)["input_ids"] for adds in (False, True))
    bos = tokenizer.bos_token_id
    return bos is not None and whole[:1] == [bos] and bare[:1] != [bos]


def _warn_without_bos(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
    with contextlib.suppress(TemplateError):
        text = tokenizer.apply_chat_template([{"role": "user", "content": "?"}], tokenize=False)
        if _adds_bos(tokenizer) and not str(text).lstrip().startswith(tokenizer.bos_token):
            logger.warning(
                "%s: chat_template: does not start with %r, as the model's plain texts do. "
                "Fix: start it with {{ bos_token }}",
                recipe.path,
                tokenizer.bos_token,
            )


def _check_variables(
    variables: Settings, recipe: Recipe, tokenizer: PreTrainedTokenizerBase
) -> None:
    for name, value in variables.items():
        where = f"{recipe.path}: chat_template_kwargs: {name}:"
        if not re.search(rf"\b{re.escape(str(name))}\b", str(tokenizer.chat_template)):
            raise RecipeError(
                f"{where} the chat template of {recipe.model.model_name_or_path} has no variable "
                "with this name. Fix: remove it, or use a model whose template has this variable"
            )
        is_finite = not isinstance(value, float) or math.isfinite(value)
        if not is_finite or not isinstance(value, bool | int | float | str):
            raise RecipeError(
                f"{where} must be true, false, a number or a text, got {value!r}. Fix: for example "
                "{enable_thinking: false}"
            )


def load_processor(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Any:
    """Return the processor that turns text and pictures into a vision-language model's input.

    It uses this tokenizer and its chat template.
    """
    where = f"{recipe.path}: model_name_or_path: {recipe.model.model_name_or_path!r}"
    try:
        processor = from_pretrained("AutoProcessor", recipe)
        picture: str = processor.image_token
    # The model is offline or takes no pictures, or a package for pictures or videos is missing.
    except Exception as error:
        raise RecipeError(
            f"{where}: the data contain pictures, but the model's processor cannot be loaded: "
            f"{first_line(error)}"
        ) from error
    tokenizer.padding_side = "left"  # pictures are counted from the end of the prompt
    processor.tokenizer = tokenizer
    processor.chat_template = tokenizer.chat_template
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
    if picture not in processor.apply_chat_template(turn, tokenize=False):
        raise RecipeError(
            f"{where}: its chat template does not write pictures. Fix: a chat_template that "
            f"writes {picture!r}"
        )
    return processor


def train_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Replace the model's own template by TRL's template for training.

    Earlier messages stay unchanged in it, and the model's messages are marked.
    """
    from trl.chat_template_utils import get_training_chat_template  # heavy

    unwrapped = copy.copy(tokenizer)
    # TRL recognises only complete templates.
    own = served.own_template(tokenizer.chat_template)
    for repair in (served.REASONING_IN_FIELD, served.SYSTEM_BEFORE_USER):
        own = own.removeprefix(repair)
    unwrapped.chat_template = own
    trained = get_training_chat_template(unwrapped) or own
    tokenizer.chat_template = tokenizer.chat_template.replace(own, trained, 1)


def generation_prompt(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the text that the chat template adds to open the assistant's turn."""
    messages = [{"role": "user", "content": "?"}]
    opened = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return str(opened).removeprefix(str(tokenizer.apply_chat_template(messages, tokenize=False)))


def _check_generation_prompt(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, fmt: ResponseFormat
) -> None:
    """Refuse a generation prompt that an answer in the format cannot follow."""
    tags = fmt.reasoning_tags
    turn = generation_prompt(tokenizer)
    model = recipe.model.model_name_or_path
    if tags and tags[1] in turn and not leaves_open(turn, tags) and not fmt.parse("").reasoning:
        switch = "chat_template"
        if "enable_thinking" in str(tokenizer.chat_template):
            switch = "chat_template_kwargs: {enable_thinking: true}"
        raise RecipeError(
            f"{recipe.path}: response_format: {fmt.name} needs reasoning, but the chat template "
            f"opens the assistant's turn with {turn!r}, an empty reasoning block, so the model "
            f"cannot write any. Fix: response_format: boxed for a model without reasoning, or "
            f"{switch}"
        )
    question = [{"role": "user", "content": "?"}]
    messages = [{"role": "system", "content": fmt.system_prompt}, *question]
    with contextlib.suppress(TemplateError):  # it takes no system message, which preflight reports
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        if fmt.system_prompt[:16] in text and fmt.system_prompt.strip() not in text:
            raise RecipeError(
                f"{recipe.path}: system_prompt: the chat template of {model} changes this text. "
                "Fix: a system_prompt without /think (SmolLM3 reads </think> as a switch), "
                "or '' for no system message"
            )
    try:
        # A model may write other white space than the layout.
        answer = fmt.prefill + fmt.render_completion("1 + 1 = 2", "2").lstrip()
    except ValueError:  # no response in the format starts with this prefill: preflight reports it
        return
    turns = {"prompt": question, "completion": [{"role": "assistant", "content": answer}]}
    check_target(model, tokenizer, turns, taught=False)


def check_targets(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, rows: Dataset) -> None:
    """Check a sample of training rows with :func:`check_target`.

    The parts of a mixture differ, so one row does not represent all rows.
    """
    # Without a masked prompt and without generation, the end of the prompt does not matter.
    masked = recipe.method == "sft" and recipe.training.completion_only_loss is not False
    target = "completion" if recipe.method == "sft" else "chosen"
    for row in rows.select(range(0, len(rows), max(1, len(rows) // 16))):
        turns = {"prompt": row["prompt"], "completion": row[target]}
        check_target(recipe.model.model_name_or_path, tokenizer, turns, masked=masked)


def check_target(
    model: str,
    tokenizer: PreTrainedTokenizerBase,
    row: dict[str, Any],
    *,
    masked: bool = True,
    taught: bool = True,
) -> None:
    """Refuse a chat template that does not write the target into the training text.

    The target must follow the prompt. The templates of DeepSeek's distilled models cut the
    reasoning out of a complete message of the assistant. Others open the reasoning only in the
    generation prompt. With ``taught=False`` both are accepted. With ``masked``, the loss leaves out
    the prompt, so the prompt's tokens must not change when the target follows.
    """
    where = f"chat_template: that of {model}"
    try:
        problem = _target_problem(tokenizer, row, masked=masked, taught=taught)
    except TemplateError as error:
        if not taught:
            return
        raise RecipeError(f"{where} cannot write a training row: {first_line(error)}") from error
    if problem:
        fix = _mending_key(tokenizer, row) or "another chat_template"
        raise RecipeError(f"{where} {problem}. Fix: {fix}")


def _target_problem(
    tokenizer: PreTrainedTokenizerBase, row: dict[str, Any], *, masked: bool, taught: bool
) -> str:
    """Return what a chat template does wrong with a training row, or "" if it writes it whole."""
    messages = row["prompt"] + row["completion"]
    render = partial(tokenizer.apply_chat_template, tokenize=False)
    encode = partial(tokenizer.apply_chat_template, return_dict=True)
    opened = render(row["prompt"], add_generation_prompt=True)
    texts = [opened, render(messages), messages[-1]["content"]]
    prompt = encode(row["prompt"], add_generation_prompt=True)["input_ids"]
    full_ids = encode(messages)["input_ids"]
    # Ignore white space: templates differ in the line breaks around the reasoning.
    prompt_text, text, target = ("".join(str(part).split()) for part in texts)
    if not taught and not text.startswith(prompt_text):
        return ""
    if taught and target not in text:
        return "cuts a part of the target, so training would not see it"
    if not masked or prompt == full_ids[: len(prompt)]:
        return ""
    same = 0
    while same < len(full_ids) and prompt[same] == full_ids[same]:
        same += 1
    return (
        f"ends a prompt in {tokenizer.decode(prompt[same:])!r}, but writes other tokens there when "
        "an answer follows, so training would use other prompts. A prefill must start as the "
        "template starts the turn, and end in a line break"
    )


def _mending_key(tokenizer: PreTrainedTokenizerBase, row: dict[str, Any]) -> str:
    """Return the key with which a chat template writes a training row whole, or ""."""
    if "enable_thinking" in tokenizer.chat_template:
        thinks = "</think>" in row["completion"][-1]["content"]
        return f"chat_template_kwargs: {{enable_thinking: {str(thinks).lower()}}}"
    patched = copy.copy(tokenizer)
    with contextlib.suppress(TemplateError, ValueError):  # TRL knows no better template
        train_template(patched)
        if not _target_problem(patched, row, masked=True, taught=True):
            return "assistant_only_loss: true, which trains with TRL's variant of this template"
    return ""


def turn_end(model: str, tokenizer: PreTrainedTokenizerBase, eos_token: str | None = None) -> str:
    """Return the token that ends an assistant's turn.

    It is the recipe's ``eos_token``, or the first token that the chat template writes after the
    message.
    """
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "forty-two"}]
    text = str(tokenizer.apply_chat_template(turns, tokenize=False))
    tail = text.rpartition("forty-two")[2].strip()
    special = {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}
    end = max(filter(tail.startswith, special), key=len, default="")
    if not end:
        raise RecipeError(
            f"chat_template: that of {model} ends the assistant's turn in {tail!r}, which does not "
            f"start with a special token, so the model would not stop there. "
            f"Fix: a chat_template whose turns end in {tokenizer.eos_token!r}"
        )
    if eos_token is not None and (eos_token not in special or eos_token not in tail):
        raise RecipeError(
            f"eos_token: must be the token that ends a turn in the chat template of {model}, "
            f"{end!r}, got {eos_token!r}"
        )
    return eos_token or end
