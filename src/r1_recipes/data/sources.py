"""Read the rows of one split from a generator, a local file or folder, or a hub.

Importing this module does not import torch.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line, install_hint, nearest
from r1_recipes.common.files import shipped
from r1_recipes.common.names import NAMES, load

if TYPE_CHECKING:
    from datasets import Dataset

_READERS = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
}


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
        config: The configuration of a dataset, or a sub-folder.
        revision: The revision of a hub dataset.
        hub: ``huggingface`` or ``modelscope``.
        task_config: The settings of rows that are generated.

    Raises:
        RecipeError: A file, split, configuration, package or connection is missing; the message
            says what there is instead.
    """
    prefix, _, rest = name.partition(":")
    path = shipped(Path(name))
    if prefix in NAMES["dataset"] and not path.exists():
        rows: Dataset = load("dataset", prefix)(rest, split, task_config or {})
        return rows
    try:
        if path.exists():
            rows = _read(path, split, config)
        else:
            rows = _read_hub(name, split, config, revision, hub)
    except RecipeError:
        raise
    # A torn file, a wrong configuration, a network that is down: each library has types of its own,
    # and says which.
    except Exception as error:
        fix = f" Fix: {install_hint('modelscope')}." if isinstance(error, ImportError) else ""
        raise RecipeError(
            f"dataset_name: {name}{f' ({config})' if config else ''}, split {split!r}: cannot be "
            f"read: {first_line(error.__cause__ or error)}{fix}{_near(path)}"
        ) from error
    if not len(rows):
        raise RecipeError(f"dataset_name: {name}, split {split!r}: holds no rows")
    return rows


def _read(path: Path, split: str, config: str | None) -> Dataset:
    """Read a file, which is every split, or a folder. A part of a split is ``train[:-128]``."""
    from datasets import load_dataset  # heavy

    reader, whole = _READERS.get(path.suffix.lower()), split.partition("[")[0]
    if path.is_file():
        if reader is None or whole not in ("train", "test", "validation"):
            raise RecipeError(
                f"dataset_name: {path}: a file must end in {', '.join(_READERS)}, and is read as "
                f"train, test or validation, got split {split!r}"
            )
        if reader == "csv":
            return _part(_read_csv(path), split)
        return load_dataset(reader, data_files={whole: str(path)}, split=split)
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        return _read_saved(path, split)
    # The name of a configuration may be a sub-folder, as in many copies.
    if config and (config.endswith("/") or (path / config).is_dir()):
        return load_dataset(str(path), data_dir=config.rstrip("/"), split=split)
    return load_dataset(str(path), config, split=split)


def _read_hub(name: str, split: str, config: str | None, revision: str | None, hub: str) -> Dataset:
    """Read a dataset of a hub, of which a slash at the end of ``config`` means a folder."""
    from datasets import load_dataset  # heavy

    path = Path(name)
    if path.suffix.lower() in _READERS or name.startswith(("/", "./", "../", "~")):
        raise RecipeError(
            f"dataset_name: {name}: no such file or folder (looked in {Path.cwd()}, then beside "
            f"the recipe).{_near(path)}"
        )
    if hub == "modelscope":
        from modelscope import dataset_snapshot_download  # heavy

        # Its own loader does not support datasets 5.
        return _read(Path(dataset_snapshot_download(name, revision=revision)), split, config)
    if config and config.endswith("/"):
        folder = config.rstrip("/")
        return load_dataset(name, data_dir=folder, split=split, revision=revision)
    return load_dataset(name, config, split=split, revision=revision)


def _read_saved(path: Path, split: str) -> Dataset:
    """Read a folder of ``save_to_disk``, whose single dataset is every split."""
    from datasets import DatasetDict, load_from_disk  # heavy

    saved, whole = load_from_disk(str(path)), split.partition("[")[0]
    if isinstance(saved, DatasetDict):
        if whole not in saved:
            raise RecipeError(f"split {whole!r} is not in {path}, which has {', '.join(saved)}")
        saved = saved[whole]
    return _part(saved, split)


def _part(rows: Dataset, split: str) -> Dataset:
    """Return the rows of ``train[-128:]``, as datasets does for the files that it reads."""
    bounds = re.fullmatch(r"\w+(?:\[(-?\d+)?:(-?\d+)?\])?", split)
    if bounds is None:
        raise RecipeError(
            f"split {split!r}: must be a name and rows. Fix: for example train[-128:]"
        )
    first, last = (int(bound) if bound else None for bound in bounds.groups())
    return rows.select(range(len(rows))[first:last])


def _read_csv(path: Path) -> Dataset:
    """Read a CSV file with every cell as text, and an empty one as None.

    pandas, with which datasets reads CSV, makes 7 of 007 and nothing of NA. An unquoted 1,080 in
    the first line shifts all its columns in silence.
    """
    from datasets import Dataset  # heavy

    csv.field_size_limit(2**31 - 1)  # characters; Python's default is 131,072
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = file.readline()
        file.seek(0)
        delimiter = max(",;\t|", key=re.sub('"[^"]*"', "", header).count)
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)
        names = reader.fieldnames or []
        if len({*names}) < len(names):
            raise ValueError(f"the header has a column twice: {', '.join(names)}")
        rows = []
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(
                    f"line {reader.line_num} has more or fewer cells than the header. Fix: put a "
                    f"cell that contains {delimiter!r} in double quotes"
                )
            rows.append({name: cell or None for name, cell in row.items() if name})
    return Dataset.from_list(rows)


def _near(path: Path) -> str:
    """Return a hint at the neighbour of a missing file that is spelt alike."""
    if path.exists() or not path.parent.is_dir():
        return ""
    close = nearest(path.name, [neighbour.name for neighbour in path.parent.iterdir()])
    return f" Did you mean {path.parent / close[0]}?" if close else ""


def split_fix(rows: int) -> str:
    """Return recipe keys that hold out the last tenth of the rows, at most 200, for the test."""
    last = max(1, min(200, rows // 10))
    return f"dataset_train_split: 'train[:-{last}]' and dataset_test_split: 'train[-{last}:]'"
