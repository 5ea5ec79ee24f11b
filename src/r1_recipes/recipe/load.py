"""Turn a recipe file and command-line overrides into typed arguments, or raise an error with a fix.

A key is a field of this package's arguments, of a TRL config such as ``trl.GRPOConfig``, of
``trl.ModelConfig``, or a parameter of a reward. Every value, of the file too, goes through TRL's
parser as the words of a command line: TRL checks types and choices of those alone. The command
line comes last, so it wins.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import re
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import yaml

from r1_recipes.common import gpu
from r1_recipes.common.errors import RecipeError, located, nearest
from r1_recipes.common.files import find_local, find_yaml
from r1_recipes.common.masking import masked
from r1_recipes.common.plugins import look_beside
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.prompts.formats import written_out
from r1_recipes.recipe.rules import check, longest_sequence
from r1_recipes.recipe.types import Recipe, Settings, argument_types, namespace_value
from r1_recipes.rewards import REWARDS, reward_parameters

REWARDED = ("grpo", "generate", "evaluate")  # methods whose recipes have reward_funcs
# TRL and Transformers type these keys as text, and take true and false too.
_TEXT_OR_BOOL = ("scale_rewards", "fsdp", "resume_from_checkpoint")
_PLACES = ("dataset_name", "chat_template", "id")  # in the working directory or beside the recipe
# Texts in which ${x} may be mathematics.
_TEXTS = ("system_prompt", "prompt_template", "prefill", "few_shot", "chat_template", "prompt")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def load_recipe(
    argv: Sequence[str],
    method: str,
    smoke: Callable[[Path, str, Settings], Settings] | None = None,
    world_size: int | None = None,
) -> Recipe:
    """Read a recipe and its overrides, and check every key. No model and no data is loaded.

    Args:
        argv: ``[PATH, "--key", "value", …]``. Overrides win over the file.
        method: The command: ``grpo``, ``sft``, ``distill``, ``reward``, ``generate`` or
            ``evaluate``.
        smoke: Called with path, method and all keys of a recipe with ``smoke: true``. Returns
            overrides that make the recipe small.
        world_size: The number of processes that TRL checks batches for; default: those that run.

    Raises:
        RecipeError: A key or a value is wrong; the message says what to write instead.
    """
    from r1_recipes.extras import foreign

    path, typed = split_command_line(argv, method)
    look_beside(path)
    warnings: list[str] = []
    typed = foreign.translate(typed, "command line", warnings)
    given = foreign.read(read_yaml(path), typed, method, str(path), warnings) | typed
    with located(path):
        given = {key: _complete(key, value, path.parent) for key, value in given.items()}
        parameters = own_parameters(method, given)
        parser = make_parser([*argument_types(method, given), parameters])
        for key in [key for key in given if key not in parser.actions]:
            _leave_out(given, key, method, parser, warnings)
        if smoke is not None and _is_on(given.get("smoke")):
            small = smoke(path, method, given).items()
            given |= {k: None if v == "none" else v for k, v in small if k not in typed}
        if "response_format" in given:
            given["response_format"] = written_out(given["response_format"], path.parent)
        before = follow_machine(method, given, typed, warnings)
        words = [word for key, value in given.items() for word in words_of(parser, key, value)]
        parts = parse(parser, words, given, world_size)
        recipe: Recipe = Recipe(path, method, *parts[:3])
        recipe.warnings, recipe.typed, recipe.adapted = warnings, frozenset(typed), before
        recipe.reward_params = {k: v for k, v in vars(parts[3]).items() if v is not None}
        if models := getattr(recipe.script, "reward_models", None):
            recipe.reward_params["reward_models"] = models
        recipe.settings = {
            key: masked(json.loads(json.dumps(namespace_value(recipe, key), default=str)), key)
            for key in given
            if key != "hub_token"
        }
        check(recipe)
    uses_vllm = namespace_value(recipe, "use_vllm") or before.get("use_vllm")
    if uses_vllm and (length := longest_sequence(recipe)):
        # vLLM would make a KV cache for the model's whole context.
        length = recipe.training.vllm_max_model_length or length
        recipe.training.vllm_max_model_length = recipe.settings["vllm_max_model_length"] = length
    return recipe


def split_command_line(argv: Sequence[str], method: str) -> tuple[Path, Settings]:
    """Return the recipe's path and the typed values by key. A bare switch is true."""
    typed: dict[str, list[str]] = {"config": []}
    values = typed["config"]
    for word in argv:
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            words = typed[key.replace("-", "_")] = [value] if equals else []
            values = typed["config"] if equals else words
        # The recipe may follow a bare switch: `--smoke recipes/x.yaml`.
        elif not values and not typed["config"] and word.endswith((".yaml", ".yml")):
            typed["config"].append(word)
        else:
            values.append(word)
    paths = typed.pop("config")
    if len(paths) != 1:
        found = f"unexpected argument {paths[1]!r}" if paths else "no recipe given"
        raise RecipeError(
            f"{found}. Fix: r1-recipes {method} RECIPE [--key value …]. To list recipes: "
            "r1-recipes recipes"
        )
    return find_yaml(Path(paths[0])), {key: _typed_value(words) for key, words in typed.items()}


