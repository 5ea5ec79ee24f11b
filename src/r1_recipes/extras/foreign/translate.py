"""Translate YAML files of open-r1, alignment-handbook and older TRL into recipes.

Keys may be renamed, obsolete or of another form. A missing key has the default of the TRL for which
the file was written.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from r1_recipes.common.errors import RecipeError
from r1_recipes.prompts import FORMATS

_TABLES = yaml.safe_load(Path(__file__).with_name("compat.yaml").read_text(encoding="utf-8"))
RENAMED, SHORT, OBSOLETE = _TABLES["renamed"], _TABLES["short"], _TABLES["obsolete"]
REFUSED, REFUSED_REWARDS = _TABLES["refused"], _TABLES["refused_rewards"]
RESHAPED = _TABLES["reshaped"]


Keys = dict[str, Any]


@dataclass(frozen=True)
class _File:
    """A file of another project.

    Attributes:
        values: Its keys, not translated yet.
        typed: The keys of the command line.
        source: Its name in messages.
        warnings: The messages so far.
    """

    values: Keys
    typed: Keys
    source: str
    warnings: list[str]

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the command line or the file."""
        return self.typed.get(key, self.values.get(key, default))

    def warn(self, message: str) -> None:
        self.warnings.append(f"{self.source}: {message}")


def _mixture_keys(
    dataset_mixer: Any, dataset_splits: Any = None, dataset_configs: Any = None
) -> Keys:
    """Return current keys for those of alignment-handbook. Raise any error for invalid values."""
    splits = ["train", "test"] if dataset_splits is None else dataset_splits
    [train] = [split for split in splits if "train" in split]
    [test, *_] = [split for split in splits if "test" in split] or ["test"]
    configs = [None] * len(dataset_mixer) if dataset_configs is None else dataset_configs
    if isinstance(configs, str):
        configs = [configs]
    if [*map(float, dataset_mixer.values())] == [1]:
        [name], [config] = dataset_mixer, configs
        keys = {"dataset_name": name, "dataset_config": config}
        if dataset_splits:
            keys |= {"dataset_train_split": train, "dataset_test_split": test}
        return _without_empty(keys)
    parts = []
    for (name, share), config in zip(dataset_mixer.items(), configs, strict=True):
        weight = float(share)
        if not 0 <= weight <= 1:
            raise ValueError(share)
        # run_sft.py shuffled with seed 42.
        if weight:
            part = {"id": name, "config": config, "weight": weight, "split": train}
            parts.append(_without_empty(part))
    if not parts:
        raise ValueError(dataset_mixer)
    return {"dataset_mixture": {"datasets": parts, "seed": 42}}


def _without_empty(values: Keys) -> Keys:
    return {key: value for key, value in values.items() if value}


def _rewards(names: Any) -> set[str]:
    if not isinstance(names, list):
        names = [names] if names else []
    return set(map(str, names))


def _older_grpo_defaults(file: _File) -> tuple[Keys, str]:
    """Return the defaults that a GRPO file of open-r1 relied on, and the name of its project.

    Warn about what is not reproduced.
    """
    defaults, name = _older_trl_defaults(file)
    if file.values.get("system_prompt", "") is None:
        file.values["system_prompt"] = ""  # This means no system message.
    rewards = _rewards(file.get("reward_funcs", defaults["reward_funcs"]))
    prompt = file.get("system_prompt", defaults["system_prompt"])
    defaults["response_format"] = _format_name(rewards, prompt)
    if {"code", "binary_code"} & rewards:
        defaults["mapper"] = "verifiable_code"
    if "cosine" in rewards:
        longest = file.values.get("cosine_max_len", 1000)
        file.warn(
            f"cosine_max_len: {longest} is read as tokens; open-r1 counts characters. Beyond the "
            f"limit, open-r1's cosine rises again; here the reward stays constant"
        )
    if "length" in rewards:
        file.warn(
            "reward_funcs: length counts tokens in the group of a prompt; in open-r1 it counts "
            "characters in the batch of a process"
        )
    _warn_of_format(file, defaults["response_format"], rewards)
    return defaults, name


