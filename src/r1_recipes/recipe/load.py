"""A recipe file and command-line overrides -> typed arguments, or an error that says what to write instead.

A key is a field of our arguments, of ``trl.GRPOConfig`` and the like, of ``trl.ModelConfig``, or a parameter of a reward that is named.
"""

import dataclasses
import os
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from r1_recipes.common import extras, gpu, processes
from r1_recipes.common.errors import RecipeError, nearest
from r1_recipes.common.files import find_local, find_yaml
from r1_recipes.common.masking import masked
from r1_recipes.common.plugins import look_beside
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.prompts.catalogue import written_out
from r1_recipes.recipe import checks
from r1_recipes.recipe.engine import longest_sequence
from r1_recipes.recipe.types import OWN_TYPES, Recipe, argument_types, namespace_value
from r1_recipes.recipe.values import COMMAND_LINE, convert, listed, plain
from r1_recipes.rewards import REWARDS, reward_parameters


def load_recipe(
    argv: Sequence[str],
    method: str,
    check: Callable[[Path, dict[str, Any]], None] | None = None,
    smoke: Callable[[Path, str, dict[str, Any]], dict[str, Any]] | None = None,
    world_size: int | None = None,
) -> Recipe:
    """Read a recipe and its overrides, ``[PATH, --key, value, …]``, which win; no model and no data is loaded.

    ``check`` is called with the path and all keys before TRL and code of one's own are imported; ``smoke`` with path, method and all keys
    of a recipe with ``smoke: true``, and returns overrides that shrink it. GRPO's batches are checked for ``world_size`` processes.
    """
    path, overrides = _split_command_line(argv, method)
    if "reward_funcs" in overrides:  # whose names are needed before the other values are typed
        overrides["reward_funcs"] = listed("reward_funcs", overrides["reward_funcs"])
    recipe = Recipe(path=path, method=method, script=None, training=None, model=None)
    look_beside(path)
    config = read_yaml(path)
    if "stages" in config:
        raise RecipeError(f"{path}: a pipeline, got as a recipe for {method}. Fix: python -m r1_recipes.pipeline {path}")
    masked([config, overrides])  # from here on no message shows what is secret in them
    foreign = extras.part("foreign")
    if foreign:
        config = foreign.read(config, overrides, method, str(path), recipe.warnings)
        overrides = foreign.translate(overrides, COMMAND_LINE, recipe.warnings)
    for values in (config, overrides):
        _find_files(values, path.parent)
    recipe.typed = frozenset(overrides)
    typed, together = set(overrides), {**config, **overrides}
    names = together.get("reward_funcs") or [] if method in checks.REWARDED else []
    named = [str(name) for name in (names if isinstance(names, list) else [names])]
    # A name that is not registered may be that of an entry in reward_models, which is read with the other values.
    named = [name for name in named if name in REWARDS or ":" in name or "reward_models" not in together]
    _reward_fields(path, [name for name in named if ":" not in name])  # a misspelt one is refused before torch is imported
    if check is not None:
        check(path, together)
    reward_fields = _reward_fields(path, named)
    try:
        environment_fields = _environment_fields(together.get("environment") if method in checks.REWARDED else None)
    except ValueError as error:
        raise RecipeError(f"{path}: {error}") from error

    parser, known = _parser(argument_types(method, together.get("distill_with")), reward_fields | environment_fields, path)
    settings = _typed(config, str(path), known, method) | _typed(overrides, COMMAND_LINE, known, method)
    if smoke is not None and settings.get("smoke"):
        # What is typed wins, so that one key of a smoke run can still be changed.
        shrunk = _typed(smoke(path, method, settings), COMMAND_LINE, known, method)
        settings |= {key: value for key, value in shrunk.items() if key not in typed}
    _settle_format(path, method, settings)
    unbounded = settings.get("use_vllm") and not settings.get("vllm_max_model_length")
    recipe.adapted = _follow_machine(recipe, settings, typed)
    if unbounded:  # also if this machine has no GPU for vLLM: the same settings everywhere
        _bound_engine(recipe, settings, parser)
    # TRL's own default prints every completion of every step.
    parser.set_defaults_with_config(**{"num_completions_to_print": 0, **settings})
    if method == "grpo":
        checks.check_batch(path, parser.get_default, world_size or processes.world_size())
    if "ACCELERATE_MIXED_PRECISION" in os.environ and {"bf16", "fp16"} & settings.keys():
        # accelerate's launcher says its file's precision by this variable, which would win over bf16: false. The recipe decides.
        os.environ["ACCELERATE_MIXED_PRECISION"] = "fp16" if settings.get("fp16") else "bf16" if settings.get("bf16") else "no"
    try:
        script, training, model, reward_values = parser.parse_args_into_dataclasses([], look_for_args_file=False)
    except (ValueError, TypeError, ImportError) as error:
        raise RecipeError(f"{path}: {error}") from error
    recipe.script, recipe.training, recipe.model = script, training, model
    chosen = {key: value for key, value in dataclasses.asdict(reward_values).items() if value is not None}
    recipe.reward_params = {key: value for key, value in chosen.items() if key in reward_fields}
    recipe.environment_params = {key: value for key, value in chosen.items() if key in environment_fields}
    if getattr(script, "reward_models", None):
        recipe.reward_params["reward_models"] = script.reward_models
    # A run keeps a copy of its settings; a secret does not belong there.
    recipe.settings = {key: masked(plain(namespace_value(recipe, key)), key) for key in settings if key != "hub_token"}
    checks.check(recipe, chosen, {*reward_fields, *environment_fields})
    return recipe


