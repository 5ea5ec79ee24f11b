"""A recipe file and command-line overrides -> typed arguments, or an error that says what to write instead.

``load(["recipes/x.yaml", "--learning_rate", "1e-6"], "grpo")`` reads one YAML mapping whose keys are fields of our arguments, of
``trl.GRPOConfig``/``SFTConfig``, of ``trl.ModelConfig``, or parameters of the rewards it names. The command line wins over the file.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
import re
import types
import typing
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from r1_recipes.config_fields import config_fields
from r1_recipes.errors import RecipeError, first_line, nearest, unknown_name
from r1_recipes.masking import masked

logger = logging.getLogger(__name__)

# Where an override comes from, as messages name it.
COMMAND_LINE = "command line"
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
    "use_liger_loss": "use_liger_kernel",
    "no_cuda": "use_cpu",
    "push_to_hub_model_id": "hub_model_id",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
}

# Why a renamed key deserves a second look.
RENAME_NOTES = {
    "max_prompt_length": "longer prompts are dropped and counted, not cut",
    "warmup_ratio": "a value below 1 is a share of all steps",
}

# Methods whose recipes name rewards.
_REWARDED = ("grpo", "generate", "evaluate")

# Typed str by TRL and Transformers, although a bool has a meaning there too.
_STR_OR_BOOL = {"scale_rewards", "fsdp", "resume_from_checkpoint"}

# What a YAML file may be and stand for: hundreds of times the largest recipe, and still read in seconds.
_MAX_YAML_BYTES, _MAX_YAML_VALUES, _MAX_YAML_LEVELS, _MAX_DIGITS = 1_000_000, 100_000, 64, 1000
# Values out of these intervals would fail after minutes, or silently train nothing; a default is always allowed.
_INTERVALS = {
    "[1, inf)": "max_steps max_samples max_eval_samples max_prompt_tokens max_solution_tokens max_length max_completion_length "
    "eval_max_completion_length per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps num_generations "
    "generation_batch_size steps_per_generation num_iterations lora_r",
    "[0, inf)": "num_samples temperature eval_temperature beta epsilon epsilon_high delta weight_decay max_grad_norm warmup_steps seed",
    "(0, inf)": "num_train_epochs logging_steps repetition_penalty lora_alpha",
    "(0, 1]": "top_p vllm_gpu_memory_utilization",
    "[0, 1]": "learning_rate min_p lora_dropout",
}
_RANGES = {key: interval for interval, keys in _INTERVALS.items() for key in keys.split()}
_NUMBERS = {"int": int, "float": float, "int | None": int | None, "float | None": float | None}

# PyYAML reads 1e-6 as text; the type of a key says better, but what stands inside a mapping has no key of ours.
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")

# Keys that no longer do anything; the run goes on without them.
OBSOLETE = {
    "overwrite_output_dir": "an unfinished run of the same recipe is resumed; delete the folder to start afresh",
    "save_safetensors": "checkpoints are always safetensors",
    "vllm_device": "with vllm_mode: colocate each process generates on its own device",
    "vllm_dtype": "vLLM takes the model's dtype",
    "vllm_enable_prefix_caching": "vLLM caches prefixes by default",
    "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR instead",
    "include_tokens_per_second": "see num_tokens and step_time in the log",
    "group_by_length": "write train_sampling_strategy: group_by_length, or packing: true for SFT",
    "overwrite_hub_revision": "pushing is Transformers' own; set push_to_hub and hub_revision",
    "push_to_hub_revision": "pushing is Transformers' own; set push_to_hub and hub_revision",
    "benchmarks": "evaluate the checkpoint after the run",
    "callbacks": "pushing is Transformers' own; set push_to_hub and hub_strategy",
    "ignore_bias_buffers": "none of the supported models needs it",
    "dataset_streaming": "rows are memory-mapped, not streamed",
    "gradient_checkpointing_use_reentrant": "write gradient_checkpointing_kwargs: {use_reentrant: false}",
    "half_precision_backend": "PyTorch's own mixed precision is the only one left",
    "use_mps_device": "an Apple GPU is used where there is one",
    "use_ipex": "Transformers dropped it",
    "jit_mode_eval": "Transformers dropped it",
    "dataset_batch_size": "SFT tokenizes in batches of its own",
    "num_of_sequences": "packing needs no estimate of it",
    "chars_per_token": "packing needs no estimate of it",
    "preprocessing_num_workers": "rows are mapped by one process; dataset_num_proc is how many tokenize for SFT",
    "dataset_preprocessing_num_proc": "rows are mapped by one process; dataset_num_proc is how many tokenize for SFT",
    "auto_insert_empty_system_msg": "write system_prompt",
    "truncation_side": "longer prompts are dropped and counted (max_prompt_tokens), not cut",
    "model_code_revision": "set model_revision",
    "num_processes": "accelerate launch says how many",
}

_NO_ROUTER = "the sandbox is asked without a router: code_provider: e2b, or bubblewrap on this machine"

# Keys that cannot be honoured; running without them would be another experiment.
REFUSED = {
    "reward_model_path": "write reward_funcs: [reward_model] and reward_model: PATH",
    "reward_model_name_or_path": "write reward_funcs: [reward_model] and reward_model: PATH",
    "code_eval_test_batch_size": "of Codeforces' problems, which no reward here reads; code runs parallel_code_exec_per_proc cases at once",
    "code_eval_scoring_mode": "write reward_funcs: [code] for the share of cases passed, [binary_code] for all or nothing",
    "e2b_router_url": _NO_ROUTER,
    "morph_router_url": _NO_ROUTER,
    "ioi_provider": "IOI's graders are not here; code and binary_code compare what a program prints",
    "tokenizer_name_or_path": "the tokenizer is the model's own; save another one into the model's folder, or set chat_template",
    "dataset_splits": "write dataset_train_split and dataset_test_split, or split in each entry of dataset_mixture",
    "text_column": "texts without a question are not what is trained on here; name prompt_column and reasoning_column",
    "config": "give the recipe as the first argument",
}


# What `env:` may set: a recipe is often somebody else's, and other variables send the user's keys elsewhere or load programs.
ENVIRONMENT = {
    *("CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
    *("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_VERBOSITY"),
    *("NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_LOGS"),
    *("TRL_EXPERIMENTAL_SILENCE", "VLLM_ATTENTION_BACKEND", "VLLM_LOGGING_LEVEL", "WANDB_MODE", "WANDB_NAME", "WANDB_NOTES", "WANDB_TAGS"),
}


@dataclass
class Recipe:
    """A recipe, resolved.

    Attributes:
        path: the YAML file.
        method: ``"grpo"``, ``"sft"``, ``"distill"``, ``"generate"`` or ``"evaluate"``.
        script: :class:`~r1_recipes.arguments.RecipeArguments` of the method.
        training: ``trl.GRPOConfig``, ``trl.SFTConfig``, ``trl.DistillationConfig``, or our own ``GenerationSettings`` or
            ``SamplingSettings``.
        model: ``trl.ModelConfig``.
        reward_params: parameters for ``get_reward_funcs``, only those the recipe sets.
        settings: every key that the file or the command line set, translated; what a run's copy of the recipe holds.
        warnings: one sentence a translated or ignored key.
        adapted: the recipe's own values of keys that :func:`follow_machine` changed.
    """

    path: Path
    method: str
    script: Any
    training: Any
    model: Any
    reward_params: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    adapted: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file's name without its ending; what a run directory remembers."""
        return self.path.stem