def _older_trl_defaults(file: _File) -> tuple[Keys, str]:
    """Return the defaults of the TRL for which a GRPO file was written, and its name."""
    keys = file.values.keys()
    defaults = dict(_TABLES["then"]["grpo"])
    if not keys & _TABLES["before_0_18"] or keys & _TABLES["since_0_18"]:
        return defaults, "open-r1 (with TRL 0.16 or 0.17: --temperature 0.9 --top_k 50; TRL 0.18)"
    defaults["temperature"] = 0.9
    if keys & _TABLES["since_0_16"]:
        defaults["top_k"] = 50
        return defaults, "open-r1 (TRL 0.16 or 0.17)"
    name = "open-r1 (with TRL 0.16 or 0.17: --top_k 50; TRL 0.14 or 0.15)"
    if file.get("use_vllm") not in (True, "true"):
        defaults["top_k"] = 50  # The default of Transformers, and of TRL from 0.16 on.
        name = "open-r1 (TRL 0.14 to 0.17)"
    temperature = file.get("temperature", 0.9)
    if str(temperature) not in ("1", "1.0"):
        file.warn(
            f"temperature: {temperature}: the loss divides its logits by it, which TRL before 12 "
            f"March 2025 (04f659737) did not"
        )
    used = {*keys, *file.typed, *_rewards(file.get("reward_funcs"))}
    if used.intersection(_TABLES["newer"]):
        return defaults, name
    _warn_of_prompt_batches(file)
    name = "open-r1 before 18 Feb 2025 (if it is newer: --system_prompt ''; TRL 0.14 or 0.15)"
    return defaults | _TABLES["then"]["grpo_before_february"], name


def _format_name(rewards: set[str], system_prompt: Any) -> str:
    """Return the name of the format that a prompt asks for, or that open-r1's rewards read.

    The reward accuracy of open-r1 reads an answer anywhere, its other rewards read tags.
    """
    name = "think_answer" if {"format", "tag_count", "code_format"} & rewards else "boxed"
    prompt = str(system_prompt)
    named = [fmt for fmt in FORMATS.values() if all(tag.rstrip("{") in prompt for tag in fmt.tags)]
    if named and ("<answer>" in prompt) == (name == "boxed"):
        return max(named, key=lambda fmt: len(fmt.tags)).name
    return name


def _warn_of_format(file: _File, name: str, rewards: set[str]) -> None:
    """Warn about rewards that read completions in another way than in open-r1."""
    fmt = FORMATS.get(str(file.typed.get("response_format", name)))
    if fmt is None:
        return
    expected = "response_format" in file.typed or fmt.answer_tags == ("<answer>", "</answer>")
    if "format" in rewards and not expected:
        file.warn(
            f"reward_funcs: format rewards {name}, for which system_prompt asks; in open-r1 it "
            f"scored 0 without <answer> tags"
        )
    if fmt.answer_tags:
        part = f"the {fmt.answer_tags[0]} block"
    elif fmt.reasoning_tags:
        part = f"the text after {fmt.reasoning_tags[1]}"
    else:
        return
    file.warn(
        f"reward_funcs: accuracy and code read only {part}; in open-r1 they read the whole "
        f"completion"
    )


def _warn_of_prompt_batches(file: _File) -> None:
    """Warn that batches of TRL before 6 Feb 2025 (cf97133d5) were counted in prompts.

    The warning names the batch of the same size. Both defaults were 8.
    """
    # TRL has reward_weights since 11 Feb 2025.
    if "per_device_train_batch_size" in file.typed or "reward_weights" in file.values:
        return
    device = str(file.get("per_device_train_batch_size", 8))
    group = str(file.get("num_generations", 8))
    if device.isdigit() and group.isdigit():
        same = int(device) * int(group)
        file.warn(
            f"per_device_train_batch_size: {device} counts completions; TRL before 6 Feb 2025 "
            f"counted prompts (for the same batch: --per_device_train_batch_size {same})"
        )


def read(config: Keys, overrides: Keys, method: str, source: str, warnings: list[str]) -> Keys:
    """Return the keys of a file by their current names, with the defaults that it relied on."""
    defaults = older_defaults(config, overrides, method, source, warnings)
    return defaults | translate(config, source, warnings)


def older_defaults(
    values: Keys, typed: Keys, method: str, source: str, warnings: list[str]
) -> Keys:
    """Return the defaults that a file of another project relied on, or ``{}`` for our recipes.

    ``values`` are not translated yet, and ``typed`` are the keys of the command line. A file of
    another project has a key that only older files have, and no key that only our recipes have.
    """
    older_keys = {*RENAMED, *OBSOLETE, *RESHAPED, *REFUSED}
    if method not in ("grpo", "sft") or older_keys.isdisjoint(values):
        return {}
    file = _File(values, typed, source, warnings)
    keys = {*values, *typed}
    ours = " and ".join(sorted(values.keys() & _TABLES["ours"]))
    if ours:
        current = _TABLES["today"][method].items()
        today = ", ".join(f"{key} {value}" for key, value in current if key not in keys)
        file.warn(
            f"read with the current defaults ({today}, …). To use the defaults of its time, "
            f"remove {ours}"
        )
        return {}
    if "beta" in values and keys.isdisjoint(("reward_funcs", "num_generations")):
        raise RecipeError(
            f"{source}: beta without reward_funcs: preference training is not supported. Fix: trl "
            f"dpo --config {source} (or trl kto)"
        )
    older = _older_grpo_defaults if method == "grpo" else _older_sft_defaults
    defaults, name = older(file)
    present = {RENAMED.get(key, key) for key in keys}
    if "mapper" in typed:  # Do not combine it with the settings of another mapper.
        present.add("mapper_config")
    defaults = {key: value for key, value in defaults.items() if key not in present}
    text = yaml.safe_dump(defaults, default_flow_style=True, sort_keys=False, width=10_000)[1:-2]
    file.warn(
        f"read as a file for {name}: {text}; a key in the file or on the command line takes "
        f"precedence"
    )
    return defaults