def _environment_fields(environment: Any) -> dict[str, dataclasses.Field]:
    fields: dict[str, dataclasses.Field] = {}
    return extras.needed("agents", "environment").environment_parameters(environment) if environment else fields


def _reward_fields(path: Path, names: list[str]) -> dict[str, dataclasses.Field]:
    try:
        return reward_parameters(names)
    except ValueError as error:
        raise RecipeError(f"{path}: reward_funcs: {error}") from error


def _split_command_line(argv: Sequence[str], method: str) -> tuple[Path, dict[str, Any]]:
    arguments, paths = list(argv), []
    overrides: dict[str, Any] = {}
    while arguments:
        word = arguments.pop(0)
        if not word.startswith("--"):
            paths.append(word)
            continue
        key, equals, value = word[2:].partition("=")
        key = key.replace("-", "_")
        values = [value] if equals else []
        while not equals and arguments and not arguments[0].startswith("--"):
            # A recipe path straight after a bare switch (`--smoke recipes/x.yaml`) is the path.
            if not paths and not values and key in ("smoke", "retry_failed") and arguments[0].endswith((".yaml", ".yml")):
                break
            values.append(arguments.pop(0))
        if key == "config":
            paths += values
        else:
            overrides[key] = values[0] if len(values) == 1 else values or True
    if not paths:
        raise RecipeError(f"command line: no recipe given; python -m r1_recipes.{method} recipes/NAME.yaml [--key value …]")
    if len(paths) > 1:
        raise RecipeError(f"command line: {paths[1]!r} stands alone: one recipe a run, and overrides are written --key value")
    return find_yaml(Path(paths[0])), overrides


def _find_files(values: dict[str, Any], folder: Path) -> None:
    """Write the places of local data and of a chat template's file into these values: here, or beside the recipe."""
    parts = [values]
    if isinstance(mixture := values.get("dataset_mixture"), dict) and isinstance(mixture.get("datasets"), list):
        parts += [part for part in mixture["datasets"] if isinstance(part, dict)]
    for part in parts:
        for key in ("dataset_name", "chat_template", "id"):
            if isinstance(name := part.get(key), str) and name and "{" not in name:
                part[key] = find_local(name, folder)


def _parser(types_: tuple[type, ...], reward_fields: dict[str, dataclasses.Field], path: Path) -> tuple[Any, dict[str, tuple[Any, Any]]]:
    """Return the parser of every key there is, and by key its action and type hint."""
    from trl import TrlParser

    taken = {f.name for kind in types_ for f in dataclasses.fields(kind)}
    for name in sorted(taken & set(reward_fields)):
        raise RecipeError(f"{path}: reward_funcs: parameter {name!r} of a reward is a key of the trainer too; give it another name")
    fields = {**reward_parameters(REWARDS), **reward_fields}
    # `None` stands for "not set here": a parameter's default lives with its reward.
    parameters = dataclasses.make_dataclass(
        "RewardParameters", [(name, _field_type(f) | None, field(default=None)) for name, f in fields.items() if name not in taken]
    )
    kinds = [*types_, parameters]
    hints = {key: hint for each in kinds for key, hint in typing.get_type_hints(each).items()}
    parser = TrlParser(kinds, add_help=False, allow_abbrev=False)
    # The last action counts, so of a pair such as --shuffle / --no_shuffle the first, which takes values.
    return parser, {action.dest: (action, hints[action.dest]) for action in reversed(parser._actions)}


