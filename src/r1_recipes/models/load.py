"""Find a recipe's model, load its tokenizer with its chat template and prefill, and check both."""

import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from r1_recipes.common.errors import RecipeError, first_line, unknown_name
from r1_recipes.common.files import shipped
from r1_recipes.common.plugins import NAMES, load
from r1_recipes.prompts import ResponseFormat, get_response_format, served, template_prefill
from r1_recipes.recipe import Recipe
from r1_recipes.recipe.types import namespace_value

# What thins samples in Transformers alone, and comes from the model's generation_config.json where
# nothing is said; switched off.
UNTHINNED = {
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "no_repeat_ngram_size": 0,
}
_PROCESSOR_FILES = (
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)


def recipe_format(recipe: Recipe) -> ResponseFormat:
    """Return the response format with the recipe's system prompt and prefill."""
    script = recipe.script
    return get_response_format(
        script.response_format, system_prompt=script.system_prompt, prefill=script.prefill
    )


def load_tokenizer(recipe: Recipe) -> tuple[Any, ResponseFormat]:
    """Return the tokenizer with the recipe's chat template and prefill, and its response format.

    The prefill becomes part of the generation prompt, so that training, vLLM and a served
    checkpoint start the assistant's turn in the same way. If the template already opens the
    reasoning (DeepSeek's distilled models), that opening counts as the prefill.

    What an earlier run added to the template is removed. chat_template_kwargs become defaults in
    the template's text, since some of TRL's trainers take none.

    Raises:
        RecipeError: The tokenizer cannot be loaded, or its chat template does not fit the format.
    """
    script, model = recipe.script, recipe.model
    model.model_name_or_path = name = model_path(
        model.model_name_or_path, script.hub, model.model_revision
    )
    adapters = Path(name, "adapter_config.json")
    if adapters.is_file() and re.search(
        r'"modules_to_save": \[|"use_dora": true', adapters.read_text(encoding="utf-8")
    ):
        raise RecipeError(
            f"{recipe.path}: model_name_or_path: {name} has adapters with modules_to_save or DoRA, "
            "which Transformers 5.17 reads in part, and only warns. Fix: python -m "
            f"r1_recipes.adapters {name}, then {name}/merged"
        )
    try:
        tokenizer = from_pretrained("AutoTokenizer", recipe)
    # The model is offline, gated, misspelt or not a checkpoint. Transformers' message says which.
    except Exception as error:
        # A run that was stopped has no model yet, only checkpoints.
        checkpoints = Path(name).glob("checkpoint-*")
        newest = max(checkpoints, key=lambda path: path.stat().st_mtime, default="FOLDER")
        raise RecipeError(
            f"{recipe.path}: model_name_or_path: {name!r} cannot be loaded "
            f"({first_line(error)[:-1]}). Fix: --model_name_or_path {newest}, or "
            "embedded:SmolLM2-135M-Instruct; or --hub modelscope"
        ) from error
    template = tokenizer.chat_template
    template = (template.get("default") if isinstance(template, dict) else template) or ""
    fmt, saved = recipe_format(recipe), served.saved_prefill(template)
    told = script.prefill is not None or script.chat_template or fmt.chat_template
    # A benchmark's recipe says nothing of the prefill, and the model is asked as it was trained.
    if not told and template_prefill(saved, fmt):
        fmt = replace(fmt, prefill=saved)
    tokenizer.chat_template = served.own_template(template)
    tokenizer.chat_template = _chat_template(recipe, fmt, tokenizer)
    _repair(tokenizer)
    variables = served.default_variables(namespace_value(recipe, "chat_template_kwargs") or {})
    tokenizer.chat_template = served.with_opening(tokenizer.chat_template, variables)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if not (script.tools or script.environment):
        # That of an agent's checkpoint would make TRL count the prefill as the model's own text.
        tokenizer.response_template = None
    return tokenizer, _opened(recipe, tokenizer, fmt)


