"""Build a recipe's tools and environments, and check that the chat template supports them."""

import contextlib
import functools
import json
import re
from collections.abc import Callable
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.extras.agents.guard import Limits
from r1_recipes.extras.agents.registry import (  # noqa: F401 (used by the core)
    all_score,
    build_environments,
    build_tools,
    environment_kinds,
    environment_parameters,
    methods_of,
    schemas,
    without_reward,
)
from r1_recipes.models.tokenizer import generation_prompt, train_template
from r1_recipes.recipe import Recipe

# Tools, and a factory of each environment by its name in the column ``environment``; ``None``
# stands for all rows.
Agent = tuple[list[Callable], dict[str | None, Callable]]
_TEMPLATE = (
    "use a model whose chat template supports tools (Qwen3), or for a small ChatML model "
    "chat_template: recipes/templates/short_tools.jinja"
)


def agent(recipe: Recipe, tokenizer: Any | None, strict: bool = False) -> Agent:
    """Return the recipe's tools, and its environments by the column ``environment``.

    Args:
        recipe: The recipe.
        tokenizer: ``None`` if a server applies the chat template.
        strict: Raise if reset or get_reward fails, as in a smoke run.

    Returns:
        The tools, and a factory of each environment. The key ``None`` means all rows.

    Raises:
        RecipeError: Two tools have the same name, or the chat template does not support tools.
    """
    script = recipe.script
    limits = Limits(script.tool_timeout, script.tool_output_chars, strict=strict or script.smoke)
    tools = build_tools(script.tools or (), limits)
    environments = build_environments(script.environment or {}, recipe.environment_params, limits)
    methods = []
    for make in environments.values() or [lambda: None]:
        methods += (environment_tools := methods_of(make()))
        names = [tool.__name__ for tool in (*tools, *environment_tools)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise RecipeError(
                f"{recipe.path}: tools, environment: several tools are named "
                f"{', '.join(sorted(twice))}. Fix: rename or remove one"
            )
    if tokenizer is not None and (tools or methods):
        _check_template(recipe, tokenizer, [*tools, *methods])
    return tools, environments


def _check_template(recipe: Recipe, tokenizer: Any, tools: list[Callable]) -> None:
    """Raise if a tool has no JSON schema, or if the chat template cannot write and read tool calls.

    Set the tokenizer's response template, which reads the calls.
    """
    from transformers.utils import get_json_schema
    from transformers.utils.chat_parsing.response_templates import load_response_template
    from trl import chat_template_utils

    for tool in tools:
        try:
            get_json_schema(tool)
        except Exception as error:  # DocstringParsingException, TypeHintParsingException
            raise RecipeError(
                f"{recipe.path}: tools: {tool.__name__}: {first_line(error)}"
            ) from error
    where = f"{recipe.path}: tools: the chat template of {recipe.model.model_name_or_path}"
    if not chat_template_utils.supports_tool_calling(tokenizer):
        raise RecipeError(f"{where} cannot write tools, calls and results. Fix: {_TEMPLATE}")
    call = {"type": "function", "function": {"name": "lookup", "arguments": {"word": "forty-two"}}}
    turns = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    # TRL recognizes only whole chat templates, without kwargs, a prefill or its own changes for
    # training. So try all of its response templates.
    known = [
        value
        for name, value in vars(chat_template_utils).items()
        if name.endswith("_template") and isinstance(value, dict)
    ]
    # The template cannot write mappings, or TRL cannot change it for training.
    with contextlib.suppress(TypeError, ValueError):
        if not chat_template_utils.is_chat_template_prefix_preserving(tokenizer):
            train_template(tokenizer)
        written = tokenizer.apply_chat_template(turns, return_dict=False)
        for reader in filter(None, [getattr(tokenizer, "response_template", None), *known]):
            tokenizer.response_template = reader
            if chat_template_utils.parse_response(tokenizer, written, prefix=[]).get(
                "tool_calls"
            ) == [call]:
                # As without tools, the content of a message includes its reasoning, which a format
                # reads after the prefill.
                fields = {
                    name: field
                    for name, field in reader["fields"].items()
                    if "</think>" not in str(field)
                }
                # The content is the text between and after calls.
                if "open" not in fields["content"] and "open_pattern" not in fields["content"]:
                    fields["content"] = {**fields["content"], "repeats": True, "join": "\n"}
                anchor = load_response_template(reader).start_anchor_re.pattern
                start_pattern = f"{re.escape(generation_prompt(tokenizer))}|{anchor}"
                tokenizer.response_template = {
                    "defaults": reader["defaults"],
                    "fields": fields,
                    "start_anchor_pattern": start_pattern,
                }
                tokenizer.parse_response = functools.partial(_parse, tokenizer.parse_response)
                return
    raise RecipeError(
        f"{where} writes calls that TRL cannot read, or changes earlier messages. "
        f"Fix: chat_template: one of trl/chat_templates"
    )


def _parse(parse: Callable, *args: Any, **kwargs: Any) -> Any:
    """Return a parsed message. Raise ValueError if no template could write its calls again.

    TRL then reads the message as plain text.
    """
    try:
        message = parse(*args, **kwargs)
        json.dumps(message, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError.
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return message
