"""Turn a recipe file and command-line overrides into typed arguments, or raise an error with a fix.

A key is a field of this package's arguments, of a TRL config such as ``trl.GRPOConfig``, of
``trl.ModelConfig``, or a parameter of a reward. Every value, of the file too, goes through TRL's
parser as the words of a command line: TRL checks types and choices of those alone. The command
line comes last, so it wins.
"""

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
from r1_recipes.prompts.catalogue import written_out
from r1_recipes.recipe.rules import check, environment_fields, longest_sequence
from r1_recipes.recipe.types import Recipe, Settings, argument_types, namespace_value
from r1_recipes.rewards import REWARDS, reward_parameters

REWARDED = ("grpo", "generate", "evaluate")  # methods whose recipes have reward_funcs
# TRL and Transformers type these keys as text, and take true and false too.
_TEXT_OR_BOOL = ("scale_rewards", "fsdp", "resume_from_checkpoint")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def load_recipe(
    argv: Sequence[str],
    method: str,
    check_first: Callable[[Path, Settings], None] | None = None,
    smoke: Callable[[Path, str, Settings], Settings] | None = None,
    world_size: int | None = None,
) -> Recipe:
    """Read a recipe and its overrides, and check every key. No model and no data is loaded.

    Args:
        argv: ``[PATH, "--key", "value", …]``. Overrides win over the file.
        method: The command: ``grpo``, ``sft``, ``distill``, ``reward``, ``generate`` or
            ``evaluate``.
        check_first: Called with the path and all keys, before TRL and your own code are imported.
        smoke: Called with path, method and all keys of a recipe with ``smoke: true``. Returns
            overrides that make the recipe small.
        world_size: The number of processes that TRL checks batches for; default: those that run.

    Raises:
        RecipeError: A key or a value is wrong; the message says what to write instead.
    """
    path, typed = split_command_line(argv, method)
    look_beside(path)
    written = read_yaml(path)
    if "stages" in written:
        raise RecipeError(
            f"{path}: is a pipeline, not a recipe for {method}. Fix: python -m "
            f"r1_recipes.pipeline {path}"
        )
    masked([written, typed])  # from here on no message shows their secrets
    from r1_recipes.extras import foreign

    warnings: list[str] = []
    typed = foreign.translate(typed, "command line", warnings)
    written = foreign.read(written, typed, method, str(path), warnings)
    with located(path):
        given = {key: _complete(key, value, path.parent) for key, value in written.items()}
        given |= {key: _complete(key, value, path.parent) for key, value in typed.items()}
        rewards = _rewards(method, given)
        if check_first is not None:
            check_first(path, given)
        parser = Parser([*argument_types(method, given), own_parameters(method, given, rewards)])
        for key in given:
            if key not in parser.actions:
                raise _unknown_key(key, method, parser)
        if smoke is not None and _is_on(given.get("smoke")):
            shrunk = {key: _typed_value(value) for key, value in smoke(path, method, given).items()}
            given |= {key: value for key, value in shrunk.items() if key not in typed}
        if "response_format" in given:
            given["response_format"] = written_out(given["response_format"], path.parent)
        before = follow_machine(method, given, typed, warnings)
        words = [word for key, value in given.items() for word in parser.words(key, value)]
        _follow_precision(given)
        parts = parser.parse(words, given, world_size)
    script, training, model, parameters = parts
    recipe: Recipe = Recipe(path, method, script, training, model, warnings=warnings)
    recipe.typed, recipe.adapted = frozenset(typed), before
    _place_parameters(recipe, vars(parameters), rewards)
    recipe.settings = {
        key: masked(json.loads(json.dumps(namespace_value(recipe, key), default=str)), key)
        for key in given
        if key != "hub_token"
    }
    with located(path):
        check(recipe)
    _bound_engine(recipe, given, before)
    return recipe