def _chat_template(recipe: Recipe, fmt: ResponseFormat, tokenizer: Any) -> str:
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
        adds_bos = tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
        return "{{ bos_token }}" * adds_bos + fmt.chat_template
    if not (text or tokenizer.chat_template):
        raise RecipeError(
            f"{recipe.path}: {recipe.model.model_name_or_path} has no chat template. "
            "Fix: response_format: r1_zero (plain text, for base models), chat_template (ChatML: "
            "docs/migration.md), or an SFT checkpoint"
        )
    return text or tokenizer.chat_template


def _repair(tokenizer: Any) -> None:
    """Let a chat template write system messages and reasoning, if it does not."""
    asked = [{"role": "user", "content": "?"}]
    instructed = [{"role": "system", "content": "!"}, *asked]
    answered = [*asked, {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nso"}]
    if _rendered(tokenizer, asked) and not _rendered(tokenizer, instructed):
        tokenizer.chat_template = served.SYSTEM_BEFORE_USER + tokenizer.chat_template
    if _rendered(tokenizer, answered).count("<think>") > 1:
        tokenizer.chat_template = served.REASONING_IN_FIELD + tokenizer.chat_template


def _rendered(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    """Return the text of messages, or "" if the chat template refuses them."""
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False))
    except TemplateError:
        return ""


def _opened(recipe: Recipe, tokenizer: Any, fmt: ResponseFormat) -> ResponseFormat:
    """Add the prefill to the generation prompt, or take the template's opening as the prefill.

    Return the format with the prefill that completions start with.
    """
    turn = generation_prompt(tokenizer)
    opened = template_prefill(turn, fmt)
    if fmt.prefill and turn.endswith(fmt.prefill):
        return fmt
    if fmt.prefill and opened:
        raise RecipeError(
            f"{recipe.path}: prefill: the chat template of {recipe.model.model_name_or_path} "
            f"already opens the assistant's turn with {opened!r}. Fix: remove prefill"
        )
    if fmt.prefill:
        tokenizer.chat_template = served.with_prefill(tokenizer.chat_template, fmt.prefill)
    return replace(fmt, prefill=opened or fmt.prefill)


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


def train_template(tokenizer: Any) -> None:
    """Replace the model's own template by TRL's template for training.

    Earlier messages stay unchanged in it, and the model's messages are marked.
    """
    from trl.chat_template_utils import get_training_chat_template  # heavy

    written = tokenizer.chat_template
    own = served.own_template(written).removeprefix(served.REASONING_IN_FIELD)
    own = own.removeprefix(served.SYSTEM_BEFORE_USER)
    tokenizer.chat_template = own  # TRL recognises only complete templates
    trained = get_training_chat_template(tokenizer) or own
    # A prefill stands before the line break at the end.
    tokenizer.chat_template = written.replace(own.rstrip("\n"), trained.rstrip("\n"), 1)


def generation_prompt(tokenizer: Any) -> str:
    """Return the text that the chat template adds to open the assistant's turn."""
    messages = [{"role": "user", "content": "?"}]
    opened = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return str(opened).removeprefix(str(tokenizer.apply_chat_template(messages, tokenize=False)))


def check_targets(recipe: Recipe, tokenizer: Any, rows: Any) -> None:
    """Refuse a chat template that does not write a target whole, right after the prompt.

    The templates of DeepSeek's distilled models cut the reasoning out of a complete message, so
    SFT would teach answers without it. Where the loss leaves out the prompt, TRL cuts it off by its
    number of tokens, which must not change when the target follows.

    The parts of a mixture differ, so a sample of rows is checked.
    """
    render = partial(tokenizer.apply_chat_template, return_dict=False)
    masked = recipe.method == "sft" and recipe.training.completion_only_loss is not False
    for row in rows.select(range(0, len(rows), max(1, len(rows) // 16))):
        turns = row["completion" if recipe.method == "sft" else "chosen"]
        target, problem = str(turns[-1]["content"]), ""
        try:
            # Templates differ in the white space around the reasoning.
            text = render(row["prompt"] + turns, tokenize=False)
            prompt = render(row["prompt"], add_generation_prompt=True)
            if "".join(target.split()) not in "".join(text.split()):
                problem = "cuts a part of the target, so training would not see it"
            elif masked and render(row["prompt"] + turns)[: len(prompt)] != prompt:
                problem = "writes other tokens at the end of a prompt when an answer follows"
        except TemplateError as error:
            problem = f"cannot write a training row: {first_line(error)[:-1]}"
        if problem:
            fix = "assistant_only_loss: true (TRL's variant of known templates)"
            if "enable_thinking" in tokenizer.chat_template:
                thinks = str("</think>" in target).lower()
                fix = f"chat_template_kwargs: {{enable_thinking: {thinks}}}"
            raise RecipeError(
                f"chat_template: that of {recipe.model.model_name_or_path} {problem}. Fix: {fix}, "
                "another chat_template, or a prefill that starts as the template starts the turn"
            )


def turn_end(model: str, tokenizer: Any, eos_token: str | None = None) -> str:
    """Return the token that ends an assistant's turn.

    It is the recipe's ``eos_token``, or the first token that the chat template writes after the
    message.
    """
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "forty-two"}]
    text = str(tokenizer.apply_chat_template(turns, tokenize=False))
    tail = text.rpartition("forty-two")[2].strip()
    special = {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}
    end = eos_token or max(filter(tail.startswith, special), key=len, default="")
    if not end:
        raise RecipeError(
            f"chat_template: that of {model} ends the assistant's turn in {tail!r}, which does not "
            f"start with a special token, so the model would not stop there. "
            f"Fix: a chat_template whose turns end in {tokenizer.eos_token!r}"
        )
    return end


def end_tokens(config: Any, tokenizer: Any) -> set[int]:
    """Return the tokens that end a text, by a generation config and by the tokenizer."""
    ends = config.eos_token_id
    return {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}


# Weights


def model_path(
    name: str, hub: str, revision: str | None = None, key: str = "model_name_or_path"
) -> str:
    """Return a model id that Transformers can load.

    It is the name itself, the snapshot that ModelScope downloads, or an embedded model's folder.

    Raises:
        RecipeError: There is no such folder or embedded model; the message names ``key``.
    """
    if name.startswith("embedded:"):
        if name not in NAMES["model"]:
            raise RecipeError(f"{key}: " + unknown_name("embedded model", name, NAMES["model"]))
        return str(load("model", name)())
    path = Path(name)
    if path.exists():
        return name
    # Transformers would look for a missing folder on the hub, for minutes without a network. A hub
    # id has at most one slash, and no user on the hub is called outputs.
    if name.startswith((".", "/", "~")) or len(path.parts) > 2 or path.parts[:1] == ("outputs",):
        raise RecipeError(
            f"{key}: {name}: no such folder (searched from {Path.cwd()}). Fix: a folder with a "
            "model, or a hub id"
        )
    if hub == "modelscope":
        from modelscope import snapshot_download

        # TRL's model_revision defaults to 'main', but ModelScope's default branch is 'master'.
        return snapshot_download(name, revision=None if revision in (None, "main") else revision)
    return name


def auto_class(config: Any) -> Any:
    """Return the auto class that keeps all of a checkpoint, also its vision tower."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText  # heavy

    pictures = (config.architectures or [""])[0].endswith("ForConditionalGeneration")
    return AutoModelForImageTextToText if pictures else AutoModelForCausalLM


def copy_processor(config: Any, folder: Path, source: str) -> None:
    """Copy the processor's files of a model that reads pictures.

    A run on text saves only the tokenizer, and vLLM does not load such a model without the rest.
    """
    from transformers.utils import cached_file  # heavy

    for name in _PROCESSOR_FILES if hasattr(config, "vision_config") else ():
        found = cached_file(
            source,
            name,
            revision=config._commit_hash,  # that of the weights is in the cache
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        if found:
            shutil.copyfile(found, folder / name)  # not its mode, which may be read-only


def repair_generation_config(model: Any) -> None:
    """Make the generation config consistent.

    Transformers refuses to save sampling values with ``do_sample: false``, and would do so after
    the last step.
    """
    config: Any = getattr(model, "generation_config", None)
    try:
        if config is not None:
            config.validate(strict=True)
    except ValueError:
        config.do_sample = True
        config.validate(strict=True)
