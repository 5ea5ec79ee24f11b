"""Other projects' files as recipes: ``python -m r1_recipes.migration FILE > recipes/mine.yaml`` writes one, and lists what it left out.

FILE is a YAML file of open-r1, alignment-handbook or veRL; a shell script that calls veRL (``key=value``) or a Transformers trainer
(``--key value``); or a Python script like grpo_demo, whose ``GRPOConfig(…)`` and trainer are read, never run. What has another
shape there is translated here; keys that only have another name are in :mod:`r1_recipes.recipe`, which reads such YAML files as they are.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.recipe.text import parse_yaml, read_yaml

# grpo_demo's functions: our reward, and what theirs pays for all of it.
_DEMO_REWARDS = {
    "xmlcount_reward_func": ("xml_count", 0.5),
    "soft_format_reward_func": ("xml_soft_format", 0.5),
    "strict_format_reward_func": ("xml_strict_format", 0.5),
    "int_reward_func": ("integer_answer", 0.5),
    "correctness_reward_func": ("exact_match", 2.0),
}

# What its script is for, and what TRL did then with a key that is not set.
_DEMO_SETTINGS = {
    "mapper": "gsm8k",
    "response_format": "reasoning_answer",
    "beta": 0.04,
    "loss_type": "grpo",
    "temperature": 0.9,
}


def translate_shapes(values: dict[str, Any], source: str, warnings: list[str]) -> dict[str, Any]:
    """Settings of open-r1, alignment-handbook and grpo_demo whose value has another shape here; the others as they are.

    Args:
        values: a file's or a command line's keys.
        source: what to call it in messages.
        warnings: gets one sentence a translated key.

    Raises:
        RecipeError: such a key with a value that cannot be read, or beside the key that it stands for.
    """
    values = dict(values)
    if "dataset_mixer" in values:
        _mixer(values, source, warnings)
    if "dataset_configs" in values:
        configs = _list(values.pop("dataset_configs"))
        if len(configs) != 1:
            raise RecipeError(
                f"{source}: dataset_configs: found {configs!r}; one for dataset_name, or a config in each entry of dataset_mixture"
            )
        _set(values, "dataset_config", configs[0], "dataset_configs", source, warnings)
    if "use_flash_attention_2" in values:
        wanted = values.pop("use_flash_attention_2")
        if str(wanted).lower() == "true":
            _set(values, "attn_implementation", "flash_attention_2", "use_flash_attention_2", source, warnings)
    if _of_demo(values.get("reward_funcs")):
        _demo_rewards(values, [str(name) for name in _list(values["reward_funcs"])], source, warnings)
    return values


def _of_demo(reward_funcs: Any) -> bool:
    return any(str(name) in _DEMO_REWARDS for name in _list(reward_funcs))


def _set(values: dict[str, Any], key: str, value: Any, old: str, source: str, warnings: list[str]) -> None:
    if key in values:
        raise RecipeError(f"{source}: {old} is today's {key}, and both are set; keep {key}")
    values[key] = value
    warnings.append(f"{source}: {old} is read as {key}: {value}")


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _mixer(values: dict[str, Any], source: str, warnings: list[str]) -> None:
    """alignment-handbook's ``{id: share}``, ``dataset_splits`` and ``dataset_configs`` as ours."""
    mixer = values.pop("dataset_mixer")
    if not isinstance(mixer, dict) or not mixer:
        raise RecipeError(f"{source}: dataset_mixer: found {mixer!r}; expected {{id: share of its rows}}")
    splits = [str(split) for split in _list(values.pop("dataset_splits", None) or ["train", "test"])]
    configs = _list(values.pop("dataset_configs", None) or [None] * len(mixer))
    train, test = ([split for split in splits if part in split] for part in ("train", "test"))
    if not train or len(configs) != len(mixer):
        raise RecipeError(
            f"{source}: dataset_mixer: needs a split with 'train' in its name and one of dataset_configs a set; found {splits}, {configs}"
        )
    if len(mixer) == 1 and len(train) == 1 and float(next(iter(mixer.values()))) == 1:
        [name] = mixer
        single = {"dataset_name": name, "dataset_config": configs[0], "dataset_train_split": train[0]}
        single["dataset_test_split"] = test[0] if test else None
        _set(values, "dataset_name", name, "dataset_mixer", source, warnings)
        values.update({key: value for key, value in single.items() if value is not None})
        return
    parts = [
        {"id": name, "split": split, "weight": float(share), **({"config": config} if config is not None else {})}
        for (name, share), config in zip(mixer.items(), configs, strict=True)
        for split in train
    ]
    _set(values, "dataset_mixture", {"datasets": parts}, "dataset_mixer", source, warnings)
    if test:
        warnings.append(f"{source}: dataset_splits: {', '.join(test)}: a mixture is evaluated on rows of its own; set its test_split_size")


