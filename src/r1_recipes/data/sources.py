"""Read the rows of one split from a generator, a local file or folder, or a hub.

Importing this module does not import torch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from r1_recipes.common.errors import RecipeError, first_line, install_hint, nearest
from r1_recipes.common.files import shipped
from r1_recipes.common.names import NAMES, load

if TYPE_CHECKING:
    from datasets import Dataset

_ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".ndjson")
# A data set without splits can be read as any of these.
_SPLITS = ("train", "test", "validation")


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
        name: ``sums``, ``countdown:2-6``, a path (a file, a folder of files, a
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
    if prefix in NAMES["dataset"] and (colon or not Path(name).exists()):
        rows: Dataset = load("dataset", prefix)(rest, split, task_config or {})
        return rows
    path = shipped(Path(name))
    if path.exists():
        match = re.fullmatch(r"([^\[]*)(?:\[(-?\d+)?:(-?\d+)?\])?", split)
        if match is None:
            raise RecipeError(
                f"split {split!r}: local files can be sliced by row number only. "
                f"Fix: for example train[:-128] and train[-128:]"
            )
        whole, *bounds = match.groups()
        rows = _local_rows(path, whole, config)
        if whole == split:
            return rows
        start, stop = [int(bound) if bound else None for bound in bounds]
        kept = range(len(rows))[start:stop]
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
    is_file_name = path.suffix.lower() in _ENDINGS or name.startswith(("/", "./", "../", "~"))
    if is_file_name or len(path.parts) > 2:  # The id of a hub dataset has at most one slash.
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
    if not path.parent.is_dir():
        return ""
    close = nearest(path.name, [neighbour.name for neighbour in path.parent.iterdir()])
    return f" Did you mean {path.parent / close[0]}?" if close else ""


def _local_rows(path: Path, split: str, config: str | None) -> Dataset:
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
            splits = _saved_splits(path)
        else:
            splits = _files_by_split(folder, config)
        if split not in splits:
            raise _no_split(splits, split, path if is_saved else folder)
        rows = _undecoded(splits[split]) if is_saved else read_files([*map(Path, splits[split])])
    except RecipeError:
        raise
    except Exception as error:  # datasets raises many types of error for an unreadable file.
        raise unreadable(folder, first_line(error.__cause__ or error)) from error
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


def _saved_splits(path: Path) -> dict[Any, Dataset]:
    """Return a ``save_to_disk`` folder's rows by split. Raise if it names files outside of it."""
    from datasets import Dataset, load_from_disk  # heavy

    splits = [""]
    index = path / "dataset_dict.json"
    if index.is_file():
        splits = json.loads(index.read_text(encoding="utf-8"))["splits"]
        _check_inside(path, splits)
    for split in splits:
        folder = path / split
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        _check_inside(folder, [file["filename"] for file in state["_data_files"]])
    loaded = load_from_disk(str(path))
    return dict.fromkeys(_SPLITS, loaded) if isinstance(loaded, Dataset) else loaded


def _files_by_split(folder: Path, config: str | None) -> dict[str, list[str]]:
    """Return the data files of a folder by split.

    datasets finds them by name, by sub-folder, or by the configuration in the README.
    """
    from datasets import load_dataset_builder  # heavy

    configs = json.dumps(_configs(folder), default=str, ensure_ascii=False)
    if re.search("://|::", configs):  # Even listing the files of a URL would send a request.
        raise RecipeError(
            f"dataset_name: {folder}: README.md reads data from a URL. Fix: download the "
            f"data, and name its folder in dataset_name"
        )
    declared = config if f'"config_name": "{config}"' in configs else None
    by_split = load_dataset_builder(str(folder), name=declared).config.data_files
    files = list(chain(*by_split.values()))
    _check_inside(folder.resolve(), files)
    foreign = {Path(file).name for file in files if Path(file).suffix.lower() not in _ENDINGS}
    if foreign:
        names = ", ".join(sorted(foreign)[:3])
        raise RecipeError(
            f"dataset_name: {folder}: contains {names}, whose ending is none "
            f"of {', '.join(_ENDINGS)}. "
            "Fix: unpack the file, save it as Parquet, or move it out of the folder"
        )
    return by_split


def _configs(folder: Path) -> Any:
    """Return the configurations that README.md and .huggingface.yaml declare."""
    from huggingface_hub import DatasetCard  # heavy

    configs = []
    card = folder / "README.md"
    if card.is_file() and b"---" in card.read_bytes():
        configs.append(DatasetCard.load(card).data.get("configs"))
    standalone = folder / ".huggingface.yaml"
    if standalone.is_file():
        fields = yaml.safe_load(standalone.read_text(encoding="utf-8"))
        configs.append(fields and fields.get("configs"))
    return configs


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
            folder = dataset_snapshot_download(name, revision=revision)
            return load_rows(folder, split, config=config)
        where = {"name": config}
        # A slash at the end means a folder of the repository instead of a configuration.
        if config and config.endswith("/"):
            where = {"data_dir": config.rstrip("/")}
        return _undecoded(load_dataset(name, **where, split=split, revision=revision))
    except RecipeError:
        raise
    # Offline, gated, misspelt or a wrong configuration: the message of the library says which.
    except Exception as error:
        fix = "use a local copy (--dataset_name PATH), or the other --hub"
        if hub == "modelscope" and isinstance(error, ImportError):
            fix = install_hint("modelscope")
        shown_config = f" ({config})" if config else ""
        raise RecipeError(
            f"dataset_name: {name!r}{shown_config}, split {split!r} cannot be loaded from {hub}: "
            f"{first_line(error)} Fix: {fix}.{_near(Path(name))}"
        ) from error
