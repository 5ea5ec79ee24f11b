"""YAML files of open-r1, alignment-handbook and older TRL as recipes: keys that are renamed,
obsolete, of another shape, or left to the defaults of the TRL that they were written for."""

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


def _until_february() -> dict[str, Any]:
    """What open-r1 had for all files until 18 Feb 2025."""
    prompt = (
        FORMATS["r1_zero"]
        .system_prompt.replace("</think> <answer>", "</think><answer>")
        .removesuffix(".")
    )
    return {"loss_type": "grpo", "reward_funcs": ["accuracy", "format"], "system_prompt": prompt}


def _sets(
    dataset_mixer: Any, dataset_splits: Any = None, dataset_configs: Any = None
) -> dict[str, Any]:
    """Return today's keys for alignment-handbook's; of values that they must not have,
    any error.
    """
    splits = ["train", "test"] if dataset_splits is None else dataset_splits
    [train] = [split for split in splits if "train" in split]
    [test, *_] = [split for split in splits if "test" in split] or ["test"]
    configs = [None] * len(dataset_mixer) if dataset_configs is None else dataset_configs
    configs = [configs] if isinstance(configs, str) else configs
    if [*map(float, dataset_mixer.values())] == [1]:
        [config] = configs
        found = {"dataset_name": next(iter(dataset_mixer)), "dataset_config": config}
        found |= (
            {"dataset_train_split": train, "dataset_test_split": test} if dataset_splits else {}
        )
        return {key: value for key, value in found.items() if value}
    parts = []
    for (name, share), config in zip(dataset_mixer.items(), configs, strict=True):
        if not 0 <= float(share) <= 1:
            raise ValueError(share)
        # run_sft.py took the first rows of each set, shuffled them with seed 42, and evaluated on
        # all of the test splits.
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


def _grpo_then(
    values: dict[str, Any], typed: dict[str, Any], source: str, warnings: list[str]
) -> tuple[dict[str, Any], str]:
    """Return what a GRPO file of open-r1 left to the TRL of its time, and whose file it is; warn of
    what is not followed.
    """
    together = {**values, **typed}
    then, name = _grpo_of_its_time(values, typed, source, warnings)
    if values.get("system_prompt", "") is None:
        values["system_prompt"] = ""  # no system message
    rewards = _rewards(then | together)
    then["response_format"] = _shape(rewards, together.get("system_prompt", then["system_prompt"]))
    if {"code", "binary_code"} & rewards:
        then["mapper"] = "verifiable_code"
    if "cosine" in rewards:
        longest = values.get("cosine_max_len", 1000)
        warnings.append(
            f"{source}: cosine_max_len: {longest} is read as tokens; open-r1 counts characters, "
            f"and beyond it its cosine turns back; here the value stays"
        )
    if "length" in rewards:
        warnings.append(
            f"{source}: length counts tokens in the prompt's group; open-r1's counts "
            f"characters in the process's batch"
        )
    _warn_of_format(then["response_format"], rewards, typed, source, warnings)
    return then, name


def _grpo_of_its_time(
    values: dict[str, Any], typed: dict[str, Any], source: str, warnings: list[str]
) -> tuple[dict[str, Any], str]:
    """Return the defaults of the TRL that a GRPO file was written for, and its name."""
    together = {**values, **typed}
    then = dict(_TABLES["then"]["grpo"])
    if not values.keys() & _TABLES["before_0_18"] or values.keys() & _TABLES["since_0_18"]:
        return then, "open-r1 (with TRL 0.16 or 0.17: --temperature 0.9 --top_k 50; TRL 0.18)"
    then["temperature"] = 0.9
    if values.keys() & _TABLES["since_0_16"]:
        return {**then, "top_k": 50}, "open-r1 (TRL 0.16 or 0.17)"
    name = "open-r1 (with TRL 0.16 or 0.17: --top_k 50; TRL 0.14 or 0.15)"
    if together.get("use_vllm") not in (True, "true"):
        then["top_k"] = 50  # Transformers' own, and TRL's from 0.16 on
        name = "open-r1 (TRL 0.14 to 0.17)"
    temperature = together.get("temperature", then["temperature"])
    if str(temperature) not in ("1", "1.0"):
        warnings.append(
            f"{source}: temperature: {temperature}: the loss divides its logits by it; TRL before "
            f"12 March 2025 (04f659737) did not"
        )
    if {*together, *_rewards(together)}.intersection(_TABLES["newer"]):
        return then, name
    _name_prompts_counted(values, typed, source, warnings)
    name = "open-r1 before 18 Feb 2025 (if it is newer: --system_prompt ''; TRL 0.14 or 0.15)"
    return then | _until_february(), name


