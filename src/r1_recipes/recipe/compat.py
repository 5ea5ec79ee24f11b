"""YAML files of open-r1, alignment-handbook and older TRL as recipes: keys that are renamed, obsolete, or of another shape."""

from __future__ import annotations

import re
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
    "use_flash_attention_2": "write attn_implementation: flash_attention_2",
    "num_processes": "accelerate launch says how many",
}


def _mixer(value: Any) -> dict[str, Any]:
    [(name, share)] = value.items()
    if float(share) != 1:
        raise ValueError(share)
    return {"dataset_name": name}


def _splits(value: Any) -> dict[str, Any]:
    [train] = [split for split in value if "train" in split]
    [test, *_] = [split for split in value if "test" in split] or ["test"]
    return {"dataset_train_split": train, "dataset_test_split": test}


def _configs(value: Any) -> dict[str, Any]:
    [config] = value
    return {"dataset_config": config}


# Settings whose value has another shape here: what they stand for, what they must be, and what to write otherwise.
RESHAPED = {
    "dataset_mixer": (_mixer, "one {id: 1.0}", "dataset_mixture: {datasets: [{id, split, weight}]} for several sets or a share"),
    "dataset_splits": (_splits, "one split with 'train' in its name and one with 'test'", "dataset_train_split and dataset_test_split"),
    "dataset_configs": (_configs, "a list of one", "a config in each entry of dataset_mixture"),
}


def translate(values: dict[str, Any], source: str, warnings: list[str]) -> dict[str, Any]:
    """Rewrite keys of older TRL and of other projects as today's, with one warning each; ``source`` is what messages name."""
    # A file with older keys is another project's; in ours the number is one of tokens.
    if "cosine_max_len" in values and any(key in RENAMED or key in OBSOLETE for key in values):
        warnings.append(f"{source}: cosine_max_len: {values['cosine_max_len']} is read as tokens; open-r1 counts characters")
    result: dict[str, Any] = {}
    for key, value in values.items():
        if re.fullmatch("reward_model(_scope|_activation|_prompt|_batch_size)?", key):
            fix = "reward_models: {NAME: {model: …, scope: …, activation: …, prompt: …, batch_size: …}}, and NAME in reward_funcs"
            raise RecipeError(f"{source}: {key}: must stand in an entry of reward_models, got a key of its own. Fix: {fix}")
        if key in OBSOLETE:
            warnings.append(f"{source}: {key} is ignored: {OBSOLETE[key]}")
            continue
        today = {RENAMED.get(key, key): value}
        if key in RESHAPED:
            read, shape, fix = RESHAPED[key]
            try:
                today = read(value)
            except (AttributeError, TypeError, ValueError) as error:
                raise RecipeError(f"{source}: {key}: must be {shape}, got {value!r}. Fix: {fix}") from error
        for new, found in today.items():
            if new in result or (new != key and new in values):
                raise RecipeError(f"{source}: {key} is today's {new}, and both are set. Fix: keep {new} alone")
            if new != key:
                warnings.append(f"{source}: {key} is read as {new}: {found}")
            result[new] = found
    return result
