"""A recipe file and command-line overrides -> typed arguments, or an error that says what to write instead.

``load(["recipes/x.yaml", "--learning_rate", "1e-6"], "grpo")`` reads one YAML mapping whose keys are fields of our arguments, of
``trl.GRPOConfig``/``SFTConfig``, of ``trl.ModelConfig``, or parameters of the rewards it names. The command line wins over the file.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from r1_recipes.errors import RecipeError, nearest

logger = logging.getLogger(__name__)

# Keys of older TRL, Transformers and open-r1 whose meaning today's key carries over unchanged.
RENAMED = {
    "torch_dtype": "dtype",
    "max_prompt_length": "max_prompt_tokens",
    "dataset_prompt_column": "prompt_column",
    "max_seq_length": "max_length",
    "evaluation_strategy": "eval_strategy",
    "warmup_ratio": "warmup_steps",
    "vllm_max_model_len": "vllm_max_model_length",
    "vllm_guided_decoding_regex": "vllm_structured_outputs_regex",
    "wandb_log_unique_prompts": "log_unique_prompts",
    "hub_model_revision": "hub_revision",
    "use_liger": "use_liger_kernel",
    "no_cuda": "use_cpu",
    "tokenizer_name_or_path": "model_name_or_path",
}

# Why a renamed key deserves a second look.
RENAME_NOTES = {
    "max_prompt_length": "longer prompts are dropped and counted, not cut",
    "warmup_ratio": "a value below 1 is a share of all steps",
}

# Keys that no longer do anything; the run goes on without them.
OBSOLETE = {
    "overwrite_output_dir": "an unfinished run of the same recipe is resumed; delete the folder to start afresh",
    "save_safetensors": "checkpoints are always safetensors",
    "vllm_device": "with vllm_mode: colocate each process generates on its own device",
    "vllm_dtype": "vLLM takes the model's dtype",
    "vllm_enable_prefix_caching": "vLLM caches prefixes by default",
    "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR instead",
    "include_tokens_per_second": "see num_tokens and step_time in the log",
    "group_by_length": "SFT has packing: true for the same purpose",
    "overwrite_hub_revision": "pushing is Transformers' own; set push_to_hub and hub_revision",
    "push_to_hub_revision": "pushing is Transformers' own; set push_to_hub and hub_revision",
    "benchmarks": "evaluate the checkpoint after the run",
    "callbacks": "pushing is Transformers' own; set push_to_hub and hub_strategy",
    "ignore_bias_buffers": "none of the supported models needs it",
    "dataset_streaming": "rows are memory-mapped, not streamed",
    "gradient_checkpointing_use_reentrant": "write gradient_checkpointing_kwargs: {use_reentrant: false}",
    "use_liger_loss": "write use_liger_kernel",
}

# Keys that cannot be honoured; running without them would be another experiment.
REFUSED = {
    "reward_model_path": "add the reward model as a reward function: reward_funcs: [my_module:my_reward]",
    "code_provider": "code rewards need a sandbox, which this version does not have",
    "code_language": "code rewards need a sandbox, which this version does not have",
    "load_in_4bit_bnb": "write load_in_4bit: true",
    "config": "give the recipe as the first argument",
}


@dataclass
class Recipe:
    """A recipe, resolved.

    Attributes:
        path: the YAML file.
        method: ``"grpo"`` or ``"sft"``.
        script: :class:`~r1_recipes.arguments.RecipeArguments` of the method.
        training: ``trl.GRPOConfig`` or ``trl.SFTConfig``.
        model: ``trl.ModelConfig``.
        reward_params: parameters for ``get_reward_funcs``, only those the recipe sets.
        settings: every key that the file or the command line set, translated; what a run's copy of the recipe holds.
        warnings: one sentence a translated or ignored key.
    """

    path: Path
    method: str
    script: Any
    training: Any
    model: Any
    reward_params: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The file's name without its ending; what a run directory remembers."""
        return self.path.stem


def read_yaml(path: Path) -> dict[str, Any]:
    """One YAML mapping, with repeated keys refused (PyYAML would silently keep the last).

    Raises:
        RecipeError: no such file, bad YAML (file, line and column), no mapping, or a repeated key.
    """
    if not path.is_file():
        near = nearest(path.name, (p.name for p in path.parent.glob("*.yaml"))) if path.parent.is_dir() else []
        hint = f" Did you mean {path.parent / near[0]}?" if near else ""
        raise RecipeError(f"{path}: no such recipe file.{hint}")
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of keys to values, found {type(values).__name__}")
    return values