def _shape(rewards: set[str], system_prompt: Any) -> str:
    """Return the format that a prompt asks for, or that open-r1's rewards read.

    Its accuracy takes an answer anywhere, its other rewards take tags.
    """
    shape = "think_answer" if {"format", "tag_count", "code_format"} & rewards else "boxed"
    named = named_marks(str(system_prompt))
    if named and ("<answer>" in named) == (shape == "boxed"):
        return fitting_format(named, FORMATS[shape]).partition("response_format: ")[2] or shape
    return shape


def _warn_of_format(
    shape: str, rewards: set[str], typed: dict[str, Any], source: str, warnings: list[str]
) -> None:
    """Warn of what the rewards read here, and read otherwise in open-r1."""
    fmt = FORMATS.get(str(typed.get("response_format", shape)))
    if fmt is None:
        return
    asked = "response_format" in typed or fmt.answer_tags == ("<answer>", "</answer>")
    if "format" in rewards and not asked:
        warnings.append(
            f"{source}: format pays for {shape}, as system_prompt asks; open-r1's paid 0 "
            f"without <answer> tags"
        )
    part = ""
    if fmt.answer_tags:
        part = f"the {fmt.answer_tags[0]} block" + (" or a box" if fmt.boxed else "")
    elif fmt.reasoning_tags:
        part = f"what follows {fmt.reasoning_tags[1]}"
    if part:
        warnings.append(
            f"{source}: accuracy and code read {part} alone; open-r1's read the whole completion"
        )


def _name_prompts_counted(
    values: dict[str, Any], typed: dict[str, Any], source: str, warnings: list[str]
) -> None:
    """Warn that TRL's batches were of prompts before 6 Feb 2025 (cf97133d5), with the batch that is
    as large; 8 was each default.
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
    then = f"(as then: --per_device_train_batch_size {int(device) * int(group)})"
    warnings.append(
        f"{source}: per_device_train_batch_size: {device} counts completions; TRL before 6 "
        f"Feb 2025 counted prompts {then}"
    )


def read(
    config: dict[str, Any], overrides: dict[str, Any], method: str, source: str, warnings: list[str]
) -> dict[str, Any]:
    """A file's keys in today's names, beneath them the defaults of the time when it was written."""
    return defaults_then(config, overrides, method, source, warnings) | translate(
        config, source, warnings
    )


def defaults_then(
    values: dict[str, Any], typed: dict[str, Any], method: str, source: str, warnings: list[str]
) -> dict[str, Any]:
    """Return what a file of another project, not yet translated, left to the TRL of its time;
    ``{}`` for a recipe of ours.

    ``typed`` are the command line's keys. Another project's file has a key that only older ones
    have, and none that is ours alone.
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
            f"{source}: read with today's defaults: {today}, …; without {ours} with those of "
            f"its time"
        )
        return {}
    if "beta" in values and not {"reward_funcs", "num_generations"} & together.keys():
        raise RecipeError(
            f"{source}: beta without reward_funcs: preference training is not here. Fix: trl "
            f"dpo --config {source} (or trl kto)"
        )
    if method == "grpo":
        then, name = _grpo_then(values, typed, source, warnings)
    else:
        then, name = _sft_then(values, typed, source, warnings)
    present = {RENAMED.get(key, key) for key in together}
    if "mapper" in typed:  # the mapper's settings go with it
        present.add("mapper_config")
    then = {key: value for key, value in then.items() if key not in present}
    listed = yaml.safe_dump(then, default_flow_style=True, sort_keys=False, width=10_000)[1:-2]
    warnings.append(
        f"{source}: read as a file for {name}: {listed}; a key in the file or on the command "
        f"line wins"
    )
    return then