def _older_sft_defaults(file: _File) -> tuple[Keys, str]:
    """Return the defaults that an SFT file relied on, and the name of its project."""
    values, name = file.values, file.get("dataset_name")
    if name in ("openai/gsm8k", "gsm8k") and "mapper" not in file.typed:
        raise RecipeError(
            f"{file.source}: dataset_name: must have conversations in a column messages, got "
            f"{name}, whose rows have questions and answers. The project of this file converted "
            f"them. Fix: --mapper gsm8k"
        )
    if values.pop("system_prompt", None):
        file.warn("system_prompt is ignored: in open-r1, SFT uses it only for benchmarks")
    defaults = {**_TABLES["then"]["sft"], "mapper_config": {"whole": True}}
    if values.get("packing", "dataset_mixer" in values):
        defaults["packing_strategy"] = "wrapped"
    if "dataset_mixer" in values:
        defaults["packing"] = True  # run_sft.py ignored the key and always packed.
        return defaults, "alignment-handbook (TRL 0.12)"
    averaged = file.get("average_tokens_across_devices") in (True, "true")
    if averaged or {"max_seq_length", "dataset_mixture"} <= values.keys():
        # Since 19f0345 these have the current defaults.
        for key in ("bf16", "average_tokens_across_devices", "packing_strategy"):
            defaults.pop(key, None)
        return defaults, "alignment-handbook (TRL 0.19)"
    since = "since July 2025: --average_tokens_across_devices true; TRL 0.18"
    return defaults, f"open-r1 or alignment-handbook ({since})"


def translate(values: Keys, source: str, warnings: list[str]) -> Keys:
    """Return the keys of older TRL and other projects by their current names, with a warning each.

    ``source`` is the name of the file in messages.
    """
    file = _File(values, {}, source, warnings)
    refused = _rewards(values.get("reward_funcs")) & REFUSED_REWARDS.keys()
    if refused:
        name = min(refused)
        raise RecipeError(
            f"{source}: reward_funcs: {name} {REFUSED_REWARDS[name]}, which is not included. "
            f"Fix: code, binary_code or my_module:{name}"
        )
    result: Keys = {}
    for key, value in values.items():
        if key in REFUSED:
            raise RecipeError(f"{source}: {key}: {REFUSED[key]}")
        if key in OBSOLETE:
            file.warn(f"{key} is ignored: {OBSOLETE[key]}")
        elif key in RESHAPED:
            _add_data(result, key, file)
        else:
            new_values = _TABLES["renamed_values"].get(key, {})
            new_value = new_values.get(str(value), value)
            if new_value is not value:
                file.warn(f"{key}: {value} is read as {new_value}")
            _add(result, key, RENAMED.get(key, key), new_value, file)
    return result


def _add_data(result: Keys, key: str, file: _File) -> None:
    """Add the data of alignment-handbook in the place of ``dataset_mixer``."""
    if "dataset_mixer" not in file.values:
        file.warn(
            f"{key} is ignored: open-r1 never read it, and alignment-handbook reads it only with "
            f"dataset_mixer. Fix: {_TABLES['unread'][key]}"
        )
    elif key != "dataset_mixer":
        file.warn(f"{key} is read with dataset_mixer")
    else:
        for new, value in _read_data(file).items():
            _add(result, key, new, value, file)


def _read_data(file: _File) -> Keys:
    given = {key: file.values[key] for key in RESHAPED if key in file.values}
    try:
        return _mixture_keys(**given)
    except (AttributeError, TypeError, ValueError) as error:
        expected = "; ".join(RESHAPED[key] for key in given)
        values = "; ".join(map(repr, given.values()))
        raise RecipeError(
            f"{file.source}: {', '.join(given)}: must be {expected}, got {values}. Fix: "
            "dataset_mixture: {datasets: [{id, split, weight}]}, or dataset_name, dataset_config "
            "and the two splits"
        ) from error


def _add(result: Keys, key: str, new: str, value: Any, file: _File) -> None:
    """Add a key under its current name. Raise a RecipeError if the file has that name, too."""
    if new in result or (new != key and new in file.values):
        raise RecipeError(
            f"{file.source}: {key} is the old name of {new}, and both are set. Fix: keep only {new}"
        )
    if new != key:
        file.warn(f"{key} is read as {new}: {value}")
    result[new] = value
