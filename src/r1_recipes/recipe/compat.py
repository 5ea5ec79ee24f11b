"""YAML files of open-r1, alignment-handbook and older TRL as recipes: keys that are renamed, obsolete, of another shape, or left to the
defaults of the TRL that they were written for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

from r1_recipes.common.errors import RecipeError
from r1_recipes.prompts import FORMATS, fitting_format, named_marks

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
# Values that are called otherwise today.
RENAMED_VALUES = {
    ("packing_strategy", "ffd"): "bfd",
    **{("code_provider", name): "bubblewrap" for name in ("e2b", "local", "morph", "piston")},
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
    "vllm_enforce_eager": "only a vLLM server has this switch",
    "push_to_hub_model_id": "set hub_model_id",
    **dict.fromkeys(("wandb_run_id", "wandb_tags", "wandb_notes", "wandb_description"), "set W&B's environment variables"),
    **dict.fromkeys(("e2b_router_url", "morph_router_url"), "programs run on this machine"),
    "code_eval_test_batch_size": "a program runs on all its cases",
}

# Keys without which it would be another experiment, and what to write instead.
REFUSED = {
    "tokenizer_name_or_path": "the tokenizer is the model's own. Fix: save that one into a copy of the model's folder, or chat_template",
    "text_column": "texts without a question are not trained on. Fix: trl sft --dataset_text_field",
    "code_eval_scoring_mode": "Fix: reward_funcs: [code] pays the share of cases passed, [binary_code] all or nothing",
    "ioi_provider": "graders of IOI are not here. Fix: reward_funcs: [code] compares what a program prints",
    **dict.fromkeys(
        ("reward_model", "reward_model_scope", "reward_model_activation", "reward_model_prompt", "reward_model_batch_size"),
        "must stand in an entry of reward_models. Fix: reward_models: {NAME: {model: …, scope: …, activation: …, prompt: …, batch_size: …}}"
        ", and NAME in reward_funcs",
    ),
    "datasets": "not read. Fix: dataset_mixture: {datasets: [{id, config, split, columns}]} (path is id, name is config)",
    "env": "a recipe sets no variables. Fix: set these variables in the shell",
    "pass_rate_min": "a filter, no training. Fix: python -m r1_recipes.generate with keep: {pass_rate: [LOW, HIGH]}",
}
# open-r1's rewards that are not here.
REFUSED_REWARDS = {"ioi_code": "needs the graders of IOI", "cf_code": "needs the checkers of Codeforces"}


def _is_mixed(values: dict[str, Any]) -> bool:
    return [*map(float, values.get("dataset_mixer", {"": 1}).values())] != [1]


def _mixer(value: Any, values: dict[str, Any]) -> dict[str, Any]:
    if not _is_mixed(values):
        return {"dataset_name": next(iter(value))}
    train, test = _splits(values.get("dataset_splits") or ["train", "test"], {}).values()
    splits = {"split": train, "test_split": test}
    configs = values.get("dataset_configs") or [None] * len(value)
    parts = []
    for (name, share), config in zip(value.items(), configs, strict=True):
        if not 0 <= float(share) <= 1:
            raise ValueError(share)
        # run_sft.py took the first rows of each set, shuffled them with seed 42, and evaluated on all of the test splits.
        if float(share):
            parts.append(({"config": config} if config else {}) | {"id": name, "weight": float(share), "first": True, **splits})
    if not parts:
        raise ValueError(value)
    return {"dataset_mixture": {"datasets": parts, "seed": 42}}


def _splits(value: Any, values: dict[str, Any]) -> dict[str, Any]:
    [train] = [split for split in value if "train" in split]
    [test, *_] = [split for split in value if "test" in split] or ["test"]
    return {} if _is_mixed(values) else {"dataset_train_split": train, "dataset_test_split": test}


def _configs(value: Any, values: dict[str, Any]) -> dict[str, Any]:
    if _is_mixed(values):
        return {}
    [config] = [value] if isinstance(value, str) else value
    return {"dataset_config": config}


# Settings whose value has another shape here: what they stand for, what they must be, and what to write otherwise.
RESHAPED: dict[str, tuple[Callable[[Any, dict[str, Any]], dict[str, Any]], str, str]] = {
    "dataset_mixer": (_mixer, "{id: share}, shares in [0, 1]", "dataset_mixture: {datasets: [{id, split, weight}]}"),
    "dataset_splits": (_splits, "one split with 'train' in its name and one with 'test'", "dataset_train_split and dataset_test_split"),
    "dataset_configs": (_configs, "a list of one, or of one for each set", "a config in each entry of dataset_mixture"),
}

# Keys that nobody has but us, and what a file with one of them gets if it has older keys too.
_OURS = {"response_format", "mapper"}
_TODAY: dict[str, dict[str, Any]] = {"grpo": {"beta": 0.0, "loss_type": "dapo"}, "sft": {"packing_strategy": "bfd"}}
# Defaults then that are others today, by what they were pinned to: open-r1 1416fa0 to TRL 0.18.0 and Transformers 4.52.3,
# alignment-handbook 5a7ba95 to TRL 0.9.6 to 0.12. What changes no result (logging_steps, report_to, vllm_mode) is today's.
_TRAINER: dict[str, Any] = {"bf16": False, "gradient_checkpointing": False, "optim": "adamw_torch"}
_GRPO: dict[str, Any] = {
    "beta": 0.04,
    "loss_type": "bnpo",
    "max_prompt_tokens": 512,
    "max_completion_length": 256,
    "temperature": 1.0,
    "use_bias_correction_kl": False,
    "vllm_importance_sampling_correction": False,
    **_TRAINER,
    # open-r1's own: no instruction unless the file has one.
    "system_prompt": "",
    "reward_funcs": ["accuracy", "format", "tag_count"],
}
# Every token of a conversation is trained on, also those of the user.
_SFT: dict[str, Any] = {"mapper": "conversations", "completion_only_loss": False, "average_tokens_across_devices": False, **_TRAINER}
# These went with TRL 0.18, which sampled at 1.0; before it was 0.9.
_BEFORE_0_18 = {"vllm_device", "vllm_dtype", "vllm_max_model_len", "vllm_enable_prefix_caching"}
# Until 78c197d, 18 Feb 2025, open-r1 had one prompt for all files (0da0f7c:src/open_r1/grpo.py, line 84), and TRL until 293b62095, a day
# before, the mean of each completion. These keys and rewards are newer.
_NEWER = {*"system_prompt chat_template dataset_prompt_column loss_type scale_rewards tag_count code code_format".split()}  # noqa: SIM905
_R1_ZERO = FORMATS["r1_zero"].system_prompt.replace("</think> <answer>", "</think><answer>").removesuffix(".")
_UNTIL_FEBRUARY: dict[str, Any] = {"loss_type": "grpo", "reward_funcs": ["accuracy", "format"], "system_prompt": _R1_ZERO}


def _rewards(values: dict[str, Any]) -> set[str]:
    names = values.get("reward_funcs") or []
    return set(map(str, names if isinstance(names, list) else [names]))


def defaults_then(values: dict[str, Any], typed: dict[str, Any], method: str, source: str, warnings: list[str]) -> dict[str, Any]:
    """Return what a file of another project, not yet translated, left to the TRL of its time; ``{}`` for a recipe of ours.

    ``typed`` are the keys of the command line. It is another project's if it has a key that only older files have, and none that is ours
    alone.
    """
    if method not in ("grpo", "sft") or not any(key in table for key in values for table in (RENAMED, OBSOLETE, RESHAPED, REFUSED)):
        return {}
    together = {**values, **typed}
    if ours := " and ".join(sorted(_OURS & values.keys())):
        today = ", ".join(f"{key} {value}" for key, value in _TODAY[method].items() if key not in together)
        warnings.append(f"{source}: read with today's defaults: {today}, …; without {ours} with those of its time")
        return {}
    if "beta" in values and not {"reward_funcs", "num_generations"} & together.keys():
        raise RecipeError(
            f"{source}: beta without reward_funcs: preference training is not here. Fix: trl dpo --config {source} (or trl kto)"
        )
    if method == "grpo":
        then, name = dict(_GRPO), "open-r1 (TRL 0.18)"
        if _BEFORE_0_18 & values.keys():
            then, name = _GRPO | {"temperature": 0.9}, "open-r1 (TRL 0.15 to 0.17)"
            if not _NEWER & {*together, *_rewards(together)}:
                then, name = then | _UNTIL_FEBRUARY, "open-r1 before 18 Feb 2025 (if it is newer: --system_prompt ''; TRL 0.15)"
        if values.get("system_prompt", "") is None:
            values["system_prompt"] = ""  # no system message
        rewards = _rewards(then | together)
        # Their accuracy takes an answer anywhere, their other rewards take tags.
        shape = "think_answer" if {"format", "tag_count", "code_format"} & rewards else "boxed"
        named = named_marks(str(together.get("system_prompt", then["system_prompt"])))
        if named and ("<answer>" in named) == (shape == "boxed"):  # what the prompt asks for
            shape = fitting_format(named, FORMATS[shape]).partition("response_format: ")[2] or shape
        then["response_format"] = shape
        if {"code", "binary_code"} & rewards:
            then["mapper"] = "verifiable_code"
        if "cosine" in rewards:
            found = values.get("cosine_max_len", 1000)
            warnings.append(f"{source}: cosine_max_len: {found} is read as tokens; open-r1 counts characters")
        if typed.get("response_format", shape) == "think_answer":
            warnings.append(f"{source}: accuracy and code read the <answer> block alone; open-r1's read the whole completion")
    else:
        handbook = "dataset_mixer" in values
        newer = together.get("average_tokens_across_devices") in (True, "true") or {"max_seq_length", "dataset_mixture"} <= values.keys()
        name = "open-r1 or alignment-handbook (since July 2025: --average_tokens_across_devices true; TRL 0.18)"
        name = "alignment-handbook (TRL 0.12)" if handbook else "alignment-handbook (TRL 0.19)" if newer else name
        packing: dict[str, Any] = {"packing": True} if handbook else {}  # run_sft.py packed whatever the file said
        if values.get("packing", handbook):
            packing["packing_strategy"] = "wrapped"
        empty = handbook and values.get("auto_insert_empty_system_msg", True)
        then = _SFT | packing | {"mapper_config": {"whole": True, **({"empty_system": True} if empty else {})}}
        if newer and not handbook:  # since 19f0345; these were as today
            then = {key: value for key, value in then.items() if key not in ("bf16", "average_tokens_across_devices", "packing_strategy")}
        if values.pop("system_prompt", None):
            warnings.append(f"{source}: system_prompt is ignored: open-r1's SFT has it for benchmarks alone")
    present = {RENAMED.get(key, key) for key in together}
    if "mapper" in typed:  # the mapper's settings go with it
        present.add("mapper_config")
    then = {key: value for key, value in then.items() if key not in present}
    listed = yaml.safe_dump(then, default_flow_style=True, sort_keys=False, width=10_000)[1:-2]
    warnings.append(f"{source}: read as a file for {name}: {listed}; a key in the file or on the command line wins")
    return then


def translate(values: dict[str, Any], source: str, warnings: list[str]) -> dict[str, Any]:
    """Rewrite keys of older TRL and of other projects as today's, with one warning each; ``source`` is what messages name."""
    result: dict[str, Any] = {}
    for name in sorted(_rewards(values) & REFUSED_REWARDS.keys()):
        raise RecipeError(f"{source}: reward_funcs: {name} {REFUSED_REWARDS[name]}, not here. Fix: code, binary_code or my_module:{name}")
    for key, value in values.items():
        if key in OBSOLETE:
            warnings.append(f"{source}: {key} is ignored: {OBSOLETE[key]}")
            continue
        if key in REFUSED:
            raise RecipeError(f"{source}: {key}: {REFUSED[key]}")
        today = {RENAMED.get(key, key): value}
        if (key, str(value)) in RENAMED_VALUES:
            today = {key: RENAMED_VALUES[key, str(value)]}
            warnings.append(f"{source}: {key}: {value} is read as {today[key]}")
        if key in RESHAPED:
            read, _, fix = RESHAPED[key]
            try:
                today = read(value, values)
            except (AttributeError, TypeError, ValueError) as error:
                wrong = [each for each in RESHAPED if each == key or (key == "dataset_mixer" and each in values)]  # it reads the others
                shapes, found = "; ".join(RESHAPED[each][1] for each in wrong), "; ".join(repr(values[each]) for each in wrong)
                raise RecipeError(f"{source}: {', '.join(wrong)}: must be {shapes}, got {found}. Fix: {fix}") from error
            if not today:
                warnings.append(f"{source}: {key} is read into dataset_mixture")
        for new, found in today.items():
            if new in result or (new != key and new in values):
                raise RecipeError(f"{source}: {key} is today's {new}, and both are set. Fix: keep {new} alone")
            if new != key:
                warnings.append(f"{source}: {key} is read as {new}: {found}")
            result[new] = found
    return result