def _demo_rewards(values: dict[str, Any], names: list[str], source: str, warnings: list[str]) -> None:
    """grpo_demo's functions by our names; what each pays goes into ``reward_weights``."""
    weights = [float(weight) for weight in _list(values.get("reward_weights") or [1.0] * len(names))]
    if len(weights) != len(names):
        return  # said better where it is checked
    pairs = [_DEMO_REWARDS.get(name, (name, 1.0)) for name in names]
    values["reward_funcs"] = [name for name, _ in pairs]
    values["reward_weights"] = [weight * paid for weight, (_, paid) in zip(weights, pairs, strict=True)]
    warnings.append(
        f"{source}: reward_funcs: grpo_demo's functions are read as {values['reward_funcs']}, weights {values['reward_weights']}"
    )


@dataclass
class Migration:
    """A file, translated.

    Attributes:
        settings: the recipe's keys.
        notes: one sentence for each key that is not carried over as it is.
        left: what has no counterpart here, ``key: reason``.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


_VERL_SECTIONS = {"data", "actor_rollout_ref", "algorithm", "critic", "reward_model", "trainer", "custom_reward_function"}


def is_verl(values: dict[str, Any]) -> bool:
    """Whether these are veRL's settings: its sections, nested or with dots."""
    return any(key.partition(".")[0] in _VERL_SECTIONS and ("." in key or isinstance(value, dict)) for key, value in values.items())


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
# veRL's key -> ours, the value as it is.
_VERL_KEYS = {
    "data.max_prompt_length": "max_prompt_tokens",
    "data.max_response_length": "max_completion_length",
    "data.shuffle": "shuffle_dataset",
    "data.seed": "seed",
    _MODEL + "path": "model_name_or_path",
    _MODEL + "enable_gradient_checkpointing": "gradient_checkpointing",
    _MODEL + "trust_remote_code": "trust_remote_code",
    _MODEL + "lora_alpha": "lora_alpha",
    _ACTOR + "optim.lr": "learning_rate",
    _ACTOR + "optim.weight_decay": "weight_decay",
    _ACTOR + "grad_clip": "max_grad_norm",
    _ACTOR + "clip_ratio": "epsilon",
    _ACTOR + "clip_ratio_low": "epsilon",
    _ACTOR + "clip_ratio_high": "epsilon_high",
    _ACTOR + "entropy_coeff": "entropy_coef",
    _ACTOR + "ppo_epochs": "num_iterations",
    _ROLLOUT + "n": "num_generations",
    _ROLLOUT + "temperature": "temperature",
    _ROLLOUT + "top_p": "top_p",
    _ROLLOUT + "gpu_memory_utilization": "vllm_gpu_memory_utilization",
    _ROLLOUT + "tensor_model_parallel_size": "vllm_tensor_parallel_size",
    "trainer.total_epochs": "num_train_epochs",
    "trainer.project_name": "wandb_project",
    "trainer.experiment_name": "run_name",
    "trainer.default_local_dir": "output_dir",
}
# Only how fast, or where, veRL does it; nothing of the experiment.
_VERL_IGNORED = re.compile(
    r"(actor_rollout_ref\.(actor|ref)\.(fsdp|strategy|use_dynamic_bsz|ppo_max_token_len|log_prob|ulysses|megatron|use_torch_compile|checkpoint)"
    r"|actor_rollout_ref\.rollout\.(log_prob|name|max_num|enforce_eager|free_cache|enable_chunked|dtype|load_format|micro|max_model_len|val_kwargs|mode"
    r"|swap_space|disable_log|response_length|layered|prompt_length)"
    r"|actor_rollout_ref\.model\.(use_remove_padding|external_lib|use_shm|enable_activation_offload)"
    r"|actor_rollout_ref\.(hybrid_engine|nccl_timeout)"
    r"|data\.(val_batch_size|truncation|filter_overlong_prompts|return_raw|gen_batch_size|tokenizer|trust_remote)"
    r"|trainer\.(nnodes|n_gpus_per_node|resume_mode|critic_warmup|balance_batch|default_hdfs_dir|log_val|device|ray|remove_previous|max_)"
    r"|ray_init|hydra|global_profiler)"
)
_VERL_LEFT = (
    (r"critic\.", "there is no critic here: GRPO takes the group's mean for a baseline"),
    (r"algorithm\.(gamma|lam)$", "of PPO's advantages; GRPO has none"),
    (r"algorithm\.(use_kl_in_reward|kl_ctrl|kl_penalty)", "KL is in the loss here (beta), not in the reward"),
    (
        r"algorithm\.filter_groups",
        "TRL does not sample again for groups without a signal; keep: {pass_rate: [low, high]} of generate drops such prompts first",
    ),
    (
        r"custom_reward_function\.(path|name)",
        "name the function in reward_funcs as my_module:my_reward; it is called with completions and columns",
    ),
    (r"reward_model\.", "see reward_funcs and the reward 'reward_model'"),
    (_MODEL + "override_config", "the model's own configuration is read; model_init_kwargs: {NAME: value} changes it"),
    (r"data\.image_key", "mapper verl reads no pictures; image_question does"),
    (r"data\.val_files", "name a held-out split with dataset_test_split, or judge the checkpoint with python -m r1_recipes.evaluate"),
    (r"actor_rollout_ref\.actor\.clip_ratio_c", "TRL's delta bounds the ratio for negative advantages another way"),
)


