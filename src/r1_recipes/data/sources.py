"""Read the rows of one split from a generator, a local file or folder, or a hub.

Importing this module does not import torch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from r1_recipes.common import extras
from r1_recipes.common.errors import RecipeError, first_line, install_hint, nearest
from r1_recipes.common.files import shipped

if TYPE_CHECKING:
    from datasets import Dataset

_ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".ndjson")
# A data set without splits can be read as any of these.
_SPLITS = dict.fromkeys(("train", "test", "validation"))


def load_rows(
    name: str,
    split: str,
    *,
    config: str | None = None,
    revision: str | None = None,
    hub: str = "huggingface",
    task_config: dict[str, Any] | None = None,
) -> Dataset:
    """Read one split of a source.

    Args:
        name: ``reasoning_gym:TASK``, ``countdown:2-6``, a path (a file, a folder of files, a
            ``save_to_disk`` folder), or an id on the hub.
        split: The split, or a part of it: ``train[-128:]``. A single file can be read as train,
            test and validation.
        config: The configuration of a hub dataset, or a sub-folder. A sub-folder of a hub dataset
            ends in a slash.
        revision: The revision of a hub dataset.
        hub: ``huggingface`` or ``modelscope``.
        task_config: The settings of rows that are generated.

    Raises:
        RecipeError: A file, split, configuration, package or connection is missing; the message
            says what there is instead.
    """
    prefix, colon, rest = name.partition(":")
    generators = extras.installed()["dataset"]
    if colon and prefix in generators:
        rows: Dataset = extras.load(generators[prefix])(rest, split, task_config or {})
        return rows
    path = shipped(Path(name).expanduser())
    if path.exists():
        if (bounds := re.fullmatch(r"([^\[]*)(?:\[(-?\d+)?:(-?\d+)?\])?", split)) is None:
            raise RecipeError(
                f"split {split!r}: local files can be sliced by row number only. "
                f"Fix: for example train[:-128] and train[-128:]"
            )
        rows = _local_rows(path, bounds[1], config)
        if bounds[1] == split:
            return rows
        kept = range(len(rows))[
            slice(*(None if bound is None else int(bound) for bound in bounds.groups()[1:]))
        ]
        if not kept:
            raise RecipeError(
                f"split {split!r} selects no rows: {path} has {len(rows)}. "
                f"Fix: {split_fix(len(rows))}"
            )
        return rows.select(kept)
    if path.is_symlink():
        raise RecipeError(
            f"dataset_name: {name}: is a link to {os.readlink(path)}, which does not exist. "
            f"Fix: repair or remove the link"
        )
    # The id of a hub dataset has at most one slash.
    if (
        name.startswith(("/", "./", "../", "~"))
        or path.suffix.lower() in _ENDINGS
        or len(path.parts) > 2
    ):
        raise RecipeError(
            f"dataset_name: {name}: no such file or folder (looked in {Path.cwd()}, then "
            f"beside the recipe).{_near(path)}"
        )
    return _hub_rows(name, split, config, revision, hub)


def split_fix(rows: int) -> str:
    """Return recipe keys that hold out the last tenth of the rows, at most 200, for the test."""
    last = max(1, min(200, rows // 10))
    return f"dataset_train_split: 'train[:-{last}]' and dataset_test_split: 'train[-{last}:]'"


def _near(path: Path) -> str:
    close = nearest(
        path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    )
    return f" Did you mean {path.parent / close[0]}?" if close else ""


def _local_rows(path: Path, split: str, config: str | None) -> Dataset:
    from datasets import Dataset, load_from_disk  # heavy

    from r1_recipes.data.rows import read_files, unreadable  # heavy

    folder = path / config if config and (path / config).is_dir() else path
    splits: Any
    is_saved = (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()
    try:
        if path.is_file():
            if path.suffix.lower() not in _ENDINGS:
                raise RecipeError(
                    f"dataset_name: {path}: {path.suffix or 'no ending'} is not one of "
                    f"{', '.join(_ENDINGS)}. Fix: save the file as CSV"
                )
            splits = dict.fromkeys(_SPLITS, (path,))
        elif is_saved:
            _check_saved(path)
            loaded = load_from_disk(str(path))
            splits = dict.fromkeys(_SPLITS, loaded) if isinstance(loaded, Dataset) else loaded
        else:
            splits = _files_by_split(folder, config)
        if split not in splits:
            raise _no_split(splits, split, path if is_saved else folder)
        rows = _undecoded(splits[split]) if is_saved else read_files([*map(Path, splits[split])])
    except Exception as error:  # datasets raises many types of error for an unreadable file.
        raise (
            error
            if isinstance(error, RecipeError)
            else unreadable(folder, first_line(error.__cause__ or error))
        ) from error
    if not len(rows):
        raise unreadable(path, "holds no rows")
    return rows


def _undecoded(rows: Dataset) -> Dataset:
    """Return the rows with pictures, sound and similar values as ``{"bytes", "path"}``.

    Decoding would open the path or URL that a row names, and an untrusted row may name any.
    """
    from datasets import Dataset  # heavy

    from r1_recipes.data.rows import plain_features  # heavy

    info = rows.info.copy()
    info.features = plain_features(rows.features)
    if info.features == rows.features:
        return rows
    # cast() would write nested columns to disk again.
    return Dataset(rows.data, info=info, split=rows.split, indices_table=rows._indices)


def _check_inside(folder: Path, names: list[str]) -> None:
    # Do not follow links: all files in a snapshot of the hub cache are links to files outside it.
    base = os.path.abspath(folder)
    for name in names:
        if "://" in name or not Path(os.path.abspath(folder / name)).is_relative_to(base):
            raise RecipeError(
                f"dataset_name: {folder}: reads data from {name}, outside of the folder. "
                f"Fix: move this file into the folder"
            )


def _check_saved(path: Path) -> None:
    """Raise if a ``save_to_disk`` folder names files outside of the folder."""
    splits = [""]
    if (path / "dataset_dict.json").is_file():
        splits = json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        _check_inside(path, splits)
    for split in splits:
        state = json.loads((path / split / "state.json").read_text(encoding="utf-8"))
        _check_inside(path / split, [file["filename"] for file in state["_data_files"]])


def _files_by_split(folder: Path, config: str | None) -> dict[str, list[str]]:
    """Return the data files of a folder by split.

    datasets finds them by name, by sub-folder, or by the configuration in the README.
    """
    from datasets import load_dataset_builder  # heavy

    configs = json.dumps(_configs(folder), default=str)
    if re.search("://|::", configs):  # Even listing the files of a URL would send a request.
        raise RecipeError(
            f"dataset_name: {folder}: README.md reads data from a URL. Fix: download the "
            f"data, and name its folder in dataset_name"
        )
    by_split = load_dataset_builder(
        str(folder), name=config if f'"config_name": "{config}"' in configs else None
    ).config.data_files
    files = [str(file) for names in by_split.values() for file in names]
    _check_inside(folder.resolve(), files)
    if foreign := sorted(
        {Path(file).name for file in files if Path(file).suffix.lower() not in _ENDINGS}
    ):
        raise RecipeError(
            f"dataset_name: {folder}: contains {', '.join(foreign[:3])}, whose ending is none "
            f"of {', '.join(_ENDINGS)}. "
            "Fix: unpack the file, save it as Parquet, or move it out of the folder"
        )
    return by_split


def _configs(folder: Path) -> Any:
    """Return the configurations that README.md and .huggingface.yaml declare."""
    from huggingface_hub import DatasetCard  # heavy

    card, standalone = folder / "README.md", folder / ".huggingface.yaml"
    metadata = (
        [DatasetCard.load(card).data.to_dict()]
        if card.is_file() and b"---" in card.read_bytes()
        else []
    )
    metadata += (
        [yaml.safe_load(standalone.read_text(encoding="utf-8")) or {}]
        if standalone.is_file()
        else []
    )
    return [fields.get("configs") for fields in metadata]


def _no_split(splits: Iterable[Any], split: str, path: Path) -> RecipeError:
    names = [str(name) for name in splits]
    close = nearest(split, names, 1)
    hint = f". Did you mean {close[0]!r}?" if close else ""
    return RecipeError(
        f"split {split!r} is not in {path}, which has {', '.join(map(repr, names))}{hint}"
    )


def _hub_rows(name: str, split: str, config: str | None, revision: str | None, hub: str) -> Dataset:
    from datasets import load_dataset  # heavy

    try:
        if hub == "modelscope":
            from modelscope import dataset_snapshot_download  # heavy

            # Download only the files: the loader of ModelScope does not support datasets 5.
            return load_rows(
                dataset_snapshot_download(name, revision=revision), split, config=config
            )
        # A slash at the end means a folder of the repository instead of a configuration.
        where = (
            {"data_dir": config.rstrip("/")}
            if config and config.endswith("/")
            else {"name": config}
        )
        return _undecoded(load_dataset(name, **where, split=split, revision=revision))
    except RecipeError:
        raise
    # Offline, gated, misspelt or a wrong configuration: the message of the library says which.
    except Exception as error:
        missing = hub == "modelscope" and isinstance(error, ImportError)
        fix = (
            install_hint("modelscope")
            if missing
            else "use a local copy (--dataset_name PATH), or the other --hub"
        )
        raise RecipeError(
            f"dataset_name: {name!r}{f' ({config})' if config else ''}, split {split!r} "
            f"cannot be loaded from {hub}: "
            f"{first_line(error)} Fix: {fix}.{_near(Path(name))}"
        ) from error