def _sft_then(
    values: dict[str, Any], typed: dict[str, Any], source: str, warnings: list[str]
) -> tuple[dict[str, Any], str]:
    """Return what an SFT file left to the TRL of its time, and whose file it is."""
    together = {**values, **typed}
    if together.get("dataset_name") in ("openai/gsm8k", "gsm8k") and "mapper" not in typed:
        raise RecipeError(
            f"{source}: dataset_name: must have conversations in a column messages, got "
            f"{together['dataset_name']}, whose rows are "
            "question and answer: the project of this file rewrote them. Fix: --mapper gsm8k"
        )
    if values.pop("system_prompt", None):
        warnings.append(
            f"{source}: system_prompt is ignored: open-r1's SFT has it for benchmarks alone"
        )
    then = {**_TABLES["then"]["sft"], "mapper_config": {"whole": True}}
    if values.get("packing", "dataset_mixer" in values):
        then["packing_strategy"] = "wrapped"
    if "dataset_mixer" in values:
        then["packing"] = True  # run_sft.py packed whatever the file said
        if values.get("auto_insert_empty_system_msg", True):
            then["mapper_config"]["empty_system"] = True
        return then, "alignment-handbook (TRL 0.12)"
    averaged = together.get("average_tokens_across_devices") in (True, "true")
    if averaged or {"max_seq_length", "dataset_mixture"} <= values.keys():
        # Since 19f0345 these were as today.
        for key in ("bf16", "average_tokens_across_devices", "packing_strategy"):
            then.pop(key, None)
        return then, "alignment-handbook (TRL 0.19)"
    since = "since July 2025: --average_tokens_across_devices true; TRL 0.18"
    return then, f"open-r1 or alignment-handbook ({since})"


def translate(values: dict[str, Any], source: str, warnings: list[str]) -> dict[str, Any]:
    """Rewrite keys of older TRL and of other projects as today's, with one warning each; ``source``
    is what messages name.
    """
    result: dict[str, Any] = {}
    for name in sorted(_rewards(values) & REFUSED_REWARDS.keys()):
        raise RecipeError(
            f"{source}: reward_funcs: {name} {REFUSED_REWARDS[name]}, not here. Fix: code, "
            f"binary_code or my_module:{name}"
        )
    sets = {key: values[key] for key in RESHAPED if key in values}
    if "dataset_mixer" not in sets:
        reason = (
            "is ignored: open-r1 never read it, and alignment-handbook beside dataset_mixer "
            "alone; to have it read:"
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
        called = _TABLES["renamed_values"].get(key, {}).get(str(value))
        if called:
            today = {key: called}
            warnings.append(f"{source}: {key}: {value} is read as {called}")
        if key in sets:
            first = next(iter(sets))
            today = mixture if key == first else {}
            warnings += [f"{source}: {key} is read with {first}"] if key != first else []
        _add(result, key, today, values, source, warnings)
    return result


def _read_sets(sets: dict[str, Any], source: str) -> dict[str, Any]:
    try:
        return _sets(**sets) if sets else {}
    except (AttributeError, TypeError, ValueError) as error:
        wanted = "; ".join(RESHAPED[key] for key in sets)
        given = "; ".join(map(repr, sets.values()))
        fix = (
            "Fix: dataset_mixture: {datasets: [{id, split, weight}]}, or dataset_name, "
            "dataset_config and the two splits"
        )
        raise RecipeError(
            f"{source}: {', '.join(sets)}: must be {wanted}, got {given}. {fix}"
        ) from error


def _add(
    result: dict[str, Any],
    key: str,
    today: dict[str, Any],
    values: dict[str, Any],
    source: str,
    warnings: list[str],
) -> None:
    """Add a key under its names of today; RecipeError: the file has that name, too."""
    for new, value in today.items():
        if new in result or (new != key and new in values):
            raise RecipeError(
                f"{source}: {key} is today's {new}, and both are set. Fix: keep {new} alone"
            )
        if new != key:
            warnings.append(f"{source}: {key} is read as {new}: {value}")
        result[new] = value