@dataclass
class _Verl:
    """veRL's settings with dots, ``done`` once they are taken. What the environment would fill in is ``left``."""

    flat: dict[str, Any]
    source: str
    left: list[str]
    done: set[str] = field(default_factory=set)

    def take(self, key: str, default: Any = None) -> Any:
        value = self.flat.get(key)
        if value is not None and _UNSET.search(str(value)):
            if key not in self.done:
                self.left.append(f"{key}={value}: {_unset(value)}, or {_VERL_KEYS.get(key, 'its key')} here")
            value = None
        self.done.add(key)
        return default if value is None else value

    def number(self, key: str, default: Any = None, least: int = -1, kind: type = int) -> Any:
        """A number that the recipe is computed with: without it, it would be another experiment."""
        self.done.add(key)
        value = self.flat.get(key)
        if value is None:
            return default
        try:
            if kind(value) >= least:
                return kind(value)
        except (TypeError, ValueError, OverflowError):
            pass
        hint = f"; {_unset(value)}" if _UNSET.search(str(value)) else ""
        raise RecipeError(f"{self.source}: {key}: found {value!r}; a number from {least} up is needed{hint}")


def from_verl(values: dict[str, Any], source: str) -> Migration:
    """veRL's or TinyZero's settings as a GRPO recipe over veRL's own Parquet (mapper ``verl``), whose prompts go to the model as they are.

    Args:
        values: nested, or with dots, as on veRL's command line.
        source: what to call it in messages.

    Raises:
        RecipeError: a number that batches and steps are counted with is none.
    """
    migration = Migration()
    settings = migration.settings
    verl = _Verl({key.lstrip("+"): value for key, value in flatten(values).items()}, source, migration.left)
    for key, ours in _VERL_KEYS.items():
        if (value := verl.take(key)) is not None:
            settings[ours] = value
    _verl_data(verl, settings, migration)
    updates = _verl_batches(verl, settings, migration)
    _verl_loss(verl, settings, migration)
    _verl_steps(verl, settings, migration, updates)
    _verl_rest(verl, settings, migration)
    for key, value in verl.flat.items():
        if key in verl.done or _VERL_IGNORED.match(key):
            continue
        reason = next((reason for pattern, reason in _VERL_LEFT if re.match(pattern, key)), "no counterpart here")
        migration.left.append(f"{key}={value}: {reason}")
    migration.notes = [f"{source}: {note}" for note in migration.notes]
    return migration


