"""Turn a recipe file and command-line overrides into typed arguments, or raise an error with a fix.

A key is a field of this package's arguments, of a TRL config such as ``trl.GRPOConfig``, of
``trl.ModelConfig``, or a parameter of a reward. Every value, of the file too, goes through TRL's
parser as the words of a command line: TRL checks types and choices of those alone. The command
line comes last, so it wins.
"""

import contextlib
import json
import os
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import yaml

from r1_recipes.common.errors import RecipeError, located, nearest
from r1_recipes.common.files import find_yaml, masked, read_yaml, shipped
from r1_recipes.common.plugins import look_beside
from r1_recipes.recipe.rules import check, follow_machine, longest_sequence
from r1_recipes.recipe.types import ON, Recipe, Settings, argument_types
from r1_recipes.rewards import REWARDS, reward_parameters

# TRL and Transformers type these keys as text, and take true and false too.
_TEXT_OR_BOOL = ("scale_rewards", "fsdp")
_PLACES = ("dataset_name", "chat_template", "id")  # in the working directory or beside the recipe
# Texts in which ${x} may be mathematics.
_TEXTS = ("system_prompt", "prompt_template", "prefill", "few_shot", "chat_template", "prompt")
# The types of a reward's parameters that say too little: a list of what, no default, None.
_KINDS = {list: list[str], tuple: list[str], type: str, type(None): str}
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
        parser = make_parser(method, given)
        for key in [key for key in given if key not in parser.actions]:
            if key not in reward_parameters(REWARDS):
                raise RecipeError(_unknown_key(key, method, parser.actions))
            del given[key]
            warnings.append(f"{key} is ignored: none of reward_funcs has this parameter")
        if smoke is not None and str(given.get("smoke")).lower() in ON:
            small = smoke(path, method, given).items()
            given |= {k: None if v == "none" else v for k, v in small if k not in typed}
        engine = given.get("use_vllm")
        follow_machine(method, given, typed, warnings)
        parts = parse(parser, given, world_size)
        script, training, model, rewarded = map(vars, parts)
        recipe = Recipe(path, method, *parts[:3])
        recipe.warnings, recipe.typed = warnings, frozenset(typed)
        recipe.reward_params = {k: v for k, v in rewarded.items() if v is not None}
        if models := script.get("reward_models"):
            recipe.reward_params["reward_models"] = models
        values = rewarded | model | training | script
        recipe.settings = {
            key: masked(json.loads(json.dumps(values[key], default=str)), key)
            for key in given
            if key != "hub_token"
        }
        check(recipe)
    if str(engine).lower() in ON and (length := longest_sequence(recipe)):
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
    values: list[Any] = list(words)
    for place, word in enumerate(words):
        if word.startswith(("[", "{")):
            with contextlib.suppress(yaml.YAMLError):  # torn text is for the parser to refuse
                values[place] = yaml.safe_load(word)
    if len(words) != 1:
        return values or True
    return None if words[0].lower() in ("none", "null") else values[0]