def _typed_value(words: list[str]) -> Any:
    """Return a typed value: none is null, [a, b] and {a: b} are read, and no word is true."""
    if len(words) != 1:
        return words or True
    [word] = words
    if word.lower() in ("none", "null"):
        return None
    with contextlib.suppress(yaml.YAMLError):  # torn text is for the parser to refuse, by key
        return yaml.safe_load(word) if word.startswith(("[", "{")) else word
    return word


def _complete(key: str, value: Any, folder: Path) -> Any:
    """Return a value with its ``${NAME}`` from the environment, and with its local files found."""
    if isinstance(value, dict):
        inside = {name: key if key in _TEXTS else str(name) for name in value}
        return {name: _complete(inside[name], part, folder) for name, part in value.items()}
    if isinstance(value, list):
        return [_complete(key, part, folder) for part in value]
    if not isinstance(value, str):
        return value
    for name in () if key in _TEXTS else _VARIABLE.findall(value):
        if name not in os.environ:
            fix = f"export {name}=…"
            raise RecipeError(f"{key}: ${{{name}}} is not set in the environment. Fix: {fix}")
        value = value.replace(f"${{{name}}}", os.environ[name])
    return find_local(value, folder) if value and key in _PLACES and "{" not in value else value


def own_parameters(method: str, given: Settings) -> type:
    """Return a dataclass of the parameters that a recipe's rewards take."""
    names = given.get("reward_funcs") or []
    if isinstance(names, str):  # accuracy,format
        names = given["reward_funcs"] = [name.strip() for name in names.split(",")]
    models, found = given.get("reward_models") or {}, {}
    if method in REWARDED:
        with located("reward_funcs"):
            found = reward_parameters(
                str(name).strip() for name in names if str(name) not in models
            )
    options = [(name, p.type, dataclasses.field(default=None)) for name, p in found.items()]
    kinds = dataclasses.make_dataclass("Parameters", options)
    kinds.__module__ = "typing"  # where annotations that are texts find Optional and Sequence
    return kinds


def make_parser(types: Sequence[type]) -> Any:
    """Return TRL's parser of all keys, with one line for each error.

    Its ``actions`` are argparse's options by key, and its ``kinds`` the types of each.
    """
    from trl import TrlParser  # heavy

    class OneLine(TrlParser):
        def error(self, message: str) -> NoReturn:
            # "argument --max_steps/--max-steps: invalid int value: 'many'"
            raise RecipeError(re.sub(r"argument --(\w+)(/\S+)?: ", r"\1: ", message))

    try:
        parser: Any = OneLine(types, add_help=False, allow_abbrev=False)
    except argparse.ArgumentError as error:
        fix = "rename the parameter"
        raise RecipeError(
            f"reward_funcs: a parameter is a key of the trainer too: {error}. Fix: {fix}"
        ) from error
    parser._negative_number_matcher = re.compile(r"-\.?\d")  # -1e-3 is no option
    parser.actions, parser.kinds = {}, {}
    for key, hint in ((k, h) for part in types for k, h in typing.get_type_hints(part).items()):
        if action := parser._option_string_actions.get(f"--{key}"):
            kinds = {typing.get_origin(kind) or kind for kind in (hint, *typing.get_args(hint))}
            parser.actions[key], parser.kinds[key] = action, kinds
            if dict in kinds or action.type is dict:
                action.type = _mapping_or_text if str in kinds else _mapping
            elif key in _TEXT_OR_BOOL:
                action.type = lambda text: {"true": True, "false": False}.get(text.lower(), text)
    if "num_completions_to_print" in parser.actions:
        parser.set_defaults(num_completions_to_print=0)  # TRL prints all of every step
    return parser


def _mapping(text: str) -> Any:
    """Return a mapping that is written as JSON or YAML. argparse names the key of an error."""
    with contextlib.suppress(yaml.YAMLError):
        value = yaml.safe_load(text)
        if isinstance(value, dict):
            return value
    raise ValueError("not a mapping")


def _mapping_or_text(text: str) -> Any:
    return _mapping(text) if text.lstrip().startswith("{") else text