def _verl_data(verl: _Verl, settings: dict[str, Any], migration: Migration) -> None:
    countdown = "countdown" in str(verl.flat.get("data.train_files"))
    files = _list(verl.take("data.train_files", []))
    if len(files) == 1:
        settings["dataset_name"] = files[0]
    elif files:
        settings["dataset_mixture"] = {"datasets": [{"id": name, "mapper": "verl"} for name in files]}
    settings |= {"mapper": "verl", "system_prompt": ""}
    # What the data's own instruction asks for decides; a box or a last line is found without tags.
    settings["response_format"] = "r1_zero" if countdown else "boxed"
    settings["reward_funcs"] = ["countdown"] if countdown else ["accuracy"]
    if countdown:
        settings["prefill"] = "<think>"
        settings["chat_template"] = "{{ messages[-1]['content'].removesuffix('<think>') }}"
    migration.notes.append(
        f"added: mapper: verl, system_prompt: '', response_format: {settings['response_format']}, reward_funcs: "
        f"{settings['reward_funcs']}; veRL picks its scorer by data_source, here task_rewards does"
    )
    for key, column in (("data.prompt_key", "prompt"), ("data.reward_fn_key", "data_source")):
        if (found := verl.take(key, column)) != column:
            migration.left.append(f"{key}={found}: mapper verl reads {column!r}; rename the column in the data")