def _complete(key: str, value: Any, folder: Path) -> Any:
    """Return a value with its ``${NAME}`` from the environment, and with its local files found.

    Files here and shipped files come before those in the recipe's folder.
    """
    if isinstance(value, dict):
        return {
            name: _complete(key if key in _TEXTS else str(name), part, folder)
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [_complete(key, part, folder) for part in value]
    if not isinstance(value, str):
        return value
    for name in () if key in _TEXTS else _VARIABLE.findall(value):
        if name not in os.environ:
            raise RecipeError(
                f"{key}: ${{{name}}} is not set in the environment. Fix: export {name}=…"
            )
        value = value.replace(f"${{{name}}}", os.environ[name])
    if key in _PLACES and value and not value.startswith("~") and "{" not in value:
        beside = os.path.join(folder, value)  # an absolute name stays
        if os.path.exists(beside) and not shipped(Path(value)).exists():
            return beside
    return value


def make_parser(method: str, given: Settings) -> Any:
    """Return TRL's parser of all keys, with one line for each error.

    Its ``actions`` are argparse's options by key, and its ``kinds`` the types of each. The last of
    its dataclasses has the parameters that the recipe's rewards take.
    """
    from trl import TrlParser  # heavy

    class OneLine(TrlParser):
        def error(self, message: str) -> NoReturn:
            # "argument --max_steps/--max-steps: invalid int value: 'many'"
            raise RecipeError(re.sub(r"argument --(\w+)(/\S+)?: ", r"\1: ", message))

    names, models = given.get("reward_funcs") or [], given.get("reward_models") or {}
    if isinstance(names, str):  # accuracy,format
        names = given["reward_funcs"] = [name.strip() for name in names.split(",")]
    with located("reward_funcs"):
        found = reward_parameters(str(name) for name in names if str(name) not in models)
    told = {
        n: type(p.default) if p.annotation is p.empty else p.annotation for n, p in found.items()
    }
    options = [(name, _KINDS.get(kind, kind), field(default=None)) for name, kind in told.items()]
    parameters = make_dataclass("Parameters", options)
    parameters.__module__ = "typing"  # where annotations that are texts find Optional and Sequence
    types = (*argument_types(method), parameters)
    parser: Any = OneLine(types, add_help=False, allow_abbrev=False)
    parser._negative_number_matcher = re.compile(r"-\.?\d")  # -1e-3 is no option
    parser.actions, parser.kinds = {}, {}
    for key, hint in ((k, h) for part in types for k, h in typing.get_type_hints(part).items()):
        if action := parser._option_string_actions.get(f"--{key}"):
            kinds = {typing.get_origin(kind) or kind for kind in (hint, *typing.get_args(hint))}
            parser.actions[key], parser.kinds[key] = action, kinds
            if key in _TEXT_OR_BOOL:
                action.type = lambda text: {"true": True, "false": False}.get(text.lower(), text)
    if "num_completions_to_print" in parser.actions:
        parser.set_defaults(num_completions_to_print=0)  # TRL prints all of every step
    return parser


def _unknown_key(key: str, method: str, known: typing.Iterable[str]) -> str:
    from r1_recipes.extras.foreign import SHORT  # lr, batch_size, epochs, …

    close = [SHORT[key]] if key in SHORT else nearest(key, known)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return (
        f"unknown key {key!r} for {method}.{hint} Valid keys: TRL's config, ModelConfig and "
        "docs/keys.md. For keys of other projects, see docs/migration.md."
    )


def parse(parser: Any, given: Settings, world_size: int | None) -> Any:
    """Return the typed arguments. TRL's own checks run as they are made."""
    from transformers import TrainingArguments

    words = [word for key, value in given.items() for word in words_of(parser, key, value)]
    # Transformers counts the processes that run; preflight asks for those that will.
    counted: Any = (
        contextlib.nullcontext()
        if world_size is None
        else mock.patch.object(TrainingArguments, "world_size", world_size)
    )
    try:
        with counted:
            return parser.parse_args_into_dataclasses(words, look_for_args_file=False)
    except (ValueError, TypeError, ImportError) as error:
        keys = ("per_device_train_batch_size", "gradient_accumulation_steps")
        sizes = [f"{key} {given.get(key, parser.get_default(key))}" for key in keys]
        count = world_size or os.environ.get("WORLD_SIZE", 1)
        here = f" Here: {' x '.join(sizes)} x {count} processes" * ("divisible" in str(error))
        raise RecipeError(f"{error}{here}") from error


def words_of(parser: Any, key: str, value: Any) -> list[str]:
    """Return the words that give a key its value on a command line.

    What no word can hold (null, a mapping, an empty list) becomes the key's default instead.
    """
    action, kinds = parser.actions[key], parser.kinds[key]
    nullable = type(None) in kinds or action.default is None
    if value is None and (not nullable or action.default == "none"):
        value = "none"  # a choice of scale_rewards and report_to; others refuse it by name
    if value is False and action.choices and "no" in action.choices:
        value = "no"  # YAML reads a bare `no` as false
    several = action.nargs == "+"
    items = value if isinstance(value, list) else [value]
    mappings = dict in (*kinds, action.type) and all(isinstance(x, dict) for x in items)
    # report_to: text or a list of texts
    listed = isinstance(value, list) and list in kinds and not several
    if value is None or value == [] or mappings or listed:
        parser.set_defaults(**{key: items if several and value is not None else value})
        return []
    if isinstance(value, list) and not several:
        raise RecipeError(f"{key}: must be one value, got {value!r}")
    flag = action.option_strings[0]
    # With "=", a value may begin with a minus.
    return [f"{flag}={items[0]}"] if len(items) == 1 else [flag, *map(str, items)]
