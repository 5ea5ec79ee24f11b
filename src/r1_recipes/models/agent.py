"""A recipe's tools and environments, and what a chat template must do for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.recipe import Recipe
from r1_recipes.tasks.environments.guard import Limits
from r1_recipes.tasks.environments.registry import build_environments, build_tools, methods_of


def agent(recipe: Recipe, tokenizer: Any | None) -> tuple[list[Callable], dict[str | None, Callable]]:
    """Return the recipe's tools, and its environments by the value of the column ``environment`` (``None``: one for all rows).

    Without a tokenizer (a server has it), the chat template is not checked.
    """
    script = recipe.script
    limits = Limits(getattr(script, "tool_timeout", 10.0), getattr(script, "tool_output_chars", 2000))
    tools = build_tools(getattr(script, "tools", None) or (), limits)
    environment = getattr(script, "environment", None)
    environments = build_environments(environment, recipe.environment_params, limits) if environment else {}
    methods = [method for make in environments.values() for method in methods_of(make())]
    if tokenizer is not None and (tools or methods):
        _check_template(recipe, tokenizer, [*tools, *methods])
    return tools, environments


def _check_template(recipe: Recipe, tokenizer: Any, tools: list[Callable]) -> None:
    """Refuse tools that cannot be described, and a chat template that cannot write them; make sure that calls can be read back."""
    from transformers.utils import get_json_schema
    from trl.chat_template_utils import add_response_schema, qwen3_template, supports_tool_calling

    for tool in tools:
        try:
            get_json_schema(tool)
        except Exception as error:  # DocstringParsingException, TypeHintParsingException
            raise RecipeError(f"{recipe.path}: tools: {tool.__name__}: {first_line(error)}") from error
    where = f"{recipe.path}: tools: the chat template of {recipe.model.model_name_or_path}"
    if not supports_tool_calling(tokenizer):
        raise RecipeError(f"{where} cannot write tools, calls and their results. Fix: a model whose template can (Qwen3), or chat_template")
    if getattr(tokenizer, "response_template", None) is None and getattr(tokenizer, "response_schema", None) is None:
        try:
            add_response_schema(tokenizer)
        except ValueError as error:
            # TRL knows whole templates; one that was changed (a prefill, a shorter text) writes calls as Qwen's does, or is unknown.
            if "<tool_call>" not in tokenizer.chat_template or "<|im_end|>" not in tokenizer.chat_template:
                raise RecipeError(f"{where} is none whose calls TRL can read. Fix: one of trl/chat_templates as chat_template") from error
            tokenizer.response_template = qwen3_template
