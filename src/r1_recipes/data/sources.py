"""Where rows come from: a hub, a local file or folder, or a reasoning-gym task. Returns ``datasets.Dataset``; imports no torch."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.errors import RecipeError, first_line, install_hint, nearest, unknown_name

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

_FILE_BUILDERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
_TASK_PREFIX = "reasoning_gym:"
_EMBEDDED_PREFIX = "embedded:"


def load_rows(
    name: str,
    split: str,
    *,
    config: str | None = None,
    revision: str | None = None,
    hub: str = "huggingface",
    task_config: dict[str, Any] | None = None,
) -> Dataset:
    """Read one split.

    Args:
        name: ``reasoning_gym:TASK``; a path (file, folder of files, or ``save_to_disk`` folder); else an id on the hub.
        split: split name; a single file is every split.
        config: configuration of a hub dataset, or sub-folder of a local one.
        revision: revision of a hub dataset.
        hub: ``"huggingface"`` or ``"modelscope"``.
        task_config: for a reasoning-gym task, see :func:`reasoning_gym_rows`.

    Raises:
        RecipeError: what is missing (file, split, configuration, package, network) and what there is instead.
    """
    if name.startswith(_TASK_PREFIX):
        return reasoning_gym_rows(name.removeprefix(_TASK_PREFIX), split, task_config or {})
    path = Path(name).expanduser()
    if path.exists():
        return _local_rows(path, split, config)
    # A hub id has one slash at most.
    if name.startswith(("/", "./", "../", "~")) or path.suffix in _FILE_BUILDERS or len(path.parts) > 2:
        raise RecipeError(f"dataset_name: {name}: no such file or folder (looked from {Path.cwd()}).{_near(path)}")
    if hub == "modelscope":
        return _modelscope_rows(name, split, config, revision)
    return _hub_rows(name, split, config, revision)


def _near(path: Path) -> str:
    """The hint for a path that is not there; empty where nothing beside it is like it."""
    close = nearest(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])
    return f" Did you mean {path.parent / close[0]}?" if close else ""


def _local_rows(path: Path, split: str, config: str | None) -> Dataset:
    from datasets import Dataset, DatasetDict, load_dataset, load_from_disk

    try:
        if path.is_file():
            if path.suffix not in _FILE_BUILDERS:
                raise RecipeError(f"dataset_name: {path}: {path.suffix or 'no ending'} is not one of {', '.join(_FILE_BUILDERS)}")
            options = {"sep": "\t"} if path.suffix == ".tsv" else {}
            return load_dataset(_FILE_BUILDERS[path.suffix], data_files=str(path), split="train", **options)
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            loaded = load_from_disk(str(path))
            if isinstance(loaded, DatasetDict):
                return _pick_split(loaded, split, str(path))
            return loaded
        folder = path / config if config and (path / config).is_dir() else path
        loaded = load_dataset(str(folder))
        return loaded if isinstance(loaded, Dataset) else _pick_split(loaded, split, str(folder))
    except RecipeError:
        raise
    except Exception as error:  # datasets raises many kinds for one thing: this file cannot be read
        raise RecipeError(f"dataset_name: {path}: cannot be read: {first_line(error)}") from error


def _pick_split(splits: Any, split: str, name: str) -> Dataset:
    if split not in splits:
        raise RecipeError(f"split {split!r} is not in {name}; it has {', '.join(map(repr, splits))}")
    return splits[split]


def _hub_rows(name: str, split: str, config: str | None, revision: str | None) -> Dataset:
    from datasets import load_dataset

    try:
        return load_dataset(name, config, split=split, revision=revision)
    except Exception as error:  # offline, gated, misspelt, wrong config: the library's own words say which
        raise RecipeError(
            f"dataset_name: {name!r}{f' ({config})' if config else ''}, split {split!r} cannot be loaded from the Hugging Face hub: "
            f"{first_line(error)} A local copy works too: --dataset_name PATH. On ModelScope: --hub modelscope.{_near(Path(name))}"
        ) from error


def _modelscope_rows(name: str, split: str, config: str | None, revision: str | None) -> Dataset:
    try:
        from modelscope.msdatasets import MsDataset
    except ImportError as error:
        raise RecipeError(f"hub: modelscope cannot be used here ({error}): {install_hint('modelscope')}") from error
    options = {"version": revision} if revision else {}
    try:
        loaded = MsDataset.load(name, subset_name=config, split=split, **options)
    except Exception as error:  # as above: the library's own words
        raise RecipeError(f"dataset_name: {name!r}, split {split!r} cannot be loaded from ModelScope: {first_line(error)}") from error
    return loaded.to_hf_dataset() if hasattr(loaded, "to_hf_dataset") else loaded


def model_path(name: str, hub: str, revision: str | None = None) -> str:
    """A model id as Transformers can load it: as it is, the local snapshot that ModelScope downloads, or the embedded model's folder.

    Raises:
        RecipeError: ModelScope is asked for and not installed, or does not deliver; no such embedded model.
    """
    if name.startswith(_EMBEDDED_PREFIX):
        from r1_recipes.embedded import EMBEDDED

        if name.removeprefix(_EMBEDDED_PREFIX) not in EMBEDDED:
            raise RecipeError("model_name_or_path: " + unknown_name("embedded model", name.removeprefix(_EMBEDDED_PREFIX), EMBEDDED))
        return str(EMBEDDED[name.removeprefix(_EMBEDDED_PREFIX)]())
    if hub != "modelscope" or Path(name).exists():
        return name
    try:
        from modelscope import snapshot_download
    except ImportError as error:
        raise RecipeError(f"hub: modelscope cannot be used here ({error}): {install_hint('modelscope')}") from error
    try:
        # ModelScope's default branch is 'master'; 'main' is what TRL's model_revision defaults to.
        return snapshot_download(name, revision=None if revision in (None, "main") else revision)
    except Exception as error:
        raise RecipeError(f"model_name_or_path: {name!r} cannot be loaded from ModelScope: {first_line(error)}") from error


def reasoning_gym_rows(task: str, split: str, config: dict[str, Any]) -> Dataset:
    """Rows of a reasoning-gym task, with train and test disjoint by question.

    Args:
        task: name in reasoning-gym's registry.
        split: ``"train"`` or ``"test"``.
        config: the task's own keys, and ``train``/``test``: mappings with ``size``, ``seed`` and keys for that split alone. Question i
            is drawn from seed + i, so seeds closer together than the sizes share most questions.

    Returns:
        Columns ``question``, ``answer``, ``metadata`` (JSON text, since its shape differs by task). A training question that the test
        split holds is left out and replaced by the next one drawn.

    Raises:
        RecipeError: package missing, unknown task, unknown key, or too few distinct questions.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise RecipeError(f"reasoning_gym tasks need the package: {install_hint('demo')}") from error
    from datasets import Dataset

    if task not in DATASETS:
        raise RecipeError(unknown_name("reasoning_gym task", task, DATASETS))
    common = {key: value for key, value in config.items() if key not in ("train", "test")}
    for part in ("train", "test"):
        if not isinstance(config.get(part), dict) or not {"size", "seed"} <= set(config[part]):
            raise RecipeError(f"task_config: {part}: needs size and seed, found {config.get(part)!r}")
        for key, least in (("size", 1), ("seed", 0)):
            value = config[part][key]
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise RecipeError(f"task_config: {part}: {key}: a whole number from {least}, found {value!r}")
    if split not in ("train", "test"):
        raise RecipeError(f"split {split!r}: a reasoning_gym task has 'train' and 'test'")

    def draw(part: str, size: int) -> Any:
        options = {**common, **config[part], "size": size}
        try:
            return reasoning_gym.create_dataset(task, **options)
        except (TypeError, AssertionError, ValueError) as error:
            raise RecipeError(f"task_config of {task!r}: {first_line(error)}; keys given: {sorted(options)}") from error

    def unique(part: str, size: int, excluded: frozenset[str]) -> list[dict[str, Any]]:
        rows, seen, drawn = [], set(excluded), 0
        # A small task repeats itself; draw on until there is enough, but not for ever.
        for entry in draw(part, size * 20):
            drawn += 1
            if entry["question"] not in seen:
                seen.add(entry["question"])
                rows.append(entry)
                if len(rows) == size:
                    return rows
        raise RecipeError(f"task_config: {part}: only {len(rows)} distinct questions of {size} in {drawn} draws of {task!r}")

    rows = unique("test", config["test"]["size"], frozenset())
    if split == "train":
        rows = unique("train", config["train"]["size"], frozenset(row["question"] for row in rows))
    return Dataset.from_list(
        [{"question": r["question"], "answer": r["answer"], "metadata": json.dumps(r["metadata"], default=str)} for r in rows]
    )
