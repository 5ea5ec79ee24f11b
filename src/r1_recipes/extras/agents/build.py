"""A recipe's tools and environments, and what a chat template must do for them."""

import contextlib
import functools
import json
import re
from collections.abc import Callable
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.extras.agents.episodes import EpisodeBackend  # noqa: F401
from r1_recipes.extras.agents.guard import Limits
from r1_recipes.extras.agents.registry import (  # noqa: F401 (what the core uses)
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

_TEMPLATE = (
    "a model whose template can (Qwen3), or for a small ChatML model chat_template: "
    "recipes/templates/short_tools.jinja"
)


def agent(
    recipe: Recipe, tokenizer: Any | None, strict: bool = False
) -> tuple[list[Callable], dict[str | None, Callable]]:
    """Return the recipe's tools, and its environments by the column of that name (``None``: for all
    rows); a server has the template.

    ``strict``: a reset or get_reward that fails is an error, as in a smoke run.
    """
    script = recipe.script
    limits = Limits(script.tool_timeout, script.tool_output_chars, strict=strict or script.smoke)
    tools = build_tools(script.tools or (), limits)
    environments = build_environments(script.environment or {}, recipe.environment_params, limits)
    methods = []
    for make in environments.values() or [lambda: None]:
        methods += (own := methods_of(make()))
        names = [tool.__name__ for tool in (*tools, *own)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise RecipeError(
                f"{recipe.path}: tools, environment: two are named "
                f"{', '.join(sorted(twice))}. Fix: leave one out"
            )
    if tokenizer is not None and (tools or methods):
        _check_template(recipe, tokenizer, [*tools, *methods])
    return tools, environments


def _check_template(recipe: Recipe, tokenizer: Any, tools: list[Callable]) -> None:
    """Refuse tools that cannot be described, and a chat template that cannot write them; make sure
    that calls can be read back.
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
        raise RecipeError(f"{where} cannot write tools, calls and their results. Fix: {_TEMPLATE}")
    call = {"type": "function", "function": {"name": "lookup", "arguments": {"word": "forty-two"}}}
    turns = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    # TRL goes by whole chat templates, and knows none with kwargs, a prefill, or its own changes
    # for training.
    known = [
        value
        for name, value in vars(chat_template_utils).items()
        if name.endswith("_template") and isinstance(value, dict)
    ]
    with contextlib.suppress(
        TypeError, ValueError
    ):  # it writes no mappings; it is none that TRL knows how to change
        if not chat_template_utils.is_chat_template_prefix_preserving(tokenizer):
            train_template(tokenizer)
        written = tokenizer.apply_chat_template(turns, return_dict=False)
        for reader in filter(None, [getattr(tokenizer, "response_template", None), *known]):
            tokenizer.response_template = reader
            if chat_template_utils.parse_response(tokenizer, written, prefix=[]).get(
                "tool_calls"
            ) == [call]:
                # A turn's text is what the model wrote, its thoughts too, as without tools: a
                # format reads it after the prefill.
                fields = {
                    name: field
                    for name, field in reader["fields"].items()
                    if "</think>" not in str(field)
                }
                if (
                    "open" not in fields["content"] and "open_pattern" not in fields["content"]
                ):  # what stands between and after calls
                    fields["content"] = {**fields["content"], "repeats": True, "join": "\n"}
                anchor = load_response_template(reader).start_anchor_re.pattern
                begins = f"{re.escape(generation_prompt(tokenizer))}|{anchor}"
                tokenizer.response_template = {
                    "defaults": reader["defaults"],
                    "fields": fields,
                    "start_anchor_pattern": begins,
                }
                tokenizer.parse_response = functools.partial(_read, tokenizer.parse_response)
                return
    raise RecipeError(
        f"{where} has calls that TRL cannot read, or changes earlier turns. Fix: "
        f"chat_template: one of trl/chat_templates"
    )


def _read(parse: Callable, *args: Any, **kwargs: Any) -> Any:
    """A turn's message; a ValueError, which TRL takes for plain text, if it has calls that no
    template can write again.
    """
    try:
        message = parse(*args, **kwargs)
        json.dumps(message, ensure_ascii=False).encode()  # a UnicodeEncodeError is a ValueError
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return message