def _verl_batches(verl: _Verl, settings: dict[str, Any], migration: Migration) -> int:
    """veRL counts prompts a step and a mini-batch, TRL completions a device and an update. Returns the updates of one step.

    What veRL has for a key that the file leaves out counts, too.
    """
    group = verl.number(_ROLLOUT + "n", 1, least=1)
    if group == 1:
        from trl import GRPOConfig

        group = GRPOConfig.num_generations
        migration.left.append(
            f"{_ROLLOUT}n=1: GRPO compares completions of one prompt; num_generations: {group}, TRL's default, is written: "
            f"as many prompts a step, {group} times the completions"
        )
    settings["num_generations"] = group
    prompts = verl.number("data.train_batch_size", 1024, least=1)
    mini = verl.number(_ACTOR + "ppo_mini_batch_size", min(256, prompts), least=1)
    gpus = verl.number("trainer.n_gpus_per_node", 8, least=1) * verl.number("trainer.nnodes", 1, least=1)
    total = verl.number(_ACTOR + "ppo_micro_batch_size", gpus, least=1)
    micro = verl.number(_ACTOR + "ppo_micro_batch_size_per_gpu", max(1, total // gpus), least=1)
    updates = -(-prompts // mini) * verl.number(_ACTOR + "ppo_epochs", 1, least=1)
    per_step, per_update = prompts * group, mini * group
    if per_update % (micro * gpus) or per_step % per_update:
        migration.left.append(
            f"data.train_batch_size={prompts}: {per_step} completions a step and {per_update} an update do not divide into {micro} a "
            f"device on {gpus} GPUs; set per_device_train_batch_size and gradient_accumulation_steps"
        )
        return updates
    settings["per_device_train_batch_size"] = micro
    settings["gradient_accumulation_steps"] = per_update // (micro * gpus)
    if per_step != per_update:
        settings["generation_batch_size"] = per_step
    migration.notes.append(
        f"{prompts} prompts x {group} = {per_step} completions a step, {per_update} an update: {micro} a device x "
        f"{settings['gradient_accumulation_steps']} accumulated x {gpus} GPUs"
    )
    return updates


_LOSSES = {"token-mean": "dapo", "seq-mean-token-mean": "grpo", "seq-mean-token-sum": "dr_grpo", "seq-mean-token-sum-norm": "dr_grpo"}


def _verl_loss(verl: _Verl, settings: dict[str, Any], migration: Migration) -> None:
    take = verl.take
    estimator = str(take("algorithm.adv_estimator", "gae"))
    if estimator != "grpo":
        migration.left.append(
            f"algorithm.adv_estimator={estimator}: this is GRPO, which has no critic; the same data and rewards, another baseline"
        )
    use_kl, coefficient = take(_ACTOR + "use_kl_loss", False), take(_ACTOR + "kl_loss_coef")
    settings["beta"] = (coefficient if coefficient is not None else 0.001) if _true(use_kl) else 0.0
    kind = take(_ACTOR + "kl_loss_type", "low_var_kl")
    if _true(use_kl) and kind not in ("low_var_kl", "k3"):
        migration.left.append(f"{_ACTOR}kl_loss_type={kind}: TRL's estimate of the KL is low_var_kl")
    mode = take(_ACTOR + "loss_agg_mode")
    token_level = take(_ACTOR + "use_token_level_loss")
    if mode is not None and mode not in _LOSSES:
        migration.left.append(f"{_ACTOR}loss_agg_mode={mode}: no loss_type of TRL's is that")
    settings["loss_type"] = _LOSSES.get(str(mode)) or ("grpo" if token_level is not None and not _true(token_level) else "dapo")
    if not _true(take("algorithm.norm_adv_by_std_in_grpo", True)):
        settings["scale_rewards"] = "none"
    # math_dapo's scorer pays 1 and -1, accuracy 1 and 0; what is the same for a whole group does not matter, the distance does.
    doubled = settings["reward_funcs"] == ["accuracy"] and (
        verl.flat.get("reward_model.reward_manager") == "dapo"
        or bool(re.search("dapo[-_]math|math[-_]dapo", str(verl.flat.get("data.train_files")).lower()))
    )
    if doubled:
        verl.done.add("reward_model.reward_manager")
        settings["reward_weights"] = [2.0]
        migration.notes.append(
            "reward_weights: accuracy has 2.0: veRL's scorer of math_dapo pays 1 and -1, accuracy 1 and 0 (gsm8k's pays 1 and 0, too: 1.0)"
        )
    for prefix in ("reward_model.", "reward_model.reward_kwargs.", "custom_reward_function."):
        prefix += "overlong_buffer." if "kwargs" not in prefix else "overlong_buffer_cfg."
        verl.done |= {prefix + "len", prefix + "penalty_factor"}
        if _true(take(prefix + "enable")):
            settings["reward_funcs"] = [*settings["reward_funcs"], "soft_overlong_punishment"]
            penalty = verl.number(prefix + "penalty_factor", 1.0, kind=float)
            settings["reward_weights"] = [2.0 if doubled else 1.0, penalty]
            settings["soft_punish_cache"] = verl.number(prefix + "len", least=1)
            settings["max_completion_len"] = settings.get("max_completion_length")


def _verl_steps(verl: _Verl, settings: dict[str, Any], migration: Migration, updates: int) -> None:
    """veRL's steps are rollouts, TRL's are optimizer updates."""
    counted = {
        "max_steps": verl.number("trainer.total_training_steps", 0),
        "save_steps": verl.number("trainer.save_freq", 0),
        "warmup_steps": verl.number(_ACTOR + "optim.lr_warmup_steps", -1),
    }
    steps = {key: count * updates for key, count in counted.items() if count > 0}
    settings |= steps
    if verl.flat.get("trainer.save_freq") is not None:
        settings["save_strategy"] = "steps" if "save_steps" in steps else "no"
    share = verl.take(_ACTOR + "optim.lr_warmup_steps_ratio")
    if counted["warmup_steps"] < 0 and share is not None:
        settings["warmup_steps"] = share
    if updates > 1 and steps:
        found = ", ".join(f"{key} {counted[key]} x {updates} = {count}" for key, count in steps.items())
        migration.notes.append(f"a step of veRL's is {updates} updates, which are TRL's steps: {found}")
    if (test := verl.number("trainer.test_freq", 0)) > 0:
        migration.left.append(
            f"trainer.test_freq={test}: eval_strategy: steps and eval_steps: {test * updates}, once there is a dataset_test_split"
        )
    if _true(verl.take("trainer.val_before_train")):
        migration.left.append("trainer.val_before_train=True: eval_on_start: true, once there is a dataset_test_split")
    if _true(verl.take("trainer.val_only")):
        migration.left.append("trainer.val_only=True: this trains; python -m r1_recipes.evaluate judges a model")


def _verl_rest(verl: _Verl, settings: dict[str, Any], migration: Migration) -> None:
    take = verl.take
    engine = take(_ROLLOUT + "name", "vllm")
    settings["use_vllm"] = engine != "hf"
    if engine not in ("vllm", "hf"):
        migration.notes.append(f"{_ROLLOUT}name={engine}: completions are generated by vLLM here")
    top_k = verl.number(_ROLLOUT + "top_k")
    if top_k is not None:
        settings["top_k"] = max(0, top_k)  # vLLM's -1 is all tokens, TRL's 0
    # veRL keeps the rate after its warm-up unless told otherwise.
    schedule = take(_ACTOR + "optim.warmup_style") or take(_ACTOR + "optim.lr_scheduler_type") or "constant"
    settings["lr_scheduler_type"] = "constant_with_warmup" if schedule == "constant" else schedule
    rank = verl.number(_MODEL + "lora_rank", 0)
    if rank > 0:
        settings |= {"use_peft": True, "lora_r": rank}
        modules = take(_MODEL + "target_modules")
        if modules is not None:
            settings["lora_target_modules"] = modules
    loggers = [str(name) for name in _list(take("trainer.logger") or [])]
    trackers = [name for name in loggers if name in ("wandb", "tensorboard", "trackio")]
    settings["report_to"] = trackers or "none"
    settings.setdefault("output_dir", f"outputs/{settings.get('run_name', 'verl')}")
    settings["bf16"] = True


def _true(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes")


def read_file(path: Path) -> dict[str, Any]:
    """What a YAML file, a shell script or a Python script sets, with its own keys.

    Raises:
        RecipeError: no such file, another ending, or nothing in it that is a setting.
    """
    if path.suffix in (".yaml", ".yml"):
        return read_yaml(path)
    if path.suffix not in (".sh", ".bash", ".py"):
        raise RecipeError(f"{path}: {path.suffix or 'no ending'} is not one of .yaml, .yml, .sh, .bash, .py")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from error
    values = _from_python(text, path) if path.suffix == ".py" else _from_shell(text, path)
    if not values:
        found = "a call of GRPOConfig, SFTConfig or a trainer" if path.suffix == ".py" else "key=value or --key value behind a command"
        raise RecipeError(f"{path}: no settings found; looked for {found}")
    return values


_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(\S*|\"[^\"]*\"|'[^']*'|\$\(\(.*\)\))\s*(?:#.*)?")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^{}]*))?\}|\$(\w+)")
_ARITHMETIC = re.compile(r"\$\(\((.*?)\)\)")
# Quoted text, which stays; a comment, and what is redirected where, which go; the end of a command.
_SHELL = re.compile(r"""("(?:\\.|[^"\\])*"|'[^']*'|\\.)|(?<!\S)\#.*|(?:(?<!\S)\d+|&)?[<>]+&?\s*(?:"[^"]*"|'[^']*'|[^\s<>|&;"'])*|[|&;]+""")
_MAX_WORD = 100_000
# What only a shell, or its environment, would fill in.
_UNSET = re.compile(r"\$(\w+)|\$\{([\w.]+)|\$[({]")