class Parser:
    """TRL's parser of all keys, with one line for each error."""

    def __init__(self, types: Sequence[type]) -> None:
        from trl import TrlParser  # heavy

        class OneLine(TrlParser):
            def error(self, message: str) -> NoReturn:
                # "argument --max_steps/--max-steps: invalid int value: 'many'"
                raise RecipeError(re.sub(r"argument --(\w+)(/\S+)?: ", r"\1: ", message))

        self._parser = OneLine(types, add_help=False, allow_abbrev=False)
        self._parser._negative_number_matcher = re.compile(r"-\.?\d")  # -1e-3 is no option
        self.actions: dict[str, Any] = {}
        self._kinds: dict[str, set[Any]] = {}
        for key, hint in ((k, h) for t in types for k, h in typing.get_type_hints(t).items()):
            if action := self._parser._option_string_actions.get(f"--{key}"):
                kinds = {typing.get_origin(kind) or kind for kind in (hint, *typing.get_args(hint))}
                self.actions[key], self._kinds[key] = action, kinds
                self._mend(key, action, kinds)
        if "num_completions_to_print" in self.actions:
            self._parser.set_defaults(num_completions_to_print=0)  # TRL prints all of every step

    def _mend(self, key: str, action: Any, kinds: set[Any]) -> None:
        """Let keys that take mappings, or text and true or false, have them as words."""
        if dict in kinds or action.type is dict:
            action.type = mapping_or_text if str in kinds else mapping
        elif key in _TEXT_OR_BOOL:
            action.type = lambda text: {"true": True, "false": False}.get(text.lower(), text)

    def words(self, key: str, value: Any) -> list[str]:
        """Return the words that give a key its value on a command line."""
        action, kinds = self.actions[key], self._kinds[key]
        nullable = type(None) in kinds or action.default is None
        if value is None and (not nullable or action.default == "none"):
            value = "none"  # a choice of scale_rewards and report_to; others refuse it by name
        # report_to: text or a list of texts
        listed = isinstance(value, list) and list in kinds and action.nargs != "+"
        if value is None or value == [] or listed:
            self._parser.set_defaults(**{key: value})
            return []
        if value is False and action.choices and "no" in action.choices:
            value = "no"  # YAML reads a bare `no` as false
        items = value if isinstance(value, list) else [value]
        if isinstance(value, list) and action.nargs != "+":
            raise RecipeError(f"{key}: must be one value, got {value!r}")
        if isinstance(value, str) and action.nargs == "+" and action.type is not mapping:
            items = [part.strip() for part in value.split(",")]  # --reward_funcs accuracy,format
        texts = [json.dumps(x) if isinstance(x, dict | list) else str(x) for x in items]
        flag = action.option_strings[0]
        # With "=", a value may begin with a minus.
        return [f"{flag}={texts[0]}"] if len(texts) == 1 else [flag, *texts]

    def parse(self, words: list[str], given: Settings, world_size: int | None) -> tuple[Any, ...]:
        """Return the typed arguments. TRL's own checks run as they are made."""
        from transformers import TrainingArguments

        # Transformers counts the processes that run; preflight asks for those that will.
        counted: Any = contextlib.nullcontext()
        if world_size is not None:
            counted = mock.patch.object(TrainingArguments, "world_size", world_size)
        try:
            with counted:
                return self._parser.parse_args_into_dataclasses(words, look_for_args_file=False)
        except (ValueError, TypeError, ImportError) as error:
            if "divisible" not in str(error):
                raise RecipeError(str(error)) from error
            keys = ("per_device_train_batch_size", "gradient_accumulation_steps")
            sizes = [f"{key} {given.get(key, self.actions[key].default)}" for key in keys]
            count = world_size or os.environ.get("WORLD_SIZE", 1)
            raise RecipeError(f"{error} Here: {' x '.join(sizes)} x {count} processes") from error


def mapping(text: str) -> Any:
    """Return a mapping that is written as JSON or YAML. argparse names the key of an error."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    if not isinstance(value, dict):
        raise ValueError("not a mapping")
    return value


def mapping_or_text(text: str) -> Any:
    """Return a mapping, or text that does not look like one, such as a file's name."""
    return mapping(text) if text.lstrip().startswith("{") else text