def read_yaml(path: Path) -> dict[str, Any]:
    """One YAML mapping, with repeated keys refused (PyYAML would silently keep the last).

    Raises:
        RecipeError: no such file, bad YAML (file, line and column), no mapping, a repeated key, or more than a recipe can be.
    """
    if not path.is_file():
        near = nearest(path.name, (p.name for p in path.parent.glob("*.yaml"))) if path.parent.is_dir() else []
        hint = f" Did you mean {path.parent / near[0]}?" if near else ""
        raise RecipeError(f"{path}: no such recipe file.{hint}")
    try:
        size = path.stat().st_size
        if size > _MAX_YAML_BYTES:
            raise RecipeError(f"{path}: {size} bytes; a recipe has at most {_MAX_YAML_BYTES}")
        values = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of keys to values, found {type(values).__name__}")
    for key in values:
        if not isinstance(key, str):
            raise RecipeError(f"{path}: key {key!r} is read as {type(key).__name__}, not text; put it in quotes")
    return values


def parse_yaml(text: str, name: str) -> Any:
    """What a YAML text says; bounded, since a few lines of aliases may stand for more than a machine can hold.

    Args:
        text: of anybody.
        name: what to call it in messages.

    Raises:
        RecipeError: it is not YAML, or stands for more than it may.
    """
    try:
        loader = _UniqueKeyLoader(text)
        loader.name = name  # the loader names the file in its errors
        node = loader.get_single_node()
        if node is None:
            return None
        values, levels = _extent(node, {})
        if values > _MAX_YAML_VALUES or levels > _MAX_YAML_LEVELS:
            raise RecipeError(
                f"{name}: with its aliases filled in it has more than {_MAX_YAML_VALUES} values, {_MAX_YAML_LEVELS} levels, or "
                f"{_MAX_DIGITS} digits in a number; no recipe has"
            )
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        for mark in (getattr(error, "context_mark", None), getattr(error, "problem_mark", None)):
            if mark is not None:
                mark.buffer = None  # the line itself may hold a key
        raise RecipeError(f"{name}: not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise RecipeError(f"{name}: not valid YAML: more than {_MAX_YAML_LEVELS} levels") from None
    except RecipeError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:  # PyYAML's, of a date 2025-02-30 or a tag
        raise RecipeError(f"{name}: not valid YAML: a value is not of the kind that it looks like ({first_line(error)[:-1]})") from error


def _extent(node: yaml.Node, known: dict[yaml.Node, tuple[float, float]]) -> tuple[float, float]:
    """Values and levels that a node stands for; one that holds itself stands for no end of them."""
    if node not in known:
        known[node] = (math.inf, math.inf)
        parts = [part for entry in node.value for part in (entry if isinstance(entry, tuple) else (entry,))]
        extents = [_extent(part, known) for part in parts if isinstance(part, yaml.Node)]
        # More digits than Python turns into text again are no number of a recipe.
        own = 1 if node.tag == "tag:yaml.org,2002:str" or extents or len(node.value) < _MAX_DIGITS else math.inf
        known[node] = (own + sum(values for values, _ in extents), 1 + max((levels for _, levels in extents), default=0))
    return known[node]


class _UniqueKeyLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<: *anchor`; what it brings in may be overridden
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):  # the loader itself refuses others
                if key in seen:
                    raise RecipeError(f"{self.name}: key {key!r} stands more than once, line {key_node.start_mark.line + 1}")
                seen.add(key)
        return super().construct_mapping(node, deep)


def load(argv: Sequence[str], method: str, check: Callable[[Path, dict[str, Any]], None] | None = None) -> Recipe:
    """Read a recipe and its overrides.

    Args:
        argv: ``[PATH, --key, value, …]``; ``--config PATH`` is accepted for the path, ``--key=value`` for the pairs.
        method: ``"grpo"``, ``"sft"``, ``"distill"``, ``"generate"`` or ``"evaluate"``.
        check: called with the path and all keys before TRL is imported, which takes seconds.

    Returns:
        The resolved recipe. Nothing has been loaded yet: no model, no data.

    Raises:
        RecipeError: names the file, the key, what was found and what would work.
    """
    path, overrides = _split_command_line(argv, method)
    recipe = Recipe(path=path, method=method, script=None, training=None, model=None)
    config = read_yaml(path)
    # Before TRL is imported: HF_HUB_OFFLINE and the like are read once, at import.
    os.environ.update(_environment(config.pop("env", {}), path))
    masked([config, overrides])  # from here on no message shows what is secret in them
    config = translate(config, str(path), recipe.warnings)
    overrides = translate(overrides, COMMAND_LINE, recipe.warnings)
    typed = set(overrides)
    reward_funcs = overrides.get("reward_funcs", config.get("reward_funcs")) if method in _REWARDED else None
    reward_names = [str(name) for name in _as_list(reward_funcs or [])]
    reward_fields = _reward_fields(reward_names, path)
    for source, values in ((str(path), config), (COMMAND_LINE, overrides)):
        _check_keys(source, values, method, reward_fields)
    if check is not None:
        check(path, {**config, **overrides})
    if overrides.get("smoke", config.get("smoke")) not in (None, False, "false", "False"):
        from r1_recipes.smoke import smoke_overrides

        # What the user typed stays on top, so one key of a smoke run can still be changed.
        overrides = {**smoke_overrides(path, method, {**config, **overrides}), **overrides}

    parser, hints = _parser(argument_types(method), reward_fields, path)
    actions: dict[str, Any] = {}
    for action in parser._actions:
        actions.setdefault(action.dest, action)  # the first of a pair such as --shuffle / --no_shuffle takes values
    settings: dict[str, Any] = {}
    for source, values in ((str(path), config), (COMMAND_LINE, overrides)):
        for key, value in values.items():
            settings[key] = _converted(actions[key], hints[key], value, source)
    recipe.adapted = follow_machine(recipe, settings, typed)
    parser.set_defaults_with_config(**settings)
    if "ACCELERATE_MIXED_PRECISION" in os.environ and {"bf16", "fp16"} & settings.keys():
        # accelerate's launcher says its file's precision by this variable, which would win over bf16: false. The recipe decides.
        os.environ["ACCELERATE_MIXED_PRECISION"] = "fp16" if settings.get("fp16") else "bf16" if settings.get("bf16") else "no"
    try:
        script, training, model, reward_values = parser.parse_args_into_dataclasses([], look_for_args_file=False)
    except RecipeError as error:
        raise RecipeError(_with_path(path, error)) from error
    except (ValueError, TypeError, ImportError) as error:
        raise RecipeError(f"{path}: {error}{_batch_hint(str(error), settings)}") from error
    recipe.script, recipe.training, recipe.model = script, training, model
    chosen = {key: value for key, value in dataclasses.asdict(reward_values).items() if value is not None}
    recipe.reward_params = {key: value for key, value in chosen.items() if key in reward_fields}
    # A run keeps a copy of its settings; a secret does not belong there.
    recipe.settings = {key: masked(_plain(namespace_value(recipe, key)), key) for key in settings if key != "hub_token"}
    _check(recipe, chosen, set(reward_fields))
    return recipe


def _environment(values: Any, path: Path) -> dict[str, str]:
    """What the recipe's ``env:`` sets.

    Raises:
        RecipeError: it is no mapping of names to plain values, or names what is not a recipe's to set.
    """
    if not isinstance(values, dict):
        raise RecipeError(f"{path}: env: a mapping of names to values, found {values!r}")
    for name, value in values.items():
        if name not in ENVIRONMENT:
            raise RecipeError(
                f"{path}: env: {name} is not a recipe's to set, since it may name a server, a key, a folder or a program; set it in "
                f"your shell. A recipe may set {', '.join(sorted(ENVIRONMENT))}"
            )
        if not isinstance(value, str | int | float) or "\0" in str(value):
            raise RecipeError(f"{path}: env: {name}: text or a number, found {value!r}")
    return {name: str(value) for name, value in values.items()}


def follow_machine(recipe: Recipe, settings: dict[str, Any], typed: set[str]) -> dict[str, Any]:
    """Set device, precision and vLLM in ``settings`` as a machine without an accelerator can run them, with one warning.

    Args:
        typed: keys of the command line, which stay as they are.

    Returns:
        The values before, by key.

    Raises:
        RecipeError: something would have to change, and ``strict_hardware`` is true.
    """
    import torch

    asked = {"use_cpu": False, "fp16": False, "vllm_mode": "colocate", **settings}
    asked["bf16"] = not asked["fp16"] if asked.get("bf16") is None else asked["bf16"]  # TRL's default
    if not isinstance(own_types(recipe.method)[1], str) or (torch.accelerator.is_available() and not asked["use_cpu"]):
        return {}
    changes: dict[str, Any] = {}
    if not asked["use_cpu"]:  # with use_cpu: true, the precision is the recipe's own choice for a CPU
        changes |= {"use_cpu": True} | {key: False for key in ("bf16", "fp16", "tf32") if asked.get(key)}
    if asked.get("use_vllm") and asked["vllm_mode"] == "colocate":
        changes["use_vllm"] = False
    changes = {key: value for key, value in changes.items() if key not in typed}
    if not changes:
        return {}
    before = {key: asked[key] for key in changes}
    why = "use_cpu is true" if asked["use_cpu"] else "no accelerator is visible"
    shown = ", ".join(f"{key}: {str(value).lower()}" for key, value in before.items())
    if settings.get("strict_hardware"):
        raise RecipeError(
            f"{recipe.path}: strict_hardware: {why}, and the run is to have {shown}. Fix: start it on a machine with a GPU, or pass "
            "--strict_hardware false to have these keys follow the machine"
        )
    now = ", ".join(f"{key}: {str(value).lower()}" for key, value in changes.items())
    recipe.warnings.append(
        f"{recipe.path}: {why}: the run has {now} instead of {shown}; expect it to be hundreds of times slower than on a GPU (--smoke "
        "checks a recipe in seconds; strict_hardware: true refuses instead)"
    )
    settings |= changes
    if "fp16" in changes:
        settings.setdefault("bf16", False)  # TRL takes the one if the other is off
    return before


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
            if path is None and not values and key in ("smoke", "retry_failed") and arguments[0].endswith((".yaml", ".yml")):
                break
            values.append(arguments.pop(0))
        if key == "config" and values:
            if path is not None or len(values) > 1:
                raise RecipeError(f"command line: --config {' '.join(values)}: one recipe a run; overrides are written --key value")
            path = Path(values[0])
            continue
        overrides[key] = True if not values else values[0] if len(values) == 1 else values
    if path is None:
        raise RecipeError(f"command line: no recipe given; python -m r1_recipes.{method} recipes/NAME.yaml [--key value …]")
    return path, overrides


def _is_flag(word: str) -> bool:
    return word.startswith("--") and len(word) > 2 and not word[2:3].isdigit()


def translate(values: dict[str, Any], source: str, warnings: list[str]) -> dict[str, Any]:
    """Keys of older TRL and of other projects as today's; each that is translated or ignored adds one sentence to ``warnings``.

    Args:
        values: a file's or a command line's keys. veRL's settings become a recipe, and what could not be carried over is in the warnings.
        source: what to call it in messages.
        warnings: of the recipe.

    Raises:
        RecipeError: a key that cannot be honoured, with its replacement, or an old key beside today's.
    """
    from r1_recipes import migration

    if migration.is_verl(values):
        found = migration.from_verl(values, source)
        warnings += [*found.notes, *(f"{source}: not carried over: {entry}" for entry in found.left)]
        values = found.settings
    values = migration.translate_shapes(values, source, warnings)
    # A file with older keys is another project's; in ours the number is one of tokens.
    if "cosine_max_len" in values and any(key in RENAMED or key in OBSOLETE for key in values):
        warnings.append(f"{source}: cosine_max_len: {values['cosine_max_len']} is read as tokens; open-r1 counts characters")
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
            if target in result:
                twins = " and ".join(old for old in values if RENAMED.get(old) == target)
                raise RecipeError(f"{source}: {twins} are both today's {target}, and both are set; keep one of them, as {target}")
            note = f" ({RENAME_NOTES[key]})" if key in RENAME_NOTES else ""
            warnings.append(f"{source}: {key} is read as {target}{note}")
        result[target] = value
    return result


def known_keys(method: str) -> set[str]:
    """Every key that a recipe of this method may have, but for the parameters of a ``module:reward``, which only a run imports."""
    from r1_recipes.rewards import REWARDS, reward_parameters

    return {*_fields(method), "env", *reward_parameters(REWARDS)}


def argument_types(method: str) -> tuple[type, type, type]:
    """The keys of a recipe: ours for the method, the trainer's (or our own settings), the model's."""
    # bitsandbytes warns of a kernel that only another package brings, for 4-bit models on CPUs.
    logging.getLogger("bitsandbytes.backends").setLevel(logging.ERROR)
    import trl

    own, config = own_types(method)
    return own, getattr(trl, config) if isinstance(config, str) else config, trl.ModelConfig


def own_types(method: str) -> tuple[type, type | str]:
    """The first two of :func:`argument_types`, those of TRL by name alone: TRL takes seconds to import."""
    from r1_recipes import arguments

    return {
        "grpo": (arguments.GRPORecipeArguments, "GRPOConfig"),
        "sft": (arguments.SFTRecipeArguments, "SFTConfig"),
        "distill": (arguments.DistillRecipeArguments, "DistillationConfig"),
        "generate": (arguments.GenerateRecipeArguments, arguments.GenerationSettings),
        "evaluate": (arguments.EvaluateRecipeArguments, arguments.SamplingSettings),
    }[method]


def _reward_fields(names: list[str], path: Path) -> dict[str, dataclasses.Field]:
    from r1_recipes.rewards import reward_parameters

    try:
        return reward_parameters(names)
    except ValueError as error:
        raise RecipeError(f"{path}: reward_funcs: {error}") from error


def _fields(method: str) -> dict[str, tuple[str, Any]]:
    """Annotation and default of every key but the rewards' parameters, without TRL."""
    found: dict[str, tuple[str, Any]] = {}
    for kind in (*own_types(method), "ModelConfig"):
        try:
            found |= config_fields(kind) if isinstance(kind, str) else _own_fields(kind)
        except LookupError:  # a version that keeps them elsewhere: slower
            import trl

            found |= {f.name: ("", f.default) for f in dataclasses.fields(getattr(trl, kind))}
    return found


def _own_fields(kind: type) -> dict[str, tuple[str, Any]]:
    # Not the fields' types, which Transformers' parser changes.
    written = {key: text for base in reversed(kind.__mro__) for key, text in vars(base).get("__annotations__", {}).items()}
    return {f.name: (written[f.name], f.default) for f in dataclasses.fields(kind)}


def _check_keys(source: str, values: dict[str, Any], method: str, reward_fields: dict[str, dataclasses.Field]) -> None:
    """Refuse unknown keys and impossible numbers before TRL is imported."""
    from r1_recipes.rewards import REWARDS, reward_parameters

    known = _fields(method)
    names = [*known, *reward_parameters(REWARDS), *reward_fields]
    for key, value in values.items():
        if key not in names:
            raise RecipeError(_unknown_key(source, key, names, method))
        annotation, default = known.get(key, ("", None))
        hint = _NUMBERS.get(annotation)
        if hint is None:
            continue
        kind = float if float in _kinds(hint) else int
        number = _converted(SimpleNamespace(dest=key, type=kind, choices=None, nargs=None), hint, value, source)
        _check_range(source, key, number, default)


def _check_range(source: str, key: str, value: float | None, default: Any) -> None:
    """Refuse a number that is not its key's default and lies outside of the key's interval."""
    interval = _RANGES.get(key)
    if interval is None or value is None or value == default:
        return
    low, high = map(float, interval[1:-1].split(","))
    if not low <= value <= high or (value == low and interval[0] == "(") or (value == high and interval[-1] == ")"):
        raise RecipeError(f"{source}: {key}: must be in {interval}, got {value:g}. Fix: leave it out for its default, {default}")


def _parser(types_: tuple[type, ...], reward_fields: dict[str, dataclasses.Field], path: Path) -> tuple[Any, dict[str, Any]]:
    """The parser of every key there is, and the keys' type hints."""
    from trl import TrlParser

    from r1_recipes.rewards import REWARDS, reward_parameters

    taken = {f.name for kind in types_ for f in dataclasses.fields(kind)}
    for name in sorted(taken & set(reward_fields)):
        raise RecipeError(f"{path}: reward_funcs: parameter {name!r} of a reward is a key of the trainer too; give it another name")
    fields = {**reward_parameters(REWARDS), **reward_fields}
    # `None` stands for "not set here": a parameter's default lives with its reward.
    parameters = dataclasses.make_dataclass(
        "RewardParameters", [(name, _field_type(f) | None, field(default=None)) for name, f in fields.items() if name not in taken]
    )
    kinds = [*types_, parameters]
    hints = {key: hint for kind in kinds for key, hint in typing.get_type_hints(kind).items()}
    return TrlParser(kinds, add_help=False, allow_abbrev=False), hints


def _field_type(f: dataclasses.Field) -> Any:
    # Under `from __future__ import annotations` the type is text; rewards take scalars, and lists of them.
    annotation = f.type if isinstance(f.type, str) else f.type.__name__ if isinstance(f.type, type) else str(f.type)
    scalar = re.search(r"\b(bool|int|float|str)\b", annotation)
    kind = {"bool": bool, "int": int, "float": float}.get(scalar[1] if scalar else "", str)
    return list[kind] if re.search(r"\b([Ll]ist|tuple|Sequence)\[", annotation) else kind


def _converted(action: Any, hint: Any, value: Any, source: str) -> Any:
    """A YAML or command-line value as the type of its key.

    Raises:
        RecipeError: names the source, the key, what was found and what would work.
    """
    key, kinds = action.dest, _kinds(hint)
    found = f"{source}: {key}: found {value!r}"
    if isinstance(value, str):
        # Of TRL's keys some take "none" as a word; of ours none does. In YAML a bare null is no text.
        unsets = str not in kinds or dict in kinds or (source == COMMAND_LINE and key in _our_keys())
        if value.lower() in ("none", "null") and type(None) in kinds and unsets:
            value = None
        elif value.lstrip()[:1] in ("{", "[") and (dict in kinds or action.type is dict):
            value = parse_yaml(value, f"{source}: {key}")
        elif value.lower() in ("true", "false") and key in _STR_OR_BOOL:
            value = value.lower() == "true"
    if value is None:
        if type(None) not in kinds:
            raise RecipeError(f"{found}, no value; leave the key out for its default")
        return None
    if isinstance(value, dict) and action.type is dict and list in kinds:
        value = [value]
    if isinstance(value, dict | list):
        if type(value) not in kinds:
            raise RecipeError(f"{found}; expected {_names(kinds)}")
        if isinstance(value, dict) or action.type is dict:
            return _with_numbers(value)
        return [_scalar(action, kinds, item, source) for item in value]
    converted = _scalar(action, kinds, value, source)
    return [converted] if action.nargs == "+" else converted


def _batch_hint(refusal: str, settings: dict[str, Any]) -> str:
    """What would fit, after TRL's sentence about a batch that groups of completions do not fill; else nothing."""
    numbers = [int(number) for number in re.findall(r"\d+", refusal)]
    if "generations used for evaluation" in refusal:
        device, processes, group = numbers
        per_device = next(size for size in range(device, device + group + 1) if size * processes % group == 0)
        return f" Fix: per_device_eval_batch_size: {per_device}, or num_generations_eval: 1"
    if "must be divisible by num_generations" in refusal:
        batch, group = numbers
        sizes = [size for size in range(2, batch + 1) if batch % size == 0]
        key = "generation_batch_size" if "generation_batch_size" in settings else "per_device_train_batch_size"
        more = math.lcm(batch, group) // batch * settings.get(key, batch)
        return " Fix: " + " or ".join([*([f"num_generations: {', '.join(map(str, sizes))}"] if sizes else []), f"{key}: {more}"])
    if "at least 2 generations" in refusal:
        return " Fix: num_generations: 8, and a batch that 8 divides"
    return ""


@functools.cache
def _our_keys() -> frozenset[str]:
    from r1_recipes.arguments import RecipeArguments

    return frozenset(f.name for f in dataclasses.fields(RecipeArguments))


def _scalar(action: Any, kinds: set[type], value: Any, source: str) -> Any:
    found = f"{source}: {action.dest}: found {value!r} ({type(value).__name__})"
    choices = list(action.choices or ())
    if isinstance(value, bool) and bool not in kinds:
        if value is False and "no" in choices:  # YAML reads a bare `no` as false
            return "no"
        if action.dest in _STR_OR_BOOL:
            return value
        if source == COMMAND_LINE and value is True:
            raise RecipeError(f"{source}: --{action.dest} needs a value: {_names(kinds)}")
        raise RecipeError(f"{found}; expected {_names(kinds)}" + ("; text such as no and on needs quotes" if str in kinds else ""))
    try:
        converted = action.type(value if isinstance(value, str) else str(value))
    except (ValueError, TypeError, OverflowError) as error:
        raise RecipeError(f"{found}; expected {_names({action.type} if action.type in (int, float, str) else kinds)}") from error
    except Exception as error:  # argparse.ArgumentTypeError, raised by Transformers' own converters
        raise RecipeError(f"{found}; {error}") from error
    if choices and converted not in choices:
        raise RecipeError(f"{found}; " + unknown_name("value", value, map(str, choices)))
    return converted


def _kinds(hint: Any) -> set[type]:
    """The plain types of a hint: ``dict[str, Any] | str | None`` -> ``{dict, str, NoneType}``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return {kind for part in typing.get_args(hint) for kind in _kinds(part)}
    return {typing.get_origin(hint) or hint}


def _names(kinds: set[type]) -> str:
    names = {list: "a list", dict: "a mapping"}
    return " or ".join(sorted(names.get(kind) or getattr(kind, "__name__", str(kind)) for kind in kinds if kind is not type(None)))


def _with_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def _unknown_key(source: str, key: str, known: Sequence[str], method: str) -> str:
    older = [name for name, target in RENAMED.items() if target == key]
    if older:  # the file may say it the old way
        return f"{source}: {key} (formerly {', '.join(older)}) is no key of {method}"
    close = nearest(key, known)
    hint = f" Nearest: {', '.join(close)}." if close else ""
    return f"{source}: unknown key {key!r} for {method}.{hint} Keys are those of trl's config, of ModelConfig, and docs/recipes.md."


def _check(recipe: Recipe, chosen_params: dict[str, Any], used: set[str]) -> None:
    """What can be known to be wrong before anything is loaded."""
    path, script, training = recipe.path, recipe.script, recipe.training
    if not recipe.model.model_name_or_path and recipe.method != "evaluate":  # a benchmark is told which models
        raise RecipeError(f"{path}: model_name_or_path: missing; a hub id or a local checkpoint folder")
    if 0 < getattr(training, "max_steps", 0) <= getattr(training, "warmup_steps", 0) and not script.smoke:
        recipe.warnings.append(
            f"{path}: warmup_steps {training.warmup_steps:g} of max_steps {training.max_steps}: learning_rate is reached late or never"
        )
    for key in sorted(set(chosen_params) - used):
        recipe.warnings.append(f"{path}: {key} is ignored: none of reward_funcs {getattr(script, 'reward_funcs', [])} has it")
    from r1_recipes.data import get_mapper
    from r1_recipes.formats import get_response_format

    try:
        fmt = get_response_format(script.response_format)
        if script.mapper != "auto":
            get_mapper(script.mapper, **(script.mapper_config or {}))
    except ValueError as error:
        raise RecipeError(f"{path}: {error}") from error
    if hasattr(training, "output_dir") and not training.output_dir:
        raise RecipeError(f"{path}: output_dir: found {training.output_dir!r}; the folder that the run is written to")
    if recipe.method == "distill" and not training.teacher_model_name_or_path:
        raise RecipeError(f"{path}: teacher_model_name_or_path: missing; the model whose distribution the student learns")
    if script.merge_adapters and not recipe.model.use_peft:
        raise RecipeError(f"{path}: merge_adapters: true without use_peft: true; there are no adapters to merge")
    if recipe.method == "generate":
        _check_generate(recipe)
    if recipe.method == "evaluate":
        _check_evaluate(recipe)
    if recipe.method not in _REWARDED:
        return
    from r1_recipes.rewards import REWARDS, check_task_rewards, get_reward_funcs

    if not script.reward_funcs and recipe.method == "grpo":
        raise RecipeError(f"{path}: reward_funcs: missing; name at least one of {', '.join(sorted(REWARDS))}")
    weights = getattr(training, "reward_weights", None)
    if weights and not any(weights):
        raise RecipeError(f"{path}: reward_weights: must have one that is not 0, got {weights}. Fix: leave it out for 1 each")
    if weights is not None and len(weights) != len(script.reward_funcs):
        raise RecipeError(
            f"{path}: reward_weights has {len(weights)} entries for {len(script.reward_funcs)} reward_funcs {script.reward_funcs}"
        )
    try:
        get_reward_funcs(script.reward_funcs, fmt, **recipe.reward_params)
        if getattr(script, "task_rewards", None) is not None:
            check_task_rewards(script.task_rewards, script.reward_funcs)
        elif getattr(script, "task_column", None) is not None:
            raise RecipeError("task_column has no meaning without task_rewards")
    except ValueError as error:
        raise RecipeError(_with_path(path, error)) from error


def _check_generate(recipe: Recipe) -> None:
    from r1_recipes.selection.rules import KeepRules

    script = recipe.script
    try:
        rules = KeepRules.parse(script.keep)
    except ValueError as error:
        raise RecipeError(_with_path(recipe.path, error)) from error
    if (rules.correct or rules.pass_rate) and not script.reward_funcs:
        raise RecipeError(f"{recipe.path}: keep: correct and pass_rate need reward_funcs; the first one says what is correct")
    if script.backend == "openai" and (script.max_prompt_tokens or script.max_solution_tokens or script.chat_template):
        raise RecipeError(
            f"{recipe.path}: backend openai: max_prompt_tokens, max_solution_tokens and chat_template need the model's tokenizer, which "
            "the server keeps; leave them out"
        )
    if script.backend != "openai" and recipe.training.seed is None:
        raise RecipeError(f"{recipe.path}: seed: found no value; only backend openai goes without")
    _refuse_idle_keys(recipe)


def _check_evaluate(recipe: Recipe) -> None:
    script, training = recipe.script, recipe.training
    if training.seed is None:
        raise RecipeError(f"{recipe.path}: seed: found no value; a whole number")
    if training.temperature == 0 and script.num_samples > 1:
        raise RecipeError(f"{recipe.path}: temperature: 0 gives {script.num_samples} equal samples a row; set num_samples: 0, or sample")
    _refuse_idle_keys(recipe)


def _refuse_idle_keys(recipe: Recipe) -> None:
    idle = [key for key in ("use_peft", "load_in_4bit", "load_in_8bit") if getattr(recipe.model, key)]
    idle += [
        key
        for key in ("unfrozen_parameters", "merge_adapters", "strict_hardware", "wandb_project", "wandb_entity", "wandb_run_group")
        if getattr(recipe.script, key)
    ]
    if idle:
        raise RecipeError(f"{recipe.path}: {', '.join(idle)}: of no effect on generation; leave out")


def _with_path(path: Path, error: Exception) -> str:
    text = str(error)
    return text if str(path) in text else f"{path}: {text}"


def _as_list(value: Any) -> list:
    return list(value) if isinstance(value, list | tuple) else [value]


def _plain(value: Any) -> Any:
    """A value as YAML can write it."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or (isinstance(value, bool | int | float | str) and type(value) in (bool, int, float, str)):
        return value
    return getattr(value, "value", None) or str(value)