def _unset(value: Any) -> str:
    names = sorted({m[1] or m[2] for m in _UNSET.finditer(str(value)) if m[1] or m[2]})
    return f"set {', '.join(names)} in the file" if names else "only a shell knows it; write its value"


def _from_shell(text: str, path: Path) -> dict[str, Any]:
    """The arguments of a script's commands: ``a.b=value`` and ``--key value``; its own variables and sums are filled in.

    Raises:
        RecipeError: a variable that holds others, and so on, grows beyond any setting.
    """
    variables: dict[str, str] = {}

    def filled(word: str) -> str:
        for _ in range(8):  # a default may hold a variable again, for which a name without braces makes way
            word = _VARIABLE.sub(lambda m: variables.get(m[1] or m[3], m[2] if m[2] is not None else f"${m[1] or m[3]}"), word)
            if len(word) > _MAX_WORD:
                raise RecipeError(f"{path}: its variables, filled in, make a word of over {_MAX_WORD} characters; that is no setting")
        return _ARITHMETIC.sub(lambda m: _computed(m, variables), word)

    values: dict[str, Any] = {}
    for line in text.replace("\\\n", " ").splitlines():
        assignment = _ASSIGNMENT.fullmatch(line.strip())
        if assignment:
            variables[assignment[1]] = filled(assignment[2].strip("\"'"))
            continue
        for command in _SHELL.sub(lambda m: m[1] or ("\n" if m[0].strip("|&;") == "" else " "), filled(line)).split("\n"):
            try:
                words = shlex.split(command)
            except ValueError:  # an open quote: no command that sets anything
                continue
            values.update(_arguments(words))
    return values


_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv, ast.Mod: operator.mod}


