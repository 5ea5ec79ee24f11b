"""A recipe's tools and environments, in the form of TRL, and the chat template that writes calls.

A tool is a typed function. Its docstring describes the tool and each argument. An environment is a
class with ``reset(**row)``, whose text is added to the question. Its public methods are tools, and
``get_reward()`` returns the reward.

Calls are bounded in time and output. What a tool raises becomes an observation for the model: TRL
shows it. It never ends a run or floods a conversation.
"""

import asyncio
import contextlib
import functools
import inspect
import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from r1_recipes.common import processes
from r1_recipes.common.errors import USER_ERRORS, RecipeError, own_code, require
from r1_recipes.common.messages import clip, transcript, without_surrogates
from r1_recipes.common.plugins import Registry
from r1_recipes.models.load import generation_prompt, train_template
from r1_recipes.recipe import Recipe

logger = logging.getLogger(__name__)

TOOLS: Registry[Any] = Registry("tool")
ENVIRONMENTS: Registry[Any] = Registry("environment")
Environments = str | Mapping[str, str] | None  # the recipe's key


def tools_of(names: Iterable[str]) -> list[Callable]:
    """Return the tools of a recipe, in order."""
    return [TOOLS.resolve(name) for name in names]


def environments_of(environment: Environments) -> dict[str | None, type]:
    """Return the classes of the key ``environment`` by the values of the column of that name.

    The key ``None`` means every row.
    """
    pairs = {None: environment} if isinstance(environment, str) else environment or {}
    kinds: dict[str | None, type] = {key: ENVIRONMENTS.resolve(name) for key, name in pairs.items()}
    for kind in kinds.values():
        fits = isinstance(kind, type) and callable(getattr(kind, "reset", None))
        require(fits, "environment", "a class with a method reset", kind)
    return kinds


def schemas(tools: Iterable[str], environment: Environments) -> str | None:
    """Return the JSON schemas of tools and methods of environments, or ``None`` without any."""
    from transformers.utils import get_json_schema  # heavy

    functions = tools_of(tools)
    for kind in environments_of(environment).values():
        functions += _methods(kind())
    with own_code(
        "tools, environment: the schema of a tool",
        "add types and a docstring with Args, or start the name with _",
    ):
        found = [get_json_schema(function) for function in functions]
    return json.dumps(found) if found else None


def _methods(game: Any) -> list[Callable]:
    """Return an environment's tools: its public methods except reset and get_reward."""
    names = [name for name, _ in inspect.getmembers(type(game), inspect.isfunction)]
    other = ("reset", "get_reward")
    return [getattr(game, name) for name in names if name[0] != "_" and name not in other]


def agent(recipe: Recipe, tokenizer: Any | None) -> tuple[list[Callable], dict[str | None, Any]]:
    """Return the recipe's tools, and what makes its environments by the column ``environment``.

    The key ``None`` means all rows. ``tokenizer`` is ``None`` if a server applies the template.

    Raises:
        RecipeError: A tool cannot run here, or the chat template does not support tools.
    """
    script = recipe.script
    tools, kinds = tools_of(script.tools or ()), environments_of(script.environment)
    for tool in tools:
        getattr(tool, "check_start", bool)()
    if tokenizer is not None and (tools or any(_methods(kind()) for kind in kinds.values())):
        _set_response_template(recipe, tokenizer)
    makers = {
        key: functools.partial(guarded_environment, kind, script) for key, kind in kinds.items()
    }
    return [guarded(tool, script) for tool in tools], makers


def guarded(function: Callable, script: Any) -> Callable:
    """Return a tool within ``tool_timeout`` and ``tool_output_chars``, which bound errors, too.

    The thread of an abandoned call continues to run, because Python cannot end it.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return _in_time(script, function, *args, **kwargs)
        except USER_ERRORS as error:
            text = clip(f"{type(error).__name__}: {error}", script.tool_output_chars)
            raise RuntimeError(without_surrogates(text)) from error

    return call


def _in_time(script: Any, work: Callable, *args: Any, **kwargs: Any) -> Any:
    """Return what ``work`` returns, as text that is not too long. Pictures and ``None`` stay."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            result = work(*args, **kwargs)
            future.set_result(asyncio.run(result) if inspect.iscoroutine(result) else result)
        except USER_ERRORS as error:  # a tool's sys.exit() must not end a run
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([future], script.tool_timeout).done:
        raise TimeoutError(f"no result after {script.tool_timeout:g} s")
    result = future.result()
    parts = result if isinstance(result, list) else ()  # TRL's blocks
    if result is None or any(isinstance(one, dict) and one.get("type") == "image" for one in parts):
        return result
    return without_surrogates(clip(str(result), script.tool_output_chars))


