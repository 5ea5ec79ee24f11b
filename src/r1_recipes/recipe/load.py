"""Turn a recipe file and command-line overrides into typed arguments, or raise an error with a fix.

A key is a field of this package's arguments, of a TRL config such as ``trl.GRPOConfig``, of
``trl.ModelConfig``, or a parameter of a reward that the recipe lists.
"""

import contextlib
import dataclasses
import os
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any
from unittest import mock

from r1_recipes.common import gpu, processes
from r1_recipes.common.errors import RecipeError, located
from r1_recipes.common.files import find_local, find_yaml
from r1_recipes.common.masking import masked
from r1_recipes.common.plugins import look_beside
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.prompts.catalogue import written_out
from r1_recipes.recipe import checks
from r1_recipes.recipe.engine import longest_sequence
from r1_recipes.recipe.types import (
    OWN_TYPES,
    Recipe,
    Settings,
    argument_types,
    namespace_value,
)
from r1_recipes.recipe.values import (
    COMMAND_LINE,
    convert,
    keys_of,
    split_list,
    to_builtin,
    unknown_key,
)
from r1_recipes.rewards import REWARDS, reward_parameters

Fields = dict[str, dataclasses.Field]
Known = dict[str, tuple[Any, Any]]  # key -> its argparse action and its type hint


def load_recipe(
    argv: Sequence[str],
    method: str,
    check: Callable[[Path, Settings], None] | None = None,
    smoke: Callable[[Path, str, Settings], Settings] | None = None,
    world_size: int | None = None,
) -> Recipe:
    """Read a recipe and its overrides, and check every key. No model and no data is loaded.

    Args:
        argv: ``[PATH, "--key", "value", …]``. Overrides win over the file.
        method: The command: ``grpo``, ``sft``, ``distill``, ``reward``, ``generate`` or
            ``evaluate``.
        check: Called with the path and all keys, before TRL and your own code are imported.
        smoke: Called with path, method and all keys of a recipe with ``smoke: true``. Returns
            overrides that make the recipe small.
        world_size: The number of processes that batches are checked for, here and by TRL.

    Raises:
        RecipeError: A key or a value is wrong; the message says what to write instead.
    """
    path, overrides = _split_command_line(argv, method)
    recipe: Recipe = Recipe(path=path, method=method, script=None, training=None, model=None)
    config = _read(path, method)
    masked([config, overrides])  # from here on no message shows their secrets
    config, overrides = _translate(recipe, config, overrides)
    all_settings = config | overrides
    rewards = _reward_names(method, all_settings)
    with located(f"{path}: reward_funcs"):  # refuse a misspelt name before torch is imported
        reward_parameters(name for name in rewards if ":" not in name)
    if check is not None:
        check(path, all_settings)
    with located(f"{path}: reward_funcs"):
        reward_fields = reward_parameters(rewards)
    with located(path):
        environment_fields = _environment_fields(method, all_settings.get("environment"))
    parser, known = _parser(
        argument_types(method, all_settings),
        reward_fields | environment_fields,
        path,
    )
    settings = _convert(config, str(path), known, method) | _convert(
        overrides, COMMAND_LINE, known, method
    )
    if smoke is not None and settings.get("smoke"):
        # Typed keys win, so that a key of a smoke run can still be changed.
        shrunk = _convert(smoke(path, method, settings), COMMAND_LINE, known, method)
        settings |= {key: value for key, value in shrunk.items() if key not in recipe.typed}
    _adapt(recipe, settings, parser)
    if method == "grpo":
        checks.check_batch(path, parser.get_default, world_size or processes.world_size())
    with _counting(world_size):
        _build(recipe, settings, parser, reward_fields, environment_fields)
        checks.check(recipe)
    return recipe


def _counting(world_size: int | None) -> contextlib.AbstractContextManager[Any]:
    """Let Transformers count so many processes, which are not running yet."""
    if world_size is None:
        return contextlib.nullcontext()
    from transformers import TrainingArguments

    return mock.patch.object(TrainingArguments, "world_size", world_size)


def _read(path: Path, method: str) -> Settings:
    look_beside(path)
    config = read_yaml(path)
    if "stages" in config:
        raise RecipeError(
            f"{path}: is a pipeline, not a recipe for {method}. Fix: python -m "
            f"r1_recipes.pipeline {path}"
        )
    return config


def _translate(recipe: Recipe, config: Settings, overrides: Settings) -> tuple[Settings, Settings]:
    """Return the file's keys and the typed keys, with today's names and complete paths."""
    source = str(recipe.path)
    if "reward_funcs" in overrides:  # the names are needed before other values are converted
        overrides["reward_funcs"] = split_list("reward_funcs", overrides["reward_funcs"])
    from r1_recipes.extras import foreign

    overrides = foreign.translate(overrides, COMMAND_LINE, recipe.warnings)
    config = foreign.read(config, overrides, recipe.method, source, recipe.warnings)
    for values in (config, overrides):
        _find_files(values, recipe.path.parent)
    recipe.typed = frozenset(overrides)
    return config, overrides


