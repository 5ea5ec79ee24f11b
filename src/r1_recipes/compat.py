"""YAML files of open-r1, alignment-handbook and older TRL as recipes; what the loader accepts of them is decided here.

Settings of veRL and ms-swift are refused: docs/migration.md says which keys of a recipe stand for them.
"""

from __future__ import annotations

from typing import Any

from r1_recipes.errors import RecipeError

# Top-level sections of veRL's configuration, and flags of ms-swift alone; none of them is a key of a recipe.
_FOREIGN = {
    "veRL": {"actor_rollout_ref", "algorithm", "data", "trainer"},
    "ms-swift": {"external_plugins", "rlhf_type", "train_type", "tuner_type"},
}


def refuse_foreign(values: dict[str, Any], source: str) -> None:
    """Refuse settings of veRL, nested or with dots, and of ms-swift.

    Raises:
        RecipeError: names a key and the page that has its counterpart.
    """
    for key in values:
        for project, theirs in _FOREIGN.items():
            if key.partition(".")[0] in theirs:
                raise RecipeError(f"{source}: {key} is a setting of {project}. Fix: write a recipe by the table in docs/migration.md")


def translate_shapes(values: dict[str, Any], source: str, warnings: list[str]) -> dict[str, Any]:
    """Rewrite settings whose value has another shape here; the others stay as they are.

    Args:
        values: a file's or a command line's keys; not changed.
        source: what to call it in messages.
        warnings: gets one sentence a rewritten key.

    Raises:
        RecipeError: such a key has a value that cannot be read, or stands beside its counterpart.
    """
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