def guarded_environment(kind: type, script: Any) -> Any:
    """Return an environment with guarded methods. If ``reset`` fails, its row gets no reward."""
    game: Any = kind()
    for method in _methods(game):
        setattr(game, method.__name__, guarded(method, script))
    own_reset: Any = game.reset
    own_reward: Any = getattr(game, "get_reward", None)

    def reset(**row: Any) -> Any:
        game.reset_failed = False
        try:
            with own_code(
                f"environment {kind.__name__}: reset", "repair it: this row gets no reward"
            ):
                return _in_time(script, own_reset, **row)
        except RecipeError as error:
            if script.smoke:
                raise
            logger.warning("%s", error)
            game.reset_failed = True

    def get_reward() -> Any:
        if game.reset_failed:
            return None
        value = own_reward()
        return asyncio.run(value) if inspect.iscoroutine(value) else value

    game.reset = reset
    if own_reward:
        game.get_reward = get_reward
    return game


def check_turns(recipe: Recipe) -> None:
    """Refuse tools on several processes that generate together.

    Each process asks for further turns until its own completions are done, so their numbers of
    calls differ (TRL 1.16: grpo_trainer.py, ``_tool_call_loop``). Where a call takes all processes,
    they would hang, or train on each other's completions.
    """
    from accelerate.utils import parse_flag_from_env  # heavy

    training, plugin = recipe.training, recipe.training.deepspeed_plugin
    together = parse_flag_from_env("ACCELERATE_USE_FSDP") or (plugin and plugin.zero_stage == 3)
    if training.use_vllm:
        alone = training.vllm_mode == "colocate" and training.vllm_tensor_parallel_size == 1
        together = not alone or (together and training.vllm_enable_sleep_mode)
    if together and processes.world_size() > 1:
        raise RecipeError(
            f"{recipe.path}: tools, environment: processes that generate together would mix up "
            "their completions. Fix: use_vllm: true, vllm_mode: colocate, "
            "vllm_tensor_parallel_size: 1, vllm_enable_sleep_mode: false"
        )


def for_the_table(episodes: Sequence[list[dict[str, Any]]]) -> list[str]:
    """Return each episode as text for people, and make the arguments of its calls text.

    TRL logs the messages, and Parquet writes neither ``{}`` nor ``{"n": 1}`` beside
    ``{"n": "one"}``.
    """
    texts = [transcript(turns) for turns in episodes]
    for message in (message for turns in episodes for message in turns):
        for call in message.get("tool_calls") or ():
            name, arguments = call["function"]["name"], call["function"].get("arguments")
            call["function"] = {"name": str(name), "arguments": json.dumps(arguments)}
    return texts


def _set_response_template(recipe: Recipe, tokenizer: Any) -> None:
    """Set the tokenizer's response template, which reads the calls that its chat template writes.

    TRL 1.16 recognizes whole chat templates alone (chat_template_utils.py, add_response_schema),
    without keyword arguments, a prefill or its own changes for training. So all of its response
    templates are tried on one call.
    """
    from trl import chat_template_utils

    where = f"{recipe.path}: tools: the chat template of {recipe.model.model_name_or_path}"
    if not chat_template_utils.supports_tool_calling(tokenizer):
        raise RecipeError(
            f"{where} cannot write tools, calls and results. Fix: a model whose chat template does "
            "(Qwen3), or for a small ChatML model "
            "chat_template: recipes/templates/short_tools.jinja"
        )
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
    message = parse(*args, **kwargs)
    json.dumps(message, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    return message