def _environment_fields(method: str, environment: Any) -> Fields:
    if method not in checks.REWARDED or not isinstance(environment, str | dict) or not environment:
        return {}  # another type is refused with the other keys
    from r1_recipes.extras.agents.registry import environment_parameters

    return environment_parameters(environment)


def _reward_names(method: str, values: Settings) -> list[str]:
    if method not in checks.REWARDED:
        return []
    names = values.get("reward_funcs") or []
    names = map(str, names if isinstance(names, list) else [names])
    if "reward_models" not in values:
        return list(names)
    # An unregistered name may belong to an entry in reward_models, which is read with the other
    # values.
    return [name for name in names if name in REWARDS or ":" in name]


def _adapt(recipe: Recipe, settings: Settings, parser: Any) -> None:
    """Fit the settings to the machine, and make them the defaults of the parser and Accelerate."""
    _settle_format(recipe.path, recipe.method, settings)
    unbounded = settings.get("use_vllm") and not settings.get("vllm_max_model_length")
    recipe.adapted = _follow_machine(recipe, settings)
    if unbounded:  # also without a GPU for vLLM, so that settings are the same everywhere
        _bound_engine(recipe, settings, parser)
    # TRL's default prints every completion of every step.
    defaults = {"num_completions_to_print": 0}
    parser.set_defaults_with_config(**{**defaults, **settings})
    if "ACCELERATE_MIXED_PRECISION" in os.environ and {"bf16", "fp16"} & settings.keys():
        # Accelerate's launcher sets this variable to the precision of its config file, and the
        # variable wins over bf16: false. The recipe must decide.
        precision = "no"
        for key in ("bf16", "fp16"):
            if settings.get(key):
                precision = key
        os.environ["ACCELERATE_MIXED_PRECISION"] = precision


def _build(
    recipe: Recipe,
    settings: Settings,
    parser: Any,
    reward_fields: Fields,
    environment_fields: Fields,
) -> None:
    """Write the typed arguments into the recipe."""
    try:
        parts = parser.parse_args_into_dataclasses([], look_for_args_file=False)
    except (ValueError, TypeError, ImportError) as error:
        raise RecipeError(f"{recipe.path}: {error}") from error
    recipe.script, recipe.training, recipe.model, parameters = parts
    recipe.warnings += checks.idle_keys(recipe)
    for key, value in sorted(vars(parameters).items()):
        if value is None:
            continue
        if key in reward_fields:
            recipe.reward_params[key] = value
        if key in environment_fields:
            recipe.environment_params[key] = value
        elif key not in reward_fields:
            recipe.warnings.append(
                f"{recipe.path}: {key} is ignored, because none of reward_funcs "
                f"{settings.get('reward_funcs', [])} has this parameter"
            )
    if settings.get("reward_models"):
        recipe.reward_params["reward_models"] = settings["reward_models"]
    # A run keeps a copy of its settings, which must not contain a secret.
    recipe.settings = {
        key: masked(to_builtin(namespace_value(recipe, key)), key)
        for key in settings
        if key != "hub_token"
    }


def _split_command_line(argv: Sequence[str], method: str) -> tuple[Path, Settings]:
    paths: list[str] = []
    typed: dict[str, list[str]] = {}
    key, values = "", paths
    for word in argv:
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            key = key.replace("-", "_")
            if key != "config":
                typed[key] = []
            values = typed.get(key, paths)
            if equals:
                values.append(value)
                values = paths
        # After a bare switch, a file name is the recipe: `--smoke recipes/x.yaml`.
        elif (
            key in ("smoke", "retry_failed")
            and not typed[key]
            and not paths
            and word.endswith((".yaml", ".yml"))
        ):
            paths.append(word)
            values = paths
        else:
            values.append(word)
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
    return find_yaml(Path(paths[0])), {key: _override(words) for key, words in typed.items()}


def _override(words: list[str]) -> Any:
    """Return the value of a typed key. A bare switch is true."""
    if len(words) > 1:
        return words
    return words[0] if words else True


def _find_files(values: Settings, folder: Path) -> None:
    """Write the places of local data and chat templates into these values.

    A place is in the working directory or in the recipe's folder.
    """
    parts = [values]
    mixture = values.get("dataset_mixture")
    if isinstance(mixture, dict) and isinstance(mixture.get("datasets"), list):
        parts += [part for part in mixture["datasets"] if isinstance(part, dict)]
    for part in parts:
        for key in ("dataset_name", "chat_template", "id"):
            name = part.get(key)
            if isinstance(name, str) and name and "{" not in name:
                part[key] = find_local(name, folder)