def _computed(expression: re.Match[str], variables: dict[str, str]) -> str:
    """The value of ``$((…))`` over whole numbers and the script's own names; the text as it stands where it is anything else."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        return int(variables[node.id]) if isinstance(node, ast.Name) else int(ast.literal_eval(node))

    try:
        return str(value(ast.parse(expression[1].replace("$", "").strip(), mode="eval").body))
    except (ValueError, TypeError, SyntaxError, KeyError, ArithmeticError, RecursionError, MemoryError):
        return expression[0]


_DOTTED = re.compile(r"\+{0,2}[a-z_]\w*(?:\.\w+)+=.*", re.DOTALL)


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The pairs of one command. What stands before the first of them is the command itself."""
    pending = list(words)
    while pending:
        word = pending.pop(0)
        if _DOTTED.fullmatch(word):
            key, _, value = word.partition("=")
            yield key.lstrip("+"), _value(value)
        elif re.fullmatch(r"--[A-Za-z][\w-]*(?:=.*)?", word):
            key, equals, value = word[2:].partition("=")
            taken = [value] if equals else []
            while not equals and pending and not (re.match(r"--([A-Za-z]|$)|\$[@*]$", pending[0]) or _DOTTED.fullmatch(pending[0])):
                taken.append(pending.pop(0))
            yield key.replace("-", "_"), _value(taken[0]) if len(taken) == 1 else [_value(item) for item in taken] or True


# PyYAML reads 1e-6 as text.
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def _value(text: str) -> Any:
    if _EXPONENT.fullmatch(text):
        return float(text)
    try:
        value = parse_yaml(text, text)
    except RecipeError:
        return text
    return text if isinstance(value, dict) and "{" not in text else value


def _from_python(text: str, path: Path) -> dict[str, Any]:
    """The literal keywords of ``GRPOConfig(…)``, ``SFTConfig(…)`` and a trainer's ``LoraConfig(…)``, model, rewards; nothing is run.

    Raises:
        RecipeError: it is not Python.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise RecipeError(f"{path}: not Python: line {error.lineno}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL, or more brackets than anybody writes
        raise RecipeError(f"{path}: not Python: {first_line(error)}") from error
    names = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    values: dict[str, Any] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        if called in ("GRPOConfig", "SFTConfig", "TrainingArguments"):
            values.update((key, _literal(value, names, _UNREAD)) for key, value in keywords.items())
        elif called == "get_peft_model":
            values |= _lora(node.args[1] if len(node.args) > 1 else keywords.get("peft_config"), names)
        elif called in ("GRPOTrainer", "SFTTrainer"):
            values |= _lora(keywords.get("peft_config"), names)
            functions = _resolved(keywords.get("reward_funcs"), names)
            if isinstance(functions, ast.List):
                values["reward_funcs"] = [getattr(item, "id", None) or _literal(item, names) for item in functions.elts]
            model = _literal(keywords.get("model"), names)
            if isinstance(model, str):
                values["model_name_or_path"] = model
        elif called == "from_pretrained" and node.args and isinstance(name := _literal(node.args[0], names), str):
            values.setdefault("model_name_or_path", name)
            for key in (key for key in ("torch_dtype", "dtype", "attn_implementation") if key in keywords):
                values.setdefault(key, _dtype(keywords[key]) or _literal(keywords[key], names, _UNREAD))
        elif called == "load_dataset" and node.args and isinstance(name := _literal(node.args[0], names), str):
            values.setdefault("dataset_name", name)
            if len(node.args) > 1 and isinstance(config := _literal(node.args[1], names), str):
                values.setdefault("dataset_config", config)
    if _of_demo(values.get("reward_funcs")):
        values.setdefault("system_prompt", _literal(names.get("SYSTEM_PROMPT"), names))
    return {key: value for key, value in values.items() if value is not None}


# What a script computes.
_UNREAD = object()


def _dtype(node: ast.expr) -> str | None:
    """``torch.bfloat16`` as ``bfloat16``."""
    return node.attr if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "torch" else None


def _lora(node: ast.expr | None, names: dict[str, ast.expr]) -> dict[str, Any]:
    """What is passed for ``peft_config``; a ``LoraConfig(…)`` that is only written trains nothing."""
    if node is None:
        return {}
    node = _resolved(node, names)
    if isinstance(node, ast.Constant):  # None
        return {}
    if not (isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "LoraConfig"):
        return {"peft_config": _UNREAD}
    lora = {"r": "lora_r", "target_modules": "lora_target_modules"}
    kept = {lora.get(k.arg, k.arg): _literal(k.value, names, _UNREAD) for k in node.keywords if k.arg and k.arg != "task_type"}
    return {"use_peft": True, **kept}


def _resolved(node: ast.expr | None, names: dict[str, ast.expr]) -> ast.expr | None:
    return names.get(node.id) if isinstance(node, ast.Name) else node


def _literal(node: ast.expr | None, names: dict[str, ast.expr], otherwise: Any = None) -> Any:
    """A literal, or the one that a name stands for; ``otherwise`` for anything that would have to be run."""
    node = _resolved(node, names)
    try:
        return otherwise if node is None else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return otherwise


def migrate(path: Path, method: str) -> Migration:
    """Translate a file; what the method has no key for is listed.

    Args:
        path: see :func:`read_file`.
        method: ``"grpo"`` or ``"sft"``.

    Raises:
        RecipeError: the file cannot be read, or holds what would make another experiment if it were left out.
    """
    from r1_recipes.recipe.compat import OBSOLETE, translate
    from r1_recipes.recipe.keys import known_keys

    values = read_file(path)
    unread = [key for key, value in values.items() if value is _UNREAD]
    values = {key: value for key, value in values.items() if value is not _UNREAD}
    migration = from_verl(values, str(path)) if is_verl(values) else Migration(dict(values))
    migration.left += [f"{key}: an expression, which is not run" for key in unread]
    if path.suffix == ".py":
        _count_completions(migration.settings, migration.notes)
        _demo_settings(migration.settings, migration.notes)
    elif path.suffix in (".sh", ".bash"):
        for key in [key for key, value in migration.settings.items() if _UNSET.search(str(value))]:
            value = migration.settings.pop(key)
            migration.left.append(f"{key}={value}: {_unset(value)}, or the key here")
    settings = translate(migration.settings, str(path), migration.notes)
    known = known_keys(method)
    migration.left += [
        f"{key}={value}: no key of {method} here" for key, value in settings.items() if key not in known and key not in OBSOLETE
    ]
    migration.settings = {key: value for key, value in settings.items() if key in known}
    if not migration.settings:
        raise RecipeError(f"{path}: no key of {method} in it; found {', '.join(values)}")
    return migration


def _demo_settings(values: dict[str, Any], notes: list[str]) -> None:
    """What grpo_demo's script says in code, or left to the TRL of its day."""
    if _of_demo(values.get("reward_funcs")):
        added = {key: value for key, value in _DEMO_SETTINGS.items() if key not in values}
        values |= added
        said = ", ".join(f"{key}: {value}" for key, value in added.items())
        notes.append(f"added: {said}; what grpo_demo's code does, and TRL's defaults then")


