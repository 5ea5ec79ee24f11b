"""Translate YAML files of open-r1, alignment-handbook and older TRL into recipes.

Keys may be renamed, obsolete or of another form. A missing key has the default of the TRL for which
the file was written.
"""

from pathlib import Path
from typing import Any

import yaml

from r1_recipes.common.errors import RecipeError
from r1_recipes.prompts import FORMATS, fitting_format, named_marks

_TABLES = yaml.safe_load(Path(__file__).with_name("compat.yaml").read_text(encoding="utf-8"))
RENAMED, SHORT, OBSOLETE = _TABLES["renamed"], _TABLES["short"], _TABLES["obsolete"]
REFUSED, REFUSED_REWARDS, RESHAPED = (
    _TABLES["refused"],
    _TABLES["refused_rewards"],
    _TABLES["reshaped"],
)


def _defaults_before_february() -> dict[str, Any]:
    """Return what open-r1 used for all files until 18 Feb 2025."""
    prompt = (
        FORMATS["r1_zero"]
        .system_prompt.replace("</think> <answer>", "</think><answer>")
        .removesuffix(".")
    )
    return {"loss_type": "grpo", "reward_funcs": ["accuracy", "format"], "system_prompt": prompt}


def _mixture_keys(
    dataset_mixer: Any, dataset_splits: Any = None, dataset_configs: Any = None
) -> dict[str, Any]:
    """Return current keys for those of alignment-handbook. Raise any error for invalid values."""
    splits = ["train", "test"] if dataset_splits is None else dataset_splits
    [train] = [split for split in splits if "train" in split]
    [test, *_] = [split for split in splits if "test" in split] or ["test"]
    configs = [None] * len(dataset_mixer) if dataset_configs is None else dataset_configs
    configs = [configs] if isinstance(configs, str) else configs
    if [*map(float, dataset_mixer.values())] == [1]:
        [config] = configs
        keys = {"dataset_name": next(iter(dataset_mixer)), "dataset_config": config}
        keys |= {"dataset_train_split": train, "dataset_test_split": test} if dataset_splits else {}
        return {key: value for key, value in keys.items() if value}
    parts = []
    for (name, share), config in zip(dataset_mixer.items(), configs, strict=True):
        if not 0 <= float(share) <= 1:
            raise ValueError(share)
        # run_sft.py took the first rows of each data set, shuffled them with seed 42, and evaluated
        # on all test splits.
        if float(share):
            part = {
                "id": name,
                "config": config,
                "weight": float(share),
                "first": True,
                "split": train,
                "test_split": test,
            }
            parts.append({key: value for key, value in part.items() if value})
    if not parts:
        raise ValueError(dataset_mixer)
    return {"dataset_mixture": {"datasets": parts, "seed": 42}}


def _rewards(values: dict[str, Any]) -> set[str]:
    names = values.get("reward_funcs") or []
    return set(map(str, names if isinstance(names, list) else [names]))


def _older_grpo_defaults(
    values: dict[str, Any], typed: dict[str, Any], source: str, warnings: list[str]
) -> tuple[dict[str, Any], str]:
    """Return the defaults that a GRPO file of open-r1 relied on, and the name of its project.

    Warn about what is not reproduced.
    """
    together = {**values, **typed}
    defaults, name = _older_trl_defaults(values, typed, source, warnings)
    if values.get("system_prompt", "") is None:
        values["system_prompt"] = ""  # This means no system message.
    rewards = _rewards(defaults | together)
    defaults["response_format"] = _format_name(
        rewards, together.get("system_prompt", defaults["system_prompt"])
    )
    if {"code", "binary_code"} & rewards:
        defaults["mapper"] = "verifiable_code"
    if "cosine" in rewards:
        longest = values.get("cosine_max_len", 1000)
        warnings.append(
            f"{source}: cosine_max_len: {longest} is read as tokens; open-r1 counts characters. "
            f"Beyond the limit, open-r1's cosine rises again; here the reward stays constant"
        )
    if "length" in rewards:
        warnings.append(
            f"{source}: reward_funcs: length counts tokens in the group of a prompt; in open-r1 it "
            f"counts characters in the batch of a process"
        )
    _warn_of_format(defaults["response_format"], rewards, typed, source, warnings)
    return defaults, name