def _leave_out(given: Settings, key: str, method: str, parser: Any, warnings: list[str]) -> None:
    """Remove a parameter of a reward that the recipe does not list, with a warning.

    Refuse any other key that the method does not have, with what was probably meant.
    """
    from r1_recipes.extras.foreign import SHORT  # lr, batch_size, epochs, …

    if key in reward_parameters(REWARDS):
        del given[key]
        rewards = given.get("reward_funcs")
        warnings.append(f"{key} is ignored: none of reward_funcs {rewards} has this parameter")
        return
    close = [SHORT[key]] if key in SHORT else nearest(key, parser.actions)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    raise RecipeError(
        f"unknown key {key!r} for {method}.{hint} Valid keys: TRL's config, ModelConfig and "
        "docs/keys.md. For keys of other projects, see docs/migration.md."
    )


def words_of(parser: Any, key: str, value: Any) -> list[str]:
    """Return the words that give a key its value on a command line."""
    action, kinds = parser.actions[key], parser.kinds[key]
    nullable = type(None) in kinds or action.default is None
    if value is None and (not nullable or action.default == "none"):
        value = "none"  # a choice of scale_rewards and report_to; others refuse it by name
    # report_to: text or a list of texts
    listed = isinstance(value, list) and list in kinds and action.nargs != "+"
    if value is None or value == [] or listed:
        parser.set_defaults(**{key: value})
        return []
    if value is False and action.choices and "no" in action.choices:
        value = "no"  # YAML reads a bare `no` as false
    items = value if isinstance(value, list) else [value]
    if isinstance(value, list) and action.nargs != "+":
        raise RecipeError(f"{key}: must be one value, got {value!r}")
    texts = [json.dumps(x) if isinstance(x, dict | list) else str(x) for x in items]
    flag = action.option_strings[0]
    # With "=", a value may begin with a minus.
    return [f"{flag}={texts[0]}"] if len(texts) == 1 else [flag, *texts]


def parse(parser: Any, words: list[str], given: Settings, world_size: int | None) -> Any:
    """Return the typed arguments. TRL's own checks run as they are made."""
    from transformers import TrainingArguments

    # Transformers counts the processes that run; preflight asks for those that will.
    counted: Any = contextlib.nullcontext()
    if world_size is not None:
        counted = mock.patch.object(TrainingArguments, "world_size", world_size)
    # The launcher sets this variable to the precision of its config file, and it wins over
    # ``bf16: false``.
    if "ACCELERATE_MIXED_PRECISION" in os.environ and {"bf16", "fp16"} & given.keys():
        on = [key for key in ("bf16", "fp16") if _is_on(given.get(key))]
        os.environ["ACCELERATE_MIXED_PRECISION"] = on[-1] if on else "no"
    try:
        with counted:
            return parser.parse_args_into_dataclasses(words, look_for_args_file=False)
    except (ValueError, TypeError, ImportError) as error:
        keys = ("per_device_train_batch_size", "gradient_accumulation_steps")
        sizes = [f"{key} {given.get(key, parser.get_default(key))}" for key in keys]
        count = world_size or os.environ.get("WORLD_SIZE", 1)
        here = f" Here: {' x '.join(sizes)} x {count} processes" * ("divisible" in str(error))
        raise RecipeError(f"{error}{here}") from error


def _is_on(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes")


def follow_machine(method: str, given: Settings, typed: Settings, warnings: list[str]) -> Settings:
    """Set the keys that a machine without an accelerator needs, except typed keys.

    Return their values from before the change.
    """
    import torch

    use_cpu = _is_on(given.get("use_cpu"))
    if not use_cpu and torch.accelerator.is_available():
        return {}
    if not use_cpu and given.get("backend") != "openai" and (problem := gpu.unusable_gpu()):
        raise RecipeError(f"use_cpu: {problem}")
    if method in ("generate", "evaluate"):
        return {}
    needed = {} if (given.get("vllm_mode") or "colocate") != "colocate" else {"use_vllm": False}
    if not use_cpu:  # with use_cpu: true, the recipe chooses the precision for a CPU
        needed |= {"use_cpu": True, "bf16": False, "fp16": False, "tf32": False}
    # TRL's defaults. A word that is neither true nor false is for the parser to refuse.
    current = {"use_cpu": False, "bf16": not given.get("fp16"), **given}
    before = {
        key: current[key]
        for key, value in needed.items()
        if key not in typed and str(current.get(key)).lower() == str(not value).lower()
    }
    given |= {key: needed[key] for key in before}
    if "fp16" in before:
        given.setdefault("bf16", False)  # if fp16 is off, TRL turns bf16 on
    if before:
        why = "use_cpu is true" if use_cpu else "no accelerator is visible"
        now, asked = (
            ", ".join(f"{key}: {str(values[key]).lower()}" for key in before)
            for values in (given, before)
        )
        warnings.append(
            f"{why}, so the run uses {now} instead of {asked}. Expect it to be hundreds of times "
            "slower than on a GPU. --smoke checks a recipe in seconds"
        )
    return before