def _count_completions(values: dict[str, Any], notes: list[str]) -> None:
    """Early TRL's ``per_device_train_batch_size`` counted prompts; a batch that holds no whole group today was written for it."""
    size, group = values.get("per_device_train_batch_size"), values.get("num_generations")
    if not (isinstance(size, int) and isinstance(group, int)) or size * values.get("gradient_accumulation_steps", 1) % group == 0:
        return
    values["per_device_train_batch_size"] = size * group
    notes.append(f"per_device_train_batch_size: {size} prompts are {size * group} completions, which today's TRL counts")


def main(argv: Sequence[str] | None = None) -> None:
    """``python -m r1_recipes.migration FILE [--method sft]``: the recipe on stdout, with what was left out as comments."""
    import sys

    from r1_recipes.common.console import reported_errors, say

    with reported_errors():
        words = list(sys.argv[1:] if argv is None else argv)
        method = "grpo"
        if "--method" in words and words.index("--method") + 1 < len(words):
            method = words.pop(words.index("--method") + 1)
            words.remove("--method")
        if len(words) != 1 or words[0].startswith("-") or method not in ("grpo", "sft"):
            raise RecipeError("usage: python -m r1_recipes.migration FILE [--method grpo|sft] > recipes/mine.yaml")
        path = Path(words[0])
        migration = migrate(path, method)
        lines = [f"# {path}, translated for {method}; `--smoke` and preflight say whether it runs.", "#"]
        lines += [f"# {note.removeprefix(f'{path}: ')}" for note in migration.notes]
        lines += ["#", "# Not carried over:", *(f"#   {entry}" for entry in migration.left)] if migration.left else []
        say("\n".join(lines) + "\n\n" + yaml.safe_dump(migration.settings, sort_keys=False, allow_unicode=True, width=140).rstrip())


if __name__ == "__main__":
    main()
