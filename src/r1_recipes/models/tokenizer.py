"""Tokenizers with the recipe's chat template and prefill, and what a chat template must do for training."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.models.weights import model_path
from r1_recipes.prompts import CHATML, ResponseFormat, get_response_format, served_template, template_prefill
from r1_recipes.recipe.load import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

logger = logging.getLogger(__name__)


def load_tokenizer(recipe: Recipe) -> tuple[PreTrainedTokenizerBase, ResponseFormat]:
    """Return the tokenizer with the recipe's chat template and prefill, and the format as it will see completions.

    A model without a chat template gets the format's own, or ChatML (SFT, if its tokenizer has ChatML's tokens). A prefill becomes
    part of the generation prompt, so that training, vLLM and a served checkpoint all start the assistant's turn alike. A template that
    already opens the reasoning (DeepSeek's distilled models) counts as the prefill. What an earlier run added to the template is taken
    out; its prefill stays if the recipe names none and the format is its own.

    Raises:
        RecipeError: the model cannot be found, has no chat template and the format brings none, or opens the turn in another way than the
            recipe's ``prefill``.
    """
    script, model = recipe.script, recipe.model
    fmt = get_response_format(script.response_format, system_prompt=script.system_prompt, prefill=script.prefill)
    model.model_name_or_path = name = model_path(model.model_name_or_path, script.hub, model.model_revision)
    try:
        tokenizer = _from_pretrained("AutoTokenizer", recipe)
    except Exception as error:  # offline, gated, misspelt, not a checkpoint: Transformers' own words say which
        raise RecipeError(
            f"{recipe.path}: model_name_or_path: {name!r} cannot be loaded ({first_line(error)[:-1]}); a local "
            "checkpoint folder works too: --model_name_or_path PATH. On ModelScope: --hub modelscope"
        ) from error
    tokenizer.chat_template, added = served_template.unwrap(tokenizer.chat_template)
    keeps_prefill = not script.chat_template and script.prefill is None
    if keeps_prefill and (added.response_format == fmt.name or template_prefill(added.prefill, fmt)):
        fmt = replace(fmt, prefill=added.prefill)
    tokenizer.chat_template = _chat_template(recipe, fmt, tokenizer)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    turn = generation_prompt(tokenizer)
    opened = template_prefill(turn, fmt)
    if fmt.prefill and turn.endswith(fmt.prefill):
        return tokenizer, fmt
    if opened and fmt.prefill:
        raise RecipeError(f"{recipe.path}: prefill: the chat template of {name} already opens the turn with {opened!r}; leave prefill out")
    if opened:
        logger.info("the chat template opens the assistant's turn with %r; rewards read completions with it in front", opened)
        fmt = replace(fmt, prefill=opened)
    elif fmt.prefill:
        tokenizer.chat_template = served_template.wrap(tokenizer.chat_template, response_format=fmt.name, prefill=fmt.prefill)
    return tokenizer, fmt


def _from_pretrained(kind: str, recipe: Recipe) -> Any:
    import transformers

    model = recipe.model
    return getattr(transformers, kind).from_pretrained(
        model.model_name_or_path, revision=model.model_revision, trust_remote_code=recipe.training.trust_remote_code
    )


def _chat_template(recipe: Recipe, fmt: ResponseFormat, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the recipe's chat template, the format's, the model's own, or (SFT) ChatML, in this order."""
    text, name = recipe.script.chat_template, recipe.model.model_name_or_path
    if text and "{" not in text:
        try:
            return Path(text).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"{recipe.path}: chat_template: {text!r} is neither Jinja text nor a file that can be read") from error
    if template := text or fmt.chat_template or tokenizer.chat_template:
        return template
    where = f"{recipe.path}: {name} has no chat template"
    if recipe.method != "sft":
        raise RecipeError(
            f"{where}; use response_format: r1_zero (plain text, for base models), set chat_template, or start from an SFT checkpoint"
        )
    absent = [token for token in ("<|im_start|>", "<|im_end|>") if token not in tokenizer.get_vocab()]
    if absent:  # as plain text they would end no turn, and new tokens start untrained, under LoRA for good
        raise RecipeError(
            f"{where}, and for ChatML its tokenizer lacks {' and '.join(absent)}; use response_format: r1_zero (plain text, turns end in "
            f"{tokenizer.eos_token!r}), or set chat_template to one made of tokens that it has"
        )
    logger.warning("%s has no chat template; it is trained on ChatML", name)
    return CHATML


