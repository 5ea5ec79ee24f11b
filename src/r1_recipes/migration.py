"""Other projects' files as recipes: ``python -m r1_recipes.migration FILE > recipes/mine.yaml`` writes one, and lists what it left out.

FILE is a YAML file of open-r1, alignment-handbook or veRL; a shell script that calls veRL (``key=value``) or a Transformers trainer
(``--key value``); or a Python script like grpo_demo, whose ``GRPOConfig(…)`` and ``LoraConfig(…)`` are read, never run. What has another
shape there is translated here; keys that only have another name are in :mod:`r1_recipes.recipe`, which reads such YAML files as they are.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from r1_recipes.errors import RecipeError

# grpo_demo's functions: our reward, and what theirs pays for all of it.
_DEMO_REWARDS = {
    "xmlcount_reward_func": ("xml_count", 0.5),
    "soft_format_reward_func": ("xml_soft_format", 0.5),
    "strict_format_reward_func": ("xml_strict_format", 0.5),
    "int_reward_func": ("integer_answer", 0.5),
    "correctness_reward_func": ("exact_match", 2.0),
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
    names = values.get("reward_funcs")
    if any(str(name) in _DEMO_REWARDS for name in _list(names or [])):
        _demo_rewards(values, [str(name) for name in _list(names)], source, warnings)
    return values


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
    "trainer.total_training_steps": "max_steps",
    "trainer.project_name": "wandb_project",
    "trainer.experiment_name": "run_name",
    "trainer.default_local_dir": "output_dir",
    "trainer.val_before_train": "eval_on_start",
}
# Only how fast, or where, veRL does it; nothing of the experiment.
_VERL_IGNORED = re.compile(
    r"(actor_rollout_ref\.(actor|ref)\.(fsdp|strategy|use_dynamic_bsz|ppo_max_token_len|log_prob|ulysses|megatron|use_torch_compile|checkpoint)"
    r"|actor_rollout_ref\.rollout\.(log_prob|name|max_num|enforce_eager|free_cache|enable_chunked|dtype|load_format|micro|max_model_len|val_kwargs|mode"
    r"|swap_space|disable_log|response_length|layered|prompt_length)"
    r"|actor_rollout_ref\.model\.(use_remove_padding|external_lib|use_shm|override_config|enable_activation_offload)"
    r"|actor_rollout_ref\.(hybrid_engine|nccl_timeout)"
    r"|data\.(val_batch_size|truncation|filter_overlong_prompts|return_raw|prompt_key|reward_fn_key|gen_batch_size|image_key|tokenizer|trust_remote)"
    r"|trainer\.(nnodes|n_gpus_per_node|resume_mode|critic_warmup|balance_batch|default_hdfs_dir|log_val|val_only|device|ray|remove_previous|max_)"
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
    (r"data\.val_files", "name a held-out split with dataset_test_split, or judge the checkpoint with python -m r1_recipes.evaluate"),
    (r"actor_rollout_ref\.actor\.clip_ratio_c", "TRL's delta bounds the ratio for negative advantages another way"),
)


def from_verl(values: dict[str, Any], source: str) -> Migration:
    """veRL's or TinyZero's settings as a GRPO recipe over veRL's own Parquet (mapper ``verl``), whose prompts go to the model as they are.

    Args:
        values: nested, or with dots, as on veRL's command line.
        source: what to call it in messages.
    """
    flat = {key.lstrip("+"): value for key, value in flatten(values).items()}
    migration = Migration()
    settings = migration.settings
    done = set()

    def take(key: str, default: Any = None) -> Any:
        done.add(key)
        value = flat.get(key)
        return default if value is None else value

    for key, ours in _VERL_KEYS.items():
        if (value := take(key)) is not None:
            settings[ours] = value
    _verl_data(take, settings, migration)
    _verl_batches(take, settings, migration)
    _verl_loss(take, settings, migration)
    _verl_rest(take, settings, migration)
    for key, value in flat.items():
        if key in done or _VERL_IGNORED.match(key):
            continue
        reason = next((reason for pattern, reason in _VERL_LEFT if re.match(pattern, key)), "no counterpart here")
        migration.left.append(f"{key}={value}: {reason}")
    migration.notes = [f"{source}: {note}" for note in migration.notes]
    return migration


def _verl_data(take: Any, settings: dict[str, Any], migration: Migration) -> None:
    files = _list(take("data.train_files") or [])
    if len(files) == 1:
        settings["dataset_name"] = files[0]
    elif files:
        settings["dataset_mixture"] = {"datasets": [{"id": name, "mapper": "verl"} for name in files]}
    countdown = any("countdown" in str(name) for name in files)
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


def _verl_batches(take: Any, settings: dict[str, Any], migration: Migration) -> None:
    """veRL counts prompts a step and a mini-batch, TRL completions a device and an update."""
    prompts, mini = take("data.train_batch_size"), take(_ACTOR + "ppo_mini_batch_size")
    micro = take(_ACTOR + "ppo_micro_batch_size_per_gpu")
    gpus = int(take("trainer.n_gpus_per_node", 8)) * int(take("trainer.nnodes", 1))
    total = take(_ACTOR + "ppo_micro_batch_size")
    if micro is None and total is not None:
        micro = max(1, int(total) // gpus)
    group = int(settings.get("num_generations", 1))
    if prompts is None:
        return
    prompts, micro = int(prompts), int(micro or 1)
    mini = int(mini or prompts)
    per_step, per_update = prompts * group, mini * group
    if per_update % (micro * gpus) or per_step % per_update:
        migration.left.append(
            f"data.train_batch_size={prompts}: {per_step} completions a step and {per_update} an update do not divide into {micro} a "
            f"device on {gpus} GPUs; set per_device_train_batch_size and gradient_accumulation_steps"
        )
        return
    settings["per_device_train_batch_size"] = micro
    settings["gradient_accumulation_steps"] = per_update // (micro * gpus)
    if per_step != per_update:
        settings["generation_batch_size"] = per_step
    migration.notes.append(
        f"{prompts} prompts x {group} = {per_step} completions a step, {per_update} an update: {micro} a device x "
        f"{settings['gradient_accumulation_steps']} accumulated x {gpus} GPUs"
    )


_LOSSES = {"token-mean": "dapo", "seq-mean-token-mean": "grpo", "seq-mean-token-sum": "dr_grpo", "seq-mean-token-sum-norm": "dr_grpo"}


def _verl_loss(take: Any, settings: dict[str, Any], migration: Migration) -> None:
    estimator = str(take("algorithm.adv_estimator", "grpo"))
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
    for prefix in ("reward_model.", "reward_model.reward_kwargs.", "custom_reward_function."):
        prefix += "overlong_buffer." if "kwargs" not in prefix else "overlong_buffer_cfg."
        wanted, length, factor = (take(prefix + key) for key in ("enable", "len", "penalty_factor"))
        if _true(wanted):
            settings["reward_funcs"] = [*settings["reward_funcs"], "soft_overlong_punishment"]
            settings["reward_weights"] = [1.0, float(factor or 1.0)]
            settings["soft_punish_cache"] = length
            settings["max_completion_len"] = settings.get("max_completion_length")


def _verl_rest(take: Any, settings: dict[str, Any], migration: Migration) -> None:
    engine = take(_ROLLOUT + "name", "vllm")
    settings["use_vllm"] = engine != "hf"
    if engine not in ("vllm", "hf"):
        migration.notes.append(f"{_ROLLOUT}name={engine}: completions are generated by vLLM here")
    top_k = take(_ROLLOUT + "top_k")
    if top_k is not None:
        settings["top_k"] = max(0, int(top_k))  # vLLM's -1 is all tokens, TRL's 0
    steps, share = take(_ACTOR + "optim.lr_warmup_steps"), take(_ACTOR + "optim.lr_warmup_steps_ratio")
    warmup = steps if steps is not None and int(steps) >= 0 else share
    if warmup is not None:
        settings["warmup_steps"] = warmup
    # veRL keeps the rate after its warm-up unless told otherwise.
    schedule = take(_ACTOR + "optim.warmup_style") or take(_ACTOR + "optim.lr_scheduler_type") or "constant"
    settings["lr_scheduler_type"] = "constant_with_warmup" if schedule == "constant" else schedule
    rank = take(_MODEL + "lora_rank")
    if rank and int(rank) > 0:
        settings |= {"use_peft": True, "lora_r": int(rank)}
        modules = take(_MODEL + "target_modules")
        if modules is not None:
            settings["lora_target_modules"] = modules
    save, test = take("trainer.save_freq"), take("trainer.test_freq")
    if save is not None:
        settings |= {"save_strategy": "steps", "save_steps": int(save)} if int(save) > 0 else {"save_strategy": "no"}
    if test is not None and int(test) > 0:
        migration.left.append(f"trainer.test_freq={test}: eval_strategy: steps and eval_steps: {test}, once there is a dataset_test_split")
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
    from r1_recipes.recipe import read_yaml

    if path.suffix in (".yaml", ".yml"):
        return read_yaml(path)
    if path.suffix not in (".sh", ".bash", ".py"):
        raise RecipeError(f"{path}: {path.suffix or 'no ending'} is not one of .yaml, .yml, .sh, .bash, .py")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from error
    values = _from_python(text, path) if path.suffix == ".py" else _from_shell(text)
    if not values:
        found = "a call of GRPOConfig, SFTConfig or LoraConfig" if path.suffix == ".py" else "key=value or --key value behind a command"
        raise RecipeError(f"{path}: no settings found; looked for {found}")
    return values


_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(\S*|\"[^\"]*\"|'[^']*'|\$\(\(.*\)\))\s*(?:#.*)?")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^{}]*))?\}|\$(\w+)")
_PRODUCT = re.compile(r"\$\(\(\s*(\d+(?:\s*\*\s*\d+)*)\s*\)\)")


def _from_shell(text: str) -> dict[str, Any]:
    """The arguments of a script's commands: ``a.b=value`` and ``--key value``; its own variables and products are filled in."""
    variables: dict[str, str] = {}

    def filled(word: str) -> str:
        for _ in range(8):  # a default may hold a variable again
            word = _VARIABLE.sub(lambda m: variables.get(m[1] or m[3], m[2] if m[2] is not None else m[0]), word)
        return _PRODUCT.sub(lambda m: str(_product(m[1])), word)

    values: dict[str, Any] = {}
    for line in text.replace("\\\n", " ").splitlines():
        assignment = _ASSIGNMENT.fullmatch(line.strip())
        if assignment:
            variables[assignment[1]] = filled(assignment[2].strip("\"'"))
            continue
        try:
            words = shlex.split(filled(line), comments=True)
        except ValueError:  # an open quote: no command that sets anything
            continue
        values.update(_arguments(words))
    return values