def _older_trl_defaults(
    values: dict[str, Any], typed: dict[str, Any], source: str, warnings: list[str]
) -> tuple[dict[str, Any], str]:
    """Return the defaults of the TRL for which a GRPO file was written, and its name."""
    together = {**values, **typed}
    defaults = dict(_TABLES["then"]["grpo"])
    if not values.keys() & _TABLES["before_0_18"] or values.keys() & _TABLES["since_0_18"]:
        return defaults, "open-r1 (with TRL 0.16 or 0.17: --temperature 0.9 --top_k 50; TRL 0.18)"
    defaults["temperature"] = 0.9
    if values.keys() & _TABLES["since_0_16"]:
        return {**defaults, "top_k": 50}, "open-r1 (TRL 0.16 or 0.17)"
    name = "open-r1 (with TRL 0.16 or 0.17: --top_k 50; TRL 0.14 or 0.15)"
    if together.get("use_vllm") not in (True, "true"):
        defaults["top_k"] = 50  # The default of Transformers, and of TRL from 0.16 on.
        name = "open-r1 (TRL 0.14 to 0.17)"
    temperature = together.get("temperature", defaults["temperature"])
    if str(temperature) not in ("1", "1.0"):
        warnings.append(
            f"{source}: temperature: {temperature}: the loss divides its logits by it, "
            f"which TRL before 12 March 2025 (04f659737) did not"
        )
    if {*together, *_rewards(together)}.intersection(_TABLES["newer"]):
        return defaults, name
    _warn_of_prompt_batches(values, typed, source, warnings)
    name = "open-r1 before 18 Feb 2025 (if it is newer: --system_prompt ''; TRL 0.14 or 0.15)"
    return defaults | _defaults_before_february(), name


def _format_name(rewards: set[str], system_prompt: Any) -> str:
    """Return the name of the format that a prompt asks for, or that open-r1's rewards read.

    The reward accuracy of open-r1 reads an answer anywhere, its other rewards read tags.
    """
    name = "think_answer" if {"format", "tag_count", "code_format"} & rewards else "boxed"
    named = named_marks(str(system_prompt))
    if named and ("<answer>" in named) == (name == "boxed"):
        return fitting_format(named, FORMATS[name]).partition("response_format: ")[2] or name
    return name


def _warn_of_format(
    name: str, rewards: set[str], typed: dict[str, Any], source: str, warnings: list[str]
) -> None:
    """Warn about rewards that read completions in another way than in open-r1."""
    fmt = FORMATS.get(str(typed.get("response_format", name)))
    if fmt is None:
        return
    expected = "response_format" in typed or fmt.answer_tags == ("<answer>", "</answer>")
    if "format" in rewards and not expected:
        warnings.append(
            f"{source}: reward_funcs: format rewards {name}, for which system_prompt asks; in "
            f"open-r1 it scored 0 without <answer> tags"
        )
    part = ""
    if fmt.answer_tags:
        part = f"the {fmt.answer_tags[0]} block" + (" or a box" if fmt.boxed else "")
    elif fmt.reasoning_tags:
        part = f"the text after {fmt.reasoning_tags[1]}"
    if part:
        warnings.append(
            f"{source}: reward_funcs: accuracy and code read only {part}; in open-r1 they read the "
            f"whole completion"
        )


def _warn_of_prompt_batches(
    values: dict[str, Any], typed: dict[str, Any], source: str, warnings: list[str]
) -> None:
    """Warn that batches of TRL before 6 Feb 2025 (cf97133d5) were counted in prompts.

    The warning names the batch of the same size. Both defaults were 8.
    """
    device, group = (
        str({**values, **typed}.get(key, 8))
        for key in ("per_device_train_batch_size", "num_generations")
    )
    # TRL has reward_weights since 11 Feb 2025.
    if (
        "per_device_train_batch_size" in typed
        or "reward_weights" in values
        or not (device.isdigit() and group.isdigit())
    ):
        return
    same = f"(for the same batch: --per_device_train_batch_size {int(device) * int(group)})"
    warnings.append(
        f"{source}: per_device_train_batch_size: {device} counts completions; TRL before 6 "
        f"Feb 2025 counted prompts {same}"
    )


def read(
    config: dict[str, Any], overrides: dict[str, Any], method: str, source: str, warnings: list[str]
) -> dict[str, Any]:
    """Return the keys of a file by their current names, with the defaults that it relied on."""
    return older_defaults(config, overrides, method, source, warnings) | translate(
        config, source, warnings
    )


def older_defaults(
    values: dict[str, Any], typed: dict[str, Any], method: str, source: str, warnings: list[str]
) -> dict[str, Any]:
    """Return the defaults that a file of another project relied on, or ``{}`` for our recipes.

    ``values`` are not translated yet, and ``typed`` are the keys of the command line. A file of
    another project has a key that only older files have, and no key that only our recipes have.
    """
    if method not in ("grpo", "sft") or not any(
        key in table for key in values for table in (RENAMED, OBSOLETE, RESHAPED, REFUSED)
    ):
        return {}
    together = {**values, **typed}
    if ours := " and ".join(sorted(values.keys() & _TABLES["ours"])):
        today = ", ".join(
            f"{key} {value}"
            for key, value in _TABLES["today"][method].items()
            if key not in together
        )
        warnings.append(
            f"{source}: read with the current defaults ({today}, …). To use the defaults of its "
            f"time, remove {ours}"
        )
        return {}
    if "beta" in values and not {"reward_funcs", "num_generations"} & together.keys():
        raise RecipeError(
            f"{source}: beta without reward_funcs: preference training is not supported. Fix: trl "
            f"dpo --config {source} (or trl kto)"
        )
    if method == "grpo":
        defaults, name = _older_grpo_defaults(values, typed, source, warnings)
    else:
        defaults, name = _older_sft_defaults(values, typed, source, warnings)
    present = {RENAMED.get(key, key) for key in together}
    if "mapper" in typed:  # Do not combine it with the settings of another mapper.
        present.add("mapper_config")
    defaults = {key: value for key, value in defaults.items() if key not in present}
    text = yaml.safe_dump(defaults, default_flow_style=True, sort_keys=False, width=10_000)[1:-2]
    warnings.append(
        f"{source}: read as a file for {name}: {text}; a key in the file or on the command "
        f"line takes precedence"
    )
    return defaults


