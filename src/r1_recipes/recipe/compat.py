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
}

# Keys that no longer do anything; the run goes on without them.
OBSOLETE = {
    "overwrite_output_dir": "an unfinished run of the same recipe is resumed; delete the folder to start afresh",
    "save_safetensors": "checkpoints are always safetensors",
    "vllm_device": "with vllm_mode: colocate each process generates on its own device",
    "vllm_dtype": "vLLM takes the model's dtype",
    "vllm_enable_prefix_caching": "vLLM caches prefixes by default",
    "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR instead",
    "group_by_length": "write train_sampling_strategy: group_by_length, or packing: true for SFT",
    "overwrite_hub_revision": "pushing is Transformers' own; set push_to_hub and hub_revision",
    "push_to_hub_revision": "pushing is Transformers' own; set push_to_hub and hub_revision",
    "benchmarks": "evaluate the checkpoint after the run",
    "callbacks": "pushing is Transformers' own; set push_to_hub and hub_strategy",
    "dataset_streaming": "rows are memory-mapped, not streamed",
    "preprocessing_num_workers": "rows are mapped by one process; dataset_num_proc is how many tokenize for SFT",
    "dataset_preprocessing_num_proc": "rows are mapped by one process; dataset_num_proc is how many tokenize for SFT",
    "auto_insert_empty_system_msg": "write system_prompt",
    "truncation_side": "longer prompts are dropped and counted (max_prompt_tokens), not cut",
    "model_code_revision": "set model_revision",
    "num_processes": "accelerate launch says how many",
}

# Keys that cannot be honoured; running without them would be another experiment.
REFUSED = {
    "reward_model_path": "write reward_funcs: [reward_model] and reward_model: PATH",
    "reward_model_name_or_path": "write reward_funcs: [reward_model] and reward_model: PATH",
    "code_eval_test_batch_size": "of Codeforces' problems, which no reward here reads; code runs parallel_code_exec_per_proc cases at once",
    "code_eval_scoring_mode": "write reward_funcs: [code] for the share of cases passed, [binary_code] for all or nothing",
    "e2b_router_url": "programs run on this machine: code_provider: bubblewrap",
    "morph_router_url": "programs run on this machine: code_provider: bubblewrap",
    "ioi_provider": "IOI's graders are not here; code and binary_code compare what a program prints",
    "tokenizer_name_or_path": "the tokenizer is the model's own; save another one into the model's folder, or set chat_template",
    "dataset_splits": "write dataset_train_split and dataset_test_split, or split in each entry of dataset_mixture",
    "text_column": "texts without a question are not what is trained on here; name prompt_column and reasoning_column",
}

# Neither is a key of a recipe; a section's name alone may be a parameter of somebody's reward.
_VERL_SECTIONS = {"actor_rollout_ref", "algorithm", "data", "trainer"}
_SWIFT_FLAGS = {"external_plugins", "rlhf_type", "train_type", "tuner_type"}


def translate(values: dict[str, Any], source: str, warnings: list[str]) -> dict[str, Any]:
    """Rewrite keys of older TRL and of other projects as today's.

    Args:
        source: what to call the file or command line in messages.
        warnings: gets one sentence for each key that is rewritten or ignored.

    Raises:
        RecipeError: a key that cannot be honoured, with its replacement, or an old key beside today's.
    """
    _refuse_foreign(values, source)
    # A file with older keys is another project's; in ours the number is one of tokens.
    if "cosine_max_len" in values and any(key in RENAMED or key in OBSOLETE for key in values):
        warnings.append(f"{source}: cosine_max_len: {values['cosine_max_len']} is read as tokens; open-r1 counts characters")
    result: dict[str, Any] = {}

    def put(old: str, key: str, value: Any) -> None:
        if key in result or (key != old and key in values):
            raise RecipeError(f"{source}: {old} is today's {key}, and both are set. Fix: keep {key} alone")
        result[key] = value

    shapes = _read_shapes(values, source, warnings)
    for key, value in values.items():
        if key in REFUSED and key not in shapes:
            raise RecipeError(f"{source}: {key} is not supported: {REFUSED[key]}")
        if key in OBSOLETE:
            warnings.append(f"{source}: {key} is ignored: {OBSOLETE[key]}")
        elif key in shapes:
            for new, read in shapes[key].items():
                put(key, new, read)
                warnings.append(f"{source}: {key} is read as {new}: {read}")
        else:
            put(key, RENAMED.get(key, key), value)
            if key in RENAMED:
                warnings.append(f"{source}: {key} is read as {RENAMED[key]}")
    return result


def _refuse_foreign(values: dict[str, Any], source: str) -> None:
    for key, value in values.items():
        section, dot, _ = key.partition(".")
        verl = section in _VERL_SECTIONS and (dot or isinstance(value, dict))
        if verl or key in _SWIFT_FLAGS:
            project = "veRL" if verl else "ms-swift"
            raise RecipeError(f"{source}: {key} is a setting of {project}. Fix: write a recipe by the table in docs/migration.md")


def _read_shapes(values: dict[str, Any], source: str, warnings: list[str]) -> dict[str, dict[str, Any]]:
    """Return what settings whose value has another shape here stand for, by their key."""
    read: dict[str, dict[str, Any]] = {}
    configs = values.get("dataset_configs")
    if "dataset_mixer" in values:
        read = {"dataset_mixer": _read_mixer(values, source, warnings), "dataset_splits": {}, "dataset_configs": {}}
    elif isinstance(configs, list) and len(configs) == 1:
        read["dataset_configs"] = {"dataset_config": configs[0]}
    elif configs is not None:
        raise RecipeError(
            f"{source}: dataset_configs: must be a list of one, got {configs!r}. Fix: a config in each entry of dataset_mixture"
        )
    if "use_flash_attention_2" in values:
        flash = str(values["use_flash_attention_2"]).lower() == "true"
        read["use_flash_attention_2"] = {"attn_implementation": "flash_attention_2"} if flash else {}
    return read


def _read_mixer(values: dict[str, Any], source: str, warnings: list[str]) -> dict[str, Any]:
    """Return alignment-handbook's ``{id: share}`` with its splits and configurations as keys of a recipe."""
    mixer, splits = values["dataset_mixer"], values.get("dataset_splits") or ["train", "test"]
    try:
        train, test = ([str(split) for split in splits if part in str(split)] for part in ("train", "test"))
        parts = [
            {"id": name, "split": split, "weight": float(share)} | ({"config": config} if config else {})
            for (name, share), config in zip(mixer.items(), values.get("dataset_configs") or [None] * len(mixer), strict=True)
            for split in train
        ]
    except (AttributeError, TypeError, ValueError):
        parts = []
    if not parts:
        raise RecipeError(
            f"{source}: dataset_mixer: must be {{id: share of its rows}}, with 'train' in the name of one of dataset_splits and as many "
            f"dataset_configs as ids, got {mixer!r}"
        )
    if len(parts) > 1 or parts[0]["weight"] != 1:
        if test:
            warnings.append(f"{source}: dataset_splits: {test[0]}: a mixture is evaluated on rows of its own; set its test_split_size")
        return {"dataset_mixture": {"datasets": parts}}
    names = {"id": "dataset_name", "split": "dataset_train_split", "config": "dataset_config"}
    return {names[key]: value for key, value in parts[0].items() if key in names} | ({"dataset_test_split": test[0]} if test else {})