def _is_on(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes")


def split_command_line(argv: Sequence[str], method: str) -> tuple[Path, Settings]:
    """Return the recipe's path and the typed values by key. A bare switch is true."""
    typed: dict[str, list[str]] = {}
    paths: list[str] = []
    values = paths
    for word in argv:
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            values = typed[key.replace("-", "_")] = [value] if equals else []
            if equals:
                values = paths
        # After a bare switch, a file's name is the recipe: `--smoke recipes/x.yaml`.
        elif not values and not paths and word.endswith((".yaml", ".yml")):
            paths.append(word)
            values = paths
        else:
            values.append(word)
    paths = typed.pop("config", []) + paths
    if not paths:
        raise RecipeError(
            f"no recipe given. Usage: r1-recipes {method} RECIPE [--key value …]. To list recipes: "
            f"r1-recipes recipes"
        )
    if len(paths) > 1:
        raise RecipeError(
            f"unexpected argument {paths[1]!r}. A run takes one recipe; write overrides as --key "
            "value"
        )
    return find_yaml(Path(paths[0])), {k: _typed_value(words) for k, words in typed.items()}


def _typed_value(words: Any) -> Any:
    """Return a typed value: none is null, [a, b] and {a: b} are read, and no word is true."""
    if isinstance(words, list) and len(words) != 1:
        return [word.rstrip(",") for word in words] or True  # accuracy, format
    word = words[0] if isinstance(words, list) else words
    if not isinstance(word, str):
        return word
    if word.lower() in ("none", "null"):
        return None
    with contextlib.suppress(yaml.YAMLError):  # torn text is for the parser to refuse, by key
        return yaml.safe_load(word) if word.startswith(("[", "{")) else word
    return word


def _complete(key: str, value: Any, folder: Path) -> Any:
    """Return a value with its ``${NAME}`` from the environment, and with its local files found."""
    if isinstance(value, dict):
        return {name: _complete(name, part, folder) for name, part in value.items()}
    if isinstance(value, list):
        return [_complete(key, part, folder) for part in value]
    if not isinstance(value, str) or (key == "chat_template" and "{%" in value):
        return value
    for name in _VARIABLE.findall(value):
        if name not in os.environ:
            raise RecipeError(
                f"{key}: ${{{name}}} is not set in the environment. Fix: export {name}=…"
            )
    value = _VARIABLE.sub(lambda match: os.environ[match[1]], value)
    # A place is in the working directory or beside the recipe.
    is_place = key in ("dataset_name", "chat_template", "id") and value and "{" not in value
    return find_local(value, folder) if is_place else value


def _rewards(method: str, given: Settings) -> list[str]:
    """Return the names of rewards, each known by now or of one's own."""
    names = given.get("reward_funcs") or []
    if method not in REWARDED:
        return []
    names = names if isinstance(names, list) else str(names).split(",")
    names = [str(name).strip() for name in names]
    with located("reward_funcs"):  # a misspelt name is refused before torch is imported
        reward_parameters(
            name
            for name in names
            if ":" not in name and name not in (given.get("reward_models") or {})
        )
    return names


def own_parameters(method: str, given: Settings, rewards: Sequence[str]) -> type:
    """Return a dataclass of the parameters of rewards and of the recipe's environment.

    Those of rewards that the recipe does not list are keys, too, and are ignored with a warning.
    """
    own = [name for name in rewards if ":" in name]
    with located("reward_funcs"):
        fields = reward_parameters([*REWARDS, *own])
    if method in REWARDED:
        fields |= environment_fields(given.get("environment"))
    taken = {f.name for part in argument_types(method, given) for f in dataclasses.fields(part)}
    for name in taken & reward_parameters(own).keys():
        raise RecipeError(
            f"reward_funcs: parameter {name!r} of a reward is a key of the trainer too. "
            "Fix: rename the parameter"
        )
    parameters = [
        (name, _type_of(f) | None, dataclasses.field(default=None))
        for name, f in fields.items()
        if name not in taken
    ]
    return dataclasses.make_dataclass("Parameters", parameters)


def _type_of(f: dataclasses.Field) -> Any:
    # With `from __future__ import annotations` the type is text. Rewards take scalars, and lists of
    # scalars.
    annotation = str(f.type)
    scalar = re.search(r"\b(bool|int|float|str)\b", annotation)
    item: Any = {"bool": bool, "int": int, "float": float}.get(scalar[1] if scalar else "", str)
    return list[item] if re.search(r"\b([Ll]ist|tuple|Sequence)\[", annotation) else item


def _unknown_key(key: str, method: str, parser: Parser) -> RecipeError:
    """Return the error for a key that the method does not have, with what was probably meant."""
    from r1_recipes.extras.foreign import SHORT  # lr, batch_size, epochs, …

    close = [SHORT[key]] if key in SHORT else nearest(key, parser.actions)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return RecipeError(
        f"unknown key {key!r} for {method}.{hint} Valid keys: TRL's config, ModelConfig and "
        "docs/keys.md. For keys of other projects, see docs/migration.md."
    )


def follow_machine(method: str, given: Settings, typed: Settings, warnings: list[str]) -> Settings:
    """Set the keys that a machine without an accelerator needs, except typed keys.

    Return their values from before the change.
    """
    import torch

    use_cpu = _is_on(given.get("use_cpu"))
    trains = method in ("grpo", "sft", "distill", "reward")
    if not use_cpu and torch.accelerator.is_available():
        return {}
    if not use_cpu and given.get("backend") != "openai" and (problem := gpu.unusable_gpu()):
        raise RecipeError(f"use_cpu: {problem}")
    if not trains:
        return {}
    # TRL's defaults
    current = {"use_cpu": False, "bf16": not given.get("fp16"), "vllm_mode": "colocate"}
    current |= {key: value for key, value in given.items() if value is not None}
    needed: Settings = {"use_vllm": False} if current["vllm_mode"] == "colocate" else {}
    if not use_cpu:  # with use_cpu: true, the recipe chooses the precision for a CPU
        needed |= {"use_cpu": True, "bf16": False, "fp16": False, "tf32": False}
    changes = {
        key: value
        for key, value in needed.items()
        # A word that is neither true nor false is for the parser to refuse.
        if key not in typed and str(current.get(key)).lower() == str(not value).lower()
    }
    if not changes:
        return {}
    before = {key: current[key] for key in changes}
    why = "use_cpu is true" if use_cpu else "no accelerator is visible"
    warnings.append(
        f"{why}, so the run uses {_one_line(changes)} instead of {_one_line(before)}. Expect it to "
        "be hundreds of times slower than on a GPU. --smoke checks a recipe in seconds"
    )
    given |= changes
    if "fp16" in changes:
        given.setdefault("bf16", False)  # if fp16 is off, TRL turns bf16 on
    return before


def _one_line(values: Settings) -> str:
    return ", ".join(f"{key}: {str(value).lower()}" for key, value in values.items())


def _follow_precision(given: Settings) -> None:
    """Let the recipe decide over the precision of Accelerate's config file.

    The launcher sets this variable to the file's precision, and it wins over ``bf16: false``.
    """
    if "ACCELERATE_MIXED_PRECISION" in os.environ and {"bf16", "fp16"} & given.keys():
        on = [key for key in ("bf16", "fp16") if _is_on(given.get(key))]
        os.environ["ACCELERATE_MIXED_PRECISION"] = on[-1] if on else "no"


def _place_parameters(recipe: Recipe, parameters: Settings, rewards: Sequence[str]) -> None:
    """Sort the parameters by who takes them. Warn of those that nothing takes."""
    script = recipe.script
    models = getattr(script, "reward_models", None) or {}
    of_rewards = reward_parameters(name for name in rewards if name not in models)
    of_environment = environment_fields(script.environment)
    for key, value in parameters.items():
        if value is None:
            continue
        if key in of_rewards:
            recipe.reward_params[key] = value
        if key in of_environment:
            recipe.environment_params[key] = value
        elif key not in of_rewards:
            recipe.warnings.append(
                f"{key} is ignored, because none of reward_funcs {rewards} has this parameter"
            )
    if models:
        recipe.reward_params["reward_models"] = models


def _bound_engine(recipe: Recipe, given: Settings, before: Settings) -> None:
    """Set ``vllm_max_model_length``: vLLM would make a KV cache for the model's whole context."""
    uses_vllm = _is_on(given.get("use_vllm")) or before.get("use_vllm")
    if not uses_vllm or recipe.training.vllm_max_model_length:
        return
    length = longest_sequence(recipe)
    if length is not None:
        recipe.training.vllm_max_model_length = recipe.settings["vllm_max_model_length"] = length
    elif recipe.training.use_vllm and namespace_value(recipe, "distill_with") != "gold":
        recipe.warnings.append(
            "vllm_max_model_length: not set, and max_prompt_tokens does not limit the prompts, so "
            "vLLM reserves memory for the model's whole context"
        )