def _older_sft_defaults(
    values: dict[str, Any], typed: dict[str, Any], source: str, warnings: list[str]
) -> tuple[dict[str, Any], str]:
    """Return the defaults that an SFT file relied on, and the name of its project."""
    together = {**values, **typed}
    if together.get("dataset_name") in ("openai/gsm8k", "gsm8k") and "mapper" not in typed:
        raise RecipeError(
            f"{source}: dataset_name: must have conversations in a column messages, got "
            f"{together['dataset_name']}, whose rows have "
            "questions and answers. The project of this file converted them. Fix: --mapper gsm8k"
        )
    if values.pop("system_prompt", None):
        warnings.append(
            f"{source}: system_prompt is ignored: in open-r1, SFT uses it only for benchmarks"
        )
    defaults = {**_TABLES["then"]["sft"], "mapper_config": {"whole": True}}
    if values.get("packing", "dataset_mixer" in values):
        defaults["packing_strategy"] = "wrapped"
    if "dataset_mixer" in values:
        defaults["packing"] = True  # run_sft.py ignored the key and always packed.
        if values.get("auto_insert_empty_system_msg", True):
            defaults["mapper_config"]["empty_system"] = True
        return defaults, "alignment-handbook (TRL 0.12)"
    averaged = together.get("average_tokens_across_devices") in (True, "true")
    if averaged or {"max_seq_length", "dataset_mixture"} <= values.keys():
        # Since 19f0345 these have the current defaults.
        for key in ("bf16", "average_tokens_across_devices", "packing_strategy"):
            defaults.pop(key, None)
        return defaults, "alignment-handbook (TRL 0.19)"
    since = "since July 2025: --average_tokens_across_devices true; TRL 0.18"
    return defaults, f"open-r1 or alignment-handbook ({since})"


def translate(values: dict[str, Any], source: str, warnings: list[str]) -> dict[str, Any]:
    """Return the keys of older TRL and other projects by their current names, with a warning each.

    ``source`` is the name of the file in messages.
    """
    result: dict[str, Any] = {}
    for name in sorted(_rewards(values) & REFUSED_REWARDS.keys()):
        raise RecipeError(
            f"{source}: reward_funcs: {name} {REFUSED_REWARDS[name]}, which is not included. "
            f"Fix: code, binary_code or my_module:{name}"
        )
    sets = {key: values[key] for key in RESHAPED if key in values}
    if "dataset_mixer" not in sets:
        reason = (
            "is ignored: open-r1 never read it, and alignment-handbook reads it only with "
            "dataset_mixer. Fix:"
        )
        warnings += [f"{source}: {key} {reason} {_TABLES['unread'][key]}" for key in sets]
        values = {key: value for key, value in values.items() if key not in sets}
        sets = {}
    mixture = _read_sets(sets, source)
    for key, value in values.items():
        if key in OBSOLETE:
            warnings.append(f"{source}: {key} is ignored: {OBSOLETE[key]}")
            continue
        if key in REFUSED:
            raise RecipeError(f"{source}: {key}: {REFUSED[key]}")
        today = {RENAMED.get(key, key): value}
        new_value = _TABLES["renamed_values"].get(key, {}).get(str(value))
        if new_value:
            today = {key: new_value}
            warnings.append(f"{source}: {key}: {value} is read as {new_value}")
        if key in sets:
            first = next(iter(sets))
            today = mixture if key == first else {}
            warnings += [f"{source}: {key} is read with {first}"] if key != first else []
        _add(result, key, today, values, source, warnings)
    return result


def _read_sets(sets: dict[str, Any], source: str) -> dict[str, Any]:
    try:
        return _mixture_keys(**sets) if sets else {}
    except (AttributeError, TypeError, ValueError) as error:
        expected = "; ".join(RESHAPED[key] for key in sets)
        given = "; ".join(map(repr, sets.values()))
        fix = (
            "Fix: dataset_mixture: {datasets: [{id, split, weight}]}, or dataset_name, "
            "dataset_config and the two splits"
        )
        raise RecipeError(
            f"{source}: {', '.join(sets)}: must be {expected}, got {given}. {fix}"
        ) from error


def _add(
    result: dict[str, Any],
    key: str,
    today: dict[str, Any],
    values: dict[str, Any],
    source: str,
    warnings: list[str],
) -> None:
    """Add a key under its current names. Raise a RecipeError if the file has such a name too."""
    for new, value in today.items():
        if new in result or (new != key and new in values):
            raise RecipeError(
                f"{source}: {key} is the old name of {new}, and both are set. Fix: keep only {new}"
            )
        if new != key:
            warnings.append(f"{source}: {key} is read as {new}: {value}")
        result[new] = value