def load_processor(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> ProcessorMixin:
    """Return what makes words and pictures a vision-language model's input, with this tokenizer and its chat template.

    Raises:
        RecipeError: the model has no such processor, a package that it needs is not installed, or the chat template has no place for a
            picture.
    """
    from transformers import ProcessorMixin

    where = f"{recipe.path}: model_name_or_path: {recipe.model.model_name_or_path!r}"
    try:
        processor = _from_pretrained("AutoProcessor", recipe)
    except Exception as error:  # offline, not a checkpoint, or a package for pictures or videos that is not there
        raise RecipeError(f"{where}: the data have pictures, and its processor cannot be loaded: {first_line(error)}") from error
    has_pictures = isinstance(processor, ProcessorMixin)  # a name of its own keeps the type loose: `image_token` is its subclasses'
    if not has_pictures:
        raise RecipeError(f"{where}: the data have pictures, and this is no vision-language model")
    tokenizer.padding_side = "left"  # pictures are counted from the end of the prompt
    # Which processor it is, its type does not say; all of vision-language models have these.
    picture: str = vars(processor)["image_token"]
    processor.tokenizer, processor.chat_template = tokenizer, tokenizer.chat_template
    turn: list[Any] = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
    if picture not in processor.apply_chat_template(turn, tokenize=False):
        raise RecipeError(f"{where}: its chat template has no place for a picture; set chat_template to one that writes {picture!r}")
    return processor


def generation_prompt(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what the chat template adds for the assistant's turn to come."""
    messages = [{"role": "user", "content": "?"}]
    return _text(tokenizer, messages, add_generation_prompt=True).removeprefix(_text(tokenizer, messages))


def _text(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], **options: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))


def check_target(model: str, tokenizer: PreTrainedTokenizerBase, row: dict[str, Any]) -> None:
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
    where = f"chat_template: that of {model}"
    try:
        text = _text(tokenizer, messages)
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=True)["input_ids"]
        whole = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
    except TemplateError as error:
        raise RecipeError(f"{where} cannot write a training row: {first_line(error)}") from error
    # White space aside: some templates write the line breaks around the reasoning their own way.
    if "".join(messages[-1]["content"].split()) not in "".join(text.split()):
        raise RecipeError(
            f"{where} cuts the assistant's turn short (of reasoning, it keeps only the answer), so SFT would not teach it; set "
            "chat_template to one that writes the turn as it is"
        )
    same = next((index for index, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(whole))
    if same < len(prompt):
        raise RecipeError(
            f"{where} ends a prompt in {tokenizer.decode(prompt[same:])!r}, which is not what stands there, token for token, once an "
            "answer follows, so the model would be trained on other prompts than it is given; end prefill in a line break, or set "
            "chat_template to one that writes both alike"
        )


def turn_end(model: str, tokenizer: PreTrainedTokenizerBase, eos_token: str | None = None) -> str:
    """Return the token that the chat template ends an assistant's turn with, at which a tuned model is to stop.

    Args:
        model: for the message.
        tokenizer: with the chat template.
        eos_token: the recipe's own choice, which must be a token that the template writes after the turn.

    Raises:
        RecipeError: the template ends the turn in no special token, or not in ``eos_token``.
    """
    answer = "forty-two"
    tail = _text(tokenizer, [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]).rpartition(answer)[2].strip()
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