class _UniqueKeyLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key, (key_node, _) in zip(keys, node.value, strict=True):
            if keys.count(key) > 1:
                raise RecipeError(f"{self.name}: key {key!r} stands more than once, line {key_node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


def load(argv: Sequence[str], method: str) -> Recipe:
    """Read a recipe and its overrides.

    Args:
        argv: ``[PATH, --key, value, …]``; ``--config PATH`` is accepted for the path, ``--key=value`` for the pairs.
        method: ``"grpo"`` or ``"sft"``.

    Returns:
        The resolved recipe. Nothing has been loaded yet: no model, no data.

    Raises:
        RecipeError: names the file, the key, what was found and what would work.
    """
    path, overrides = _split_command_line(argv, method)
    recipe = Recipe(path=path, method=method, script=None, training=None, model=None)
    config = read_yaml(path)
    environment = config.pop("env", {})
    config = _translate(config, str(path), recipe.warnings)
    overrides = _translate(overrides, "command line", recipe.warnings)
    if overrides.get("smoke", config.get("smoke")) not in (None, False, "false", "False"):
        from r1_recipes.smoke import smoke_overrides

        # What the user typed stays on top, so one key of a smoke run can still be changed.
        overrides = {**smoke_overrides(path, method, {**config, **overrides}), **overrides}

    types = _argument_types(method)
    reward_names = _as_list(overrides.get("reward_funcs", config.get("reward_funcs", [])))
    reward_fields = _reward_fields(reward_names, path) if method == "grpo" else {}
    parser = _parser(types, reward_fields, path)
    actions = {action.dest: action for action in parser._actions}
    for source, values in ((str(path), config), ("command line", overrides)):
        for key in values:
            if key not in actions:
                raise RecipeError(_unknown_key(source, key, actions, method))
    for key, value in config.items():
        config[key] = _converted(actions[key], value, str(path))
    parser.set_defaults_with_config(**config)

    if not isinstance(environment, dict):
        raise RecipeError(f"{path}: env: a mapping of names to values, found {environment!r}")
    os.environ.update({key: str(value) for key, value in environment.items()})
    flags = [item for key, value in overrides.items() for item in (f"--{key}", *_as_flags(value))]
    try:
        script, training, model, reward_values = parser.parse_args_into_dataclasses(flags, look_for_args_file=False)
    except RecipeError as error:
        raise RecipeError(_with_path(path, error)) from error
    except (ValueError, TypeError, ImportError) as error:
        raise RecipeError(f"{path}: {error}") from error
    recipe.script, recipe.training, recipe.model = script, training, model
    chosen = {key: value for key, value in dataclasses.asdict(reward_values).items() if value is not None}
    recipe.reward_params = {key: value for key, value in chosen.items() if key in reward_fields}
    recipe.settings = {key: _plain(namespace_value(recipe, key)) for key in (*config, *overrides)}
    _check(recipe, chosen, set(reward_fields))
    return recipe


def namespace_value(recipe: Recipe, key: str) -> Any:
    """The resolved value of a key, wherever it lives."""
    for part in (recipe.script, recipe.training, recipe.model):
        if hasattr(part, key):
            return getattr(part, key)
    return recipe.reward_params.get(key)


def _split_command_line(argv: Sequence[str], method: str) -> tuple[Path, dict[str, Any]]:
    arguments = list(argv)
    path = None
    overrides: dict[str, Any] = {}
    while arguments:
        word = arguments.pop(0)
        if not word.startswith("--"):
            if path is not None:
                raise RecipeError(f"command line: {word!r} stands alone; overrides are written --key value")
            path = Path(word)
            continue
        key, equals, value = word[2:].partition("=")
        key = key.replace("-", "_")
        values = [value] if equals else []
        while not equals and arguments and not _is_flag(arguments[0]):
            # A recipe path straight after a bare switch (`--smoke recipes/x.yaml`) is the path.
            if path is None and not values and key in ("smoke",) and arguments[0].endswith((".yaml", ".yml")):
                break
            values.append(arguments.pop(0))
        if key == "config" and values:
            path = Path(values[0])
            continue
        overrides[key] = True if not values else values[0] if len(values) == 1 else values
    if path is None:
        raise RecipeError(f"command line: no recipe given; python -m r1_recipes.{method} recipes/NAME.yaml [--key value …]")
    return path, overrides


def _is_flag(word: str) -> bool:
    return word.startswith("--") and len(word) > 2 and not word[2:3].isdigit()


def _translate(values: dict[str, Any], source: str, warnings: list[str]) -> dict[str, Any]:
    result = {}
    for key, value in values.items():
        if key in REFUSED:
            raise RecipeError(f"{source}: {key} is not supported: {REFUSED[key]}")
        if key in OBSOLETE:
            warnings.append(f"{source}: {key} is ignored: {OBSOLETE[key]}")
            continue
        target = RENAMED.get(key, key)
        if target != key:
            if target in values:
                raise RecipeError(f"{source}: {key} is today's {target}, and both are set; keep {target}")
            note = f" ({RENAME_NOTES[key]})" if key in RENAME_NOTES else ""
            warnings.append(f"{source}: {key} is read as {target}{note}")
        result[target] = value
    return result


def _argument_types(method: str) -> tuple[type, type, type]:
    from trl import GRPOConfig, ModelConfig, SFTConfig

    from r1_recipes.arguments import GRPORecipeArguments, SFTRecipeArguments

    return {
        "grpo": (GRPORecipeArguments, GRPOConfig, ModelConfig),
        "sft": (SFTRecipeArguments, SFTConfig, ModelConfig),
    }[method]


def _reward_fields(names: list[str], path: Path) -> dict[str, dataclasses.Field]:
    from r1_recipes.rewards import reward_parameters

    try:
        return reward_parameters(names)
    except ValueError as error:
        raise RecipeError(f"{path}: reward_funcs: {error}") from error


def _parser(types: tuple[type, ...], reward_fields: dict[str, dataclasses.Field], path: Path) -> Any:
    from trl import TrlParser

    from r1_recipes.rewards import REWARDS, reward_parameters

    taken = {f.name for kind in types for f in dataclasses.fields(kind)}
    fields = {**reward_parameters(REWARDS), **reward_fields}
    # `None` stands for "not set here": a parameter's default lives with its reward.
    parameters = dataclasses.make_dataclass(
        "RewardParameters",
        [(name, _field_type(f) | None, field(default=None)) for name, f in fields.items() if name not in taken],
    )

    class Parser(TrlParser):
        def error(self, message: str) -> None:
            raise RecipeError(f"command line of {path}: {message}")

    return Parser([*types, parameters], add_help=False, allow_abbrev=False)


def _field_type(f: dataclasses.Field) -> type:
    # Annotations are strings here; a scalar default (or the annotation itself) tells the type.
    names = {"int": int, "float": float, "str": str, "bool": bool}
    annotation = str(f.type if isinstance(f.type, str) else getattr(f.type, "__name__", f.type))
    return names.get(annotation.split("|")[0].strip(), str)


def _converted(action: Any, value: Any, source: str) -> Any:
    """A YAML scalar as the type of its key; lists and mappings pass through."""
    convert: Callable | None = action.type
    if value is None or convert is None or isinstance(value, dict) or convert in (dict, list):
        return value
    try:
        if isinstance(value, list):
            return (
                [convert(item) if not isinstance(item, dict | list) else item for item in value] if action.nargs == "+" else value
            )
        converted = convert(value if isinstance(value, str) or convert is str else str(value))
        return [converted] if action.nargs == "+" else converted
    except (ValueError, TypeError, OverflowError) as error:
        expected = getattr(convert, "__name__", "")
        raise RecipeError(
            f"{source}: {action.dest}: found {value!r} ({type(value).__name__}); {_expectation(expected, error)}"
        ) from error
    except Exception as error:  # argparse.ArgumentTypeError, raised by TRL's own converters
        raise RecipeError(f"{source}: {action.dest}: found {value!r}; {error}") from error


def _expectation(expected: str, error: Exception) -> str:
    return f"expected {expected}" if expected in ("int", "float", "str", "bool") else str(error)


def _unknown_key(source: str, key: str, known: Any, method: str) -> str:
    close = nearest(key, known)
    hint = f" Nearest: {', '.join(close)}." if close else ""
    return f"{source}: unknown key {key!r} for {method}.{hint} Keys are those of trl's config, of ModelConfig, and docs/recipes.md."


def _check(recipe: Recipe, chosen_params: dict[str, Any], used: set[str]) -> None:
    """What can be known to be wrong before anything is loaded."""
    path, script, training = recipe.path, recipe.script, recipe.training
    if not recipe.model.model_name_or_path:
        raise RecipeError(f"{path}: model_name_or_path: missing; a hub id or a local checkpoint folder")
    for key in sorted(set(chosen_params) - used):
        recipe.warnings.append(f"{path}: {key} is ignored: none of reward_funcs {script.reward_funcs} has this parameter")
    if recipe.method != "grpo":
        return
    if not script.reward_funcs:
        from r1_recipes.rewards import REWARDS

        raise RecipeError(f"{path}: reward_funcs: missing; name at least one of {', '.join(sorted(REWARDS))}")
    weights = training.reward_weights
    if weights is not None and len(weights) != len(script.reward_funcs):
        raise RecipeError(
            f"{path}: reward_weights has {len(weights)} entries for {len(script.reward_funcs)} reward_funcs {script.reward_funcs}"
        )
    from r1_recipes.formats import get_response_format
    from r1_recipes.rewards import get_reward_funcs

    try:
        get_reward_funcs(script.reward_funcs, get_response_format(script.response_format), **recipe.reward_params)
    except ValueError as error:
        raise RecipeError(f"{path}: {error}") from error


def _with_path(path: Path, error: Exception) -> str:
    text = str(error)
    return text if str(path) in text else f"{path}: {text}"


def _as_list(value: Any) -> list:
    return list(value) if isinstance(value, list | tuple) else [value]


def _as_flags(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [json.dumps(value)]
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return [str(value)]


def _plain(value: Any) -> Any:
    """A value as YAML can write it."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or (isinstance(value, bool | int | float | str) and type(value) in (bool, int, float, str)):
        return value
    return getattr(value, "value", None) or str(value)