def _parser(types_: tuple[type, ...], reward_fields: Fields, path: Path) -> tuple[Any, Known]:
    """Return the parser of all keys, and what it knows about each."""
    from trl import TrlParser

    trainer_keys = keys_of(types_)
    for name in sorted(trainer_keys & reward_fields.keys()):
        raise RecipeError(
            f"{path}: reward_funcs: parameter {name!r} of a reward is a key of the trainer "
            f"too. Fix: rename the parameter"
        )
    # `None` means that the recipe does not set the parameter. Its default is in the reward's class.
    parameters = []
    for name, f in (reward_parameters(REWARDS) | reward_fields).items():
        if name not in trainer_keys:
            parameters.append((name, _field_type(f) | None, field(default=None)))
    parts = [*types_, dataclasses.make_dataclass("RewardParameters", parameters)]
    parser = TrlParser(parts, add_help=False, allow_abbrev=False)
    # Of a pair such as --shuffle / --no_shuffle, only the first takes values.
    options = parser._option_string_actions
    known = {}
    for part in parts:
        for key, hint in typing.get_type_hints(part).items():
            if f"--{key}" in options:
                known[key] = (options[f"--{key}"], hint)
    return parser, known


def _field_type(f: dataclasses.Field) -> Any:
    # With `from __future__ import annotations` the type is text. Rewards take scalars and lists of
    # scalars.
    annotation = str(f.type)
    scalar = re.search(r"\b(bool|int|float|str)\b", annotation)
    item: Any = {"bool": bool, "int": int, "float": float}.get(scalar[1] if scalar else "", str)
    if re.search(r"\b([Ll]ist|tuple|Sequence)\[", annotation):
        return list[item]
    return item


def _convert(values: Settings, source: str, known: Known, method: str) -> Settings:
    for key in values:
        if key not in known:
            raise unknown_key(key, source, known, method)
    return {key: convert(*known[key], value, source) for key, value in values.items()}


def _settle_format(path: Path, method: str, settings: Settings) -> None:
    """Write out the user's own response format.

    Without rewards, an environment judges the completions and no format's prompt is added.
    """
    prompt_keys = {"response_format", "system_prompt", "few_shot", "prefill"} & settings.keys()
    if (
        method in checks.REWARDED
        and settings.get("environment")
        and not settings.get("reward_funcs")
        and not prompt_keys
    ):
        settings["system_prompt"] = ""
    if "response_format" in settings:
        with located(path):
            settings["response_format"] = written_out(settings["response_format"], path.parent)


def _bound_engine(recipe: Recipe, settings: Settings, parser: Any) -> None:
    """Set ``vllm_max_model_length``.

    Without it, vLLM needs a KV cache for the model's whole context.
    """
    length = longest_sequence(lambda key: settings.get(key, parser.get_default(key)))
    if length is not None:
        settings["vllm_max_model_length"] = length
    elif settings["use_vllm"] and settings.get("distill_with") != "gold":
        recipe.warnings.append(
            f"{recipe.path}: vllm_max_model_length: not set, and max_prompt_tokens does not limit "
            "the prompts, so vLLM reserves memory for the model's whole context"
        )


def _follow_machine(recipe: Recipe, settings: Settings) -> Settings:
    """Set the keys that a machine without an accelerator needs, except typed keys.

    Return their values from before the change.
    """
    import torch

    use_cpu = settings.get("use_cpu", False)
    follows = use_cpu or not torch.accelerator.is_available()
    needs_gpu = not use_cpu and settings.get("backend") != "openai"
    problem = gpu.unusable_gpu() if follows and needs_gpu else None
    if problem:
        raise RecipeError(f"{recipe.path}: use_cpu: {problem}")
    if not isinstance(OWN_TYPES[recipe.method][1], str) or not follows:
        return {}
    # TRL's defaults
    current = {
        "use_cpu": False,
        "bf16": not settings.get("fp16"),
        "vllm_mode": "colocate",
    }
    current |= {key: value for key, value in settings.items() if value is not None}
    required = {"use_vllm": False} if current["vllm_mode"] == "colocate" else {}
    if not use_cpu:  # with use_cpu: true, the recipe chooses the precision for a CPU
        required |= {"use_cpu": True, "bf16": False, "fp16": False, "tf32": False}
    before, changes = {}, {}
    for key, value in required.items():
        if key in current and key not in recipe.typed and current[key] != value:
            before[key] = current[key]
            changes[key] = value
    if not before:
        return {}
    why = "use_cpu is true" if use_cpu else "no accelerator is visible"
    recipe.warnings.append(
        f"{recipe.path}: {why}, so the run uses {_yaml_line(changes)} instead of "
        f"{_yaml_line(before)}. Expect it to be hundreds of times "
        "slower than on a GPU. --smoke checks a recipe in seconds"
    )
    settings |= changes
    if "fp16" in changes:
        settings.setdefault("bf16", False)  # if fp16 is off, TRL turns bf16 on
    return before


def _yaml_line(values: Settings) -> str:
    return ", ".join(f"{key}: {str(value).lower()}" for key, value in values.items())
