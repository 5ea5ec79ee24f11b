"""A recipe's tools and environments, in the form of TRL, and the chat template that writes calls.

A tool is a typed function. Its docstring describes the tool and each argument. An environment is a
class with ``reset(**row)``, whose text is added to the question. Its public methods are tools, and
``get_reward()`` returns the reward.
"""

import contextlib
import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line, own_code
from r1_recipes.common.plugins import Registry
from r1_recipes.extras.agents.guard import Limits, guarded, guarded_environment
from r1_recipes.models.tokenizer import generation_prompt, train_template
from r1_recipes.recipe import Recipe

TOOLS: Registry[Any] = Registry("tool")
ENVIRONMENTS: Registry[Any] = Registry("environment")
Environments = str | Mapping[str, str] | None  # the recipe's key
Agent = tuple[list[Callable], dict[str | None, type]]

_TEMPLATE = (
    "use a model whose chat template supports tools (Qwen3), or for a small ChatML model "
    "chat_template: recipes/templates/short_tools.jinja"
)


def tools_of(names: Iterable[str]) -> list[Callable]:
    """Return the tools of a recipe, in order."""
    tools = [TOOLS.resolve(name) for name in names]
    for name, tool in zip(names, tools, strict=True):
        if not (inspect.isfunction(tool) and tool.__doc__):
            raise RecipeError(
                f"tools: {name!r}: must be a function with a docstring, which describes "
                f"the tool to the model, got {tool!r}"
            )
    return tools


def environments_of(environment: Environments) -> dict[str | None, type]:
    """Return the classes of the key ``environment`` by the values of the column of that name.

    The key ``None`` means every row.
    """
    pairs = {None: environment} if isinstance(environment, str) else environment or {}
    kinds: dict[str | None, type] = {key: ENVIRONMENTS.resolve(name) for key, name in pairs.items()}
    for kind in kinds.values():
        if not isinstance(kind, type) or not callable(getattr(kind, "reset", None)):
            raise RecipeError(f"environment: must be a class with a method reset, got {kind!r}")
    if len({kind.__name__ for kind in kinds.values()}) < len({*kinds.values()}):
        raise RecipeError(
            f"environment: {', '.join(pairs.values())}: must be classes with different names, "
            "because TRL logs rewards by class name"
        )
    return kinds


def who_scores(environment: Environments) -> list[bool]:
    """Return for each environment whether it scores its episodes, as TRL decides it."""
    kinds = environments_of(environment).values()
    return [inspect.isfunction(getattr(kind, "get_reward", None)) for kind in kinds]


def schemas(tools: Iterable[str], environment: Environments) -> str | None:
    """Return the JSON schemas of tools and methods of environments, or ``None`` without any."""
    from transformers.utils import get_json_schema  # heavy

    functions = tools_of(tools)
    for kind in environments_of(environment).values():
        functions += _methods(kind)
    if not functions:
        return None
    try:
        return json.dumps([get_json_schema(function) for function in functions])
    except Exception as error:  # a docstring or a type cannot be read
        raise RecipeError(
            f"tools, environment: {first_line(error)} Fix: add types and a docstring with Args, "
            f"or start the name with _"
        ) from error


def _methods(kind: type) -> list[Callable]:
    """Return an environment's tools: its public methods except reset and get_reward."""
    with own_code(f"environment {kind.__name__}: __init__", kind, "an __init__ without arguments"):
        made = kind()
    names = [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"]
    return [getattr(made, name) for name in names if name not in ("reset", "get_reward")]


def agent(recipe: Recipe, tokenizer: Any | None) -> Agent:
    """Return the recipe's tools, and its environments by the column ``environment``.

    All are bounded in time and output. The key ``None`` means all rows.

    Args:
        recipe: The recipe.
        tokenizer: ``None`` if a server applies the chat template.

    Raises:
        RecipeError: Two tools have the same name, or the chat template does not support tools.
    """
    script = recipe.script
    limits = Limits(script.tool_timeout, script.tool_output_chars, strict=script.smoke)
    tools, kinds = tools_of(script.tools or ()), environments_of(script.environment)
    for name, tool in zip(script.tools or (), tools, strict=True):
        with own_code(f"tools: {name}", tool):
            getattr(tool, "check_start", bool)()
    methods = {kind: _methods(kind) for kind in kinds.values()}
    for of_kind in methods.values():
        names = [tool.__name__ for tool in (*tools, *of_kind)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise RecipeError(
                f"{recipe.path}: tools, environment: several tools are named "
                f"{', '.join(sorted(twice))}. Fix: rename or remove one"
            )
    if tokenizer is not None and (tools or any(methods.values())):
        _set_response_template(recipe, tokenizer)
    # One bounded class per class, because TRL logs a reward per class.
    bounded = {kind: guarded_environment(kind, limits) for kind in methods}
    return [guarded(tool, limits) for tool in tools], {k: bounded[v] for k, v in kinds.items()}


def _set_response_template(recipe: Recipe, tokenizer: Any) -> None:
    """Set the tokenizer's response template, which reads the calls that its chat template writes.

    TRL 1.16 recognizes whole chat templates alone (chat_template_utils.py, add_response_schema),
    without keyword arguments, a prefill or its own changes for training. So all of its response
    templates are tried on one call.
    """
    from trl import chat_template_utils

    where = f"{recipe.path}: tools: the chat template of {recipe.model.model_name_or_path}"
    if not chat_template_utils.supports_tool_calling(tokenizer):
        raise RecipeError(f"{where} cannot write tools, calls and results. Fix: {_TEMPLATE}")
    call = {"type": "function", "function": {"name": "lookup", "arguments": {"word": "forty-two"}}}
    turns = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
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
            read = chat_template_utils.parse_response(tokenizer, written, prefix=[])
            if read.get("tool_calls") == [call]:
                tokenizer.response_template = _with_reasoning(reader, tokenizer)
                tokenizer.parse_response = functools.partial(_parse, tokenizer.parse_response)
                return
    raise RecipeError(
        f"{where} writes calls that TRL cannot read, or changes earlier messages. "
        f"Fix: chat_template: one of trl/chat_templates"
    )


def _with_reasoning(reader: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """Return a response template whose content has the reasoning too, as without tools.

    A response format reads it there, after the prefill.
    """
    from transformers.utils.chat_parsing.response_templates import load_response_template

    fields = {
        name: field for name, field in reader["fields"].items() if "</think>" not in str(field)
    }
    # The content is the text between and after calls.
    if {"open", "open_pattern"}.isdisjoint(fields["content"]):
        fields["content"] = {**fields["content"], "repeats": True, "join": "\n"}
    anchor = load_response_template(reader).start_anchor_re.pattern
    start = f"{re.escape(generation_prompt(tokenizer))}|{anchor}"
    return {"defaults": reader["defaults"], "fields": fields, "start_anchor_pattern": start}


def _parse(parse: Callable, *args: Any, **kwargs: Any) -> Any:
    """Return a parsed message. Raise ValueError if no template could write its calls again.

    TRL then reads the message as plain text.
    """
    try:
        message = parse(*args, **kwargs)
        json.dumps(message, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return message