def _field_type(f: dataclasses.Field) -> Any:
    # Under `from __future__ import annotations` the type is text; rewards take scalars, and lists of them.
    annotation = f.type if isinstance(f.type, str) else f.type.__name__ if isinstance(f.type, type) else str(f.type)
    scalar = re.search(r"\b(bool|int|float|str)\b", annotation)
    kind: Any = {"bool": bool, "int": int, "float": float}.get(scalar[1] if scalar else "", str)
    return list[kind] if re.search(r"\b([Ll]ist|tuple|Sequence)\[", annotation) else kind


def _typed(values: dict[str, Any], source: str, known: dict[str, tuple[Any, Any]], method: str) -> dict[str, Any]:
    for key in values:
        if key not in known:
            foreign = extras.part("foreign")
            close = [foreign.SHORT[key]] if foreign and key in foreign.SHORT else nearest(key, known)
            hint = f" Nearest: {', '.join(close)}." if close else ""
            others = (each for each in OWN_TYPES if key in {f.name for kind in argument_types(each) for f in dataclasses.fields(kind)})
            there = "".join(f": a key of {other}; python -m r1_recipes.{other} FILE" for other in [*others][:1])
            raise RecipeError(
                f"{source}: unknown key {key!r} for {method}{there}.{hint} Keys are those of trl's config, of ModelConfig, and "
                "docs/recipes.md; for other projects' see docs/migration.md."
            )
    return {key: convert(*known[key], value, source) for key, value in values.items()}


def _settle_format(path: Path, method: str, settings: dict[str, Any]) -> None:
    """Write out a response format of the user's own, and leave the prompt to an environment that judges without one."""
    asks = {"response_format", "system_prompt", "few_shot", "prefill"} & settings.keys()
    if method in checks.REWARDED and settings.get("environment") and not settings.get("reward_funcs") and not asks:
        settings["system_prompt"] = ""
    if "response_format" in settings:
        try:
            settings["response_format"] = written_out(settings["response_format"], path.parent)
        except ValueError as error:
            raise RecipeError(f"{path}: {error}") from error


def _bound_engine(recipe: Recipe, settings: dict[str, Any], parser: Any) -> None:
    """Set ``vllm_max_model_length``, without which vLLM needs a KV cache for the model's whole context."""
    length = longest_sequence(lambda key: settings.get(key, parser.get_default(key)))
    if length is not None:
        settings["vllm_max_model_length"] = length
    elif settings["use_vllm"] and settings.get("distill_with") != "gold":
        recipe.warnings.append(
            f"{recipe.path}: vllm_max_model_length: not set, and no max_prompt_tokens bounds the prompts: vLLM reserves memory for the "
            "model's whole context"
        )


def _follow_machine(recipe: Recipe, settings: dict[str, Any], typed: set[str]) -> dict[str, Any]:
    """Set device, precision and vLLM as a machine without an accelerator runs them, but for ``typed`` keys; return the values before."""
    import torch

    use_cpu = settings.get("use_cpu", False)
    follows = use_cpu or not torch.accelerator.is_available()
    if follows and not use_cpu and settings.get("backend") != "openai" and (problem := gpu.unusable_gpu()):
        raise RecipeError(f"{recipe.path}: use_cpu: {problem}")
    if not isinstance(OWN_TYPES[recipe.method][1], str) or not follows:
        return {}
    asked = {"use_cpu": use_cpu, "bf16": not settings.get("fp16")}  # TRL's default
    asked |= {key: value for key, value in settings.items() if value is not None}
    changes = {"use_vllm": False} if asked.get("vllm_mode", "colocate") == "colocate" else {}
    if not use_cpu:  # with use_cpu: true, the precision is the recipe's own choice for a CPU
        changes |= {"use_cpu": True, "bf16": False, "fp16": False, "tf32": False}
    changes = {key: value for key, value in changes.items() if key not in typed and asked.get(key, value) != value}
    if not changes:
        return {}
    before = {key: asked[key] for key in changes}
    why = "use_cpu is true" if use_cpu else "no accelerator is visible"
    now, shown = (", ".join(f"{key}: {str(value).lower()}" for key, value in of.items()) for of in (changes, before))
    recipe.warnings.append(
        f"{recipe.path}: {why}: the run has {now} instead of {shown}; expect it to be hundreds of times slower than on a GPU (--smoke "
        "checks a recipe in seconds)"
    )
    settings |= changes
    if "fp16" in changes:
        settings.setdefault("bf16", False)  # TRL takes the one if the other is off
    return before