def _product(text: str) -> int:
    result = 1
    for factor in text.split("*"):
        result *= int(factor)
    return result


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The pairs of one command. What stands before the first of them is the command itself."""
    pending = list(words)
    while pending:
        word = pending.pop(0)
        if re.fullmatch(r"\+{0,2}[a-z_]\w*(?:\.\w+)+=.*", word, re.DOTALL):
            key, _, value = word.partition("=")
            yield key.lstrip("+"), _value(value)
        elif re.fullmatch(r"--[A-Za-z][\w-]*(?:=.*)?", word):
            key, equals, value = word[2:].partition("=")
            taken = [value] if equals else []
            while not equals and pending and not re.match(r"--[A-Za-z]", pending[0]):
                taken.append(pending.pop(0))
            yield key.replace("-", "_"), _value(taken[0]) if len(taken) == 1 else [_value(item) for item in taken] or True


# PyYAML reads 1e-6 as text.
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def _value(text: str) -> Any:
    if _EXPONENT.fullmatch(text):
        return float(text)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return text if isinstance(value, dict) and "{" not in text else value


def _from_python(text: str, path: Path) -> dict[str, Any]:
    """The literal keywords of ``GRPOConfig(…)``, ``SFTConfig(…)`` and ``LoraConfig(…)``, the model's name and the rewards; nothing is run.

    Raises:
        RecipeError: it is not Python.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise RecipeError(f"{path}: not Python: line {error.lineno}") from error
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
        elif called == "LoraConfig":
            lora = {"r": "lora_r", "target_modules": "lora_target_modules"}
            kept = {lora.get(key, key): _literal(value, names) for key, value in keywords.items() if key != "task_type"}
            values |= {"use_peft": True, **kept}
        elif called in ("GRPOTrainer", "SFTTrainer"):
            functions = _resolved(keywords.get("reward_funcs"), names)
            if isinstance(functions, ast.List):
                values["reward_funcs"] = [getattr(item, "id", None) or _literal(item, names) for item in functions.elts]
            model = _literal(keywords.get("model"), names)
            if isinstance(model, str):
                values["model_name_or_path"] = model
        elif called == "from_pretrained" and node.args and isinstance(name := _literal(node.args[0], names), str):
            values.setdefault("model_name_or_path", name)
        elif called == "load_dataset" and node.args and isinstance(name := _literal(node.args[0], names), str):
            values.setdefault("dataset_name", name)
            if len(node.args) > 1 and isinstance(config := _literal(node.args[1], names), str):
                values.setdefault("dataset_config", config)
    return {key: value for key, value in values.items() if value is not None}


# What a script computes.
_UNREAD = object()


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
    from r1_recipes.recipe import OBSOLETE, known_keys, translate

    values = read_file(path)
    unread = [key for key, value in values.items() if value is _UNREAD]
    values = {key: value for key, value in values.items() if value is not _UNREAD}
    migration = from_verl(values, str(path)) if is_verl(values) else Migration(values)
    migration.left += [f"{key}: an expression, which is not run" for key in unread]
    if path.suffix == ".py":
        _count_completions(values, migration.notes)
    settings = translate(migration.settings, str(path), migration.notes)
    known = known_keys(method, [str(name) for name in _list(settings.get("reward_funcs") or [])])
    migration.left += [
        f"{key}={value}: no key of {method} here" for key, value in settings.items() if key not in known and key not in OBSOLETE
    ]
    migration.settings = {key: value for key, value in settings.items() if key in known}
    return migration


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

    from r1_recipes.runtime import reported_errors, say

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
