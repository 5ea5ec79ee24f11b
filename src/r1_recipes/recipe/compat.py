"""YAML files of open-r1, alignment-handbook and older TRL as recipes: keys that are renamed, obsolete, refused, or of another shape.

Settings of veRL and ms-swift are refused: docs/migration.md says which keys of a recipe stand for them.
"""

from __future__ import annotations

from typing import Any

from r1_recipes.common.errors import RecipeError

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

# Neither is a key of a recipe; a section's name alone may be a parameter of somebody's reward.
_VERL_SECTIONS = {"actor_rollout_ref", "algorithm", "data", "trainer"}
_SWIFT_FLAGS = {"external_plugins", "rlhf_type", "train_type", "tuner_type"}


def translate(values: dict[str, Any], source: str, warnings: list[str]) -> dict[str, Any]:
    """Rewrite keys of older TRL and of other projects as today's.

    Args:
        values: a file's or a command line's keys; not changed.
        source: what to call it in messages.
        warnings: gets one sentence for each key that is rewritten or ignored.

    Raises:
        RecipeError: a key that cannot be honoured, with its replacement, or an old key beside today's.
    """
    _refuse_foreign(values, source)
    values = _translate_shapes(values, source, warnings)
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


def _refuse_foreign(values: dict[str, Any], source: str) -> None:
    """Refuse settings of veRL, nested or with dots, and of ms-swift."""
    for key, value in values.items():
        section, dot, _ = key.partition(".")
        verl = section in _VERL_SECTIONS and (dot or isinstance(value, dict))
        if verl or key in _SWIFT_FLAGS:
            project = "veRL" if verl else "ms-swift"
            raise RecipeError(f"{source}: {key} is a setting of {project}. Fix: write a recipe by the table in docs/migration.md")


def _translate_shapes(values: dict[str, Any], source: str, warnings: list[str]) -> dict[str, Any]:
    """Rewrite settings whose value has another shape here; the others stay as they are."""
    values = dict(values)
    if "dataset_mixer" in values:
        _read_mixer(values, source, warnings)
    if "dataset_configs" in values:
        configs = _as_list(values.pop("dataset_configs"))
        if len(configs) != 1:
            raise RecipeError(
                f"{source}: dataset_configs: must be one configuration, got {configs!r}. Fix: a config in each entry of dataset_mixture"
            )
        _set(values, "dataset_config", configs[0], "dataset_configs", source, warnings)
    if "use_flash_attention_2" in values and str(values.pop("use_flash_attention_2")).lower() == "true":
        _set(values, "attn_implementation", "flash_attention_2", "use_flash_attention_2", source, warnings)
    return values


def _read_mixer(values: dict[str, Any], source: str, warnings: list[str]) -> None:
    """Replace alignment-handbook's ``{id: share}``, ``dataset_splits`` and ``dataset_configs`` by keys of a recipe."""
    mixer = values.pop("dataset_mixer")
    try:
        shares = {str(name): float(share) for name, share in mixer.items()}
    except (AttributeError, TypeError, ValueError):
        shares = {}
    if not shares:
        raise RecipeError(f"{source}: dataset_mixer: must be {{id: share of its rows}}, got {mixer!r}")
    splits = [str(split) for split in _as_list(values.pop("dataset_splits", None) or ["train", "test"])]
    train, test = ([split for split in splits if part in split] for part in ("train", "test"))
    if not train:
        raise RecipeError(f"{source}: dataset_splits: must have one with 'train' in its name, got {splits}")
    configs = _as_list(values.pop("dataset_configs", None) or [None] * len(shares))
    if len(configs) != len(shares):
        raise RecipeError(f"{source}: dataset_configs: must be one for each set of dataset_mixer, got {configs} for {list(shares)}")
    if list(shares.values()) == [1.0] and len(train) == 1:
        [name] = shares
        _set(values, "dataset_name", name, "dataset_mixer", source, warnings)
        values["dataset_train_split"] = train[0]
        if configs[0] is not None:
            values["dataset_config"] = configs[0]
        if test:
            values["dataset_test_split"] = test[0]
        return
    parts = []
    for (name, share), config in zip(shares.items(), configs, strict=True):
        for split in train:
            parts.append({"id": name, "split": split, "weight": share} | ({} if config is None else {"config": config}))
    _set(values, "dataset_mixture", {"datasets": parts}, "dataset_mixer", source, warnings)
    if test:
        warnings.append(f"{source}: dataset_splits: {', '.join(test)}: a mixture is evaluated on rows of its own; set its test_split_size")


def _set(values: dict[str, Any], key: str, value: Any, old: str, source: str, warnings: list[str]) -> None:
    if key in values:
        raise RecipeError(f"{source}: {old} is today's {key}, and both are set; keep {key}")
    values[key] = value
    warnings.append(f"{source}: {old} is read as {key}: {value}")


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
