"""Read the rows of one split from a generator, a local file or folder, or a hub.

Importing this module does not import torch.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line, nearest
from r1_recipes.common.files import shipped
from r1_recipes.common.plugins import NAMES, load

if TYPE_CHECKING:
    from datasets import Dataset

_READERS = {
    ".parquet": "parquet",
    ".csv": "csv",  # read here
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
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
        return load("dataset", prefix)(rest, split, task_config or {})
    from datasets import Features, Json, Value, concatenate_datasets, load_dataset, load_from_disk

    try:
        place = _place(path, name, split, config, revision, hub)
        tables = (
            _tables(path / place.get("data_dir", ""), split.partition("[")[0])
            if path.is_dir() and not place.get("name")
            else ([path] if place["path"] == "csv" else [])
        )
        if tables:
            rows = _part(concatenate_datasets([*map(_read_csv, tables)]), split)
        elif (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            rows = _part(load_from_disk(str(path)), split)
        else:
            rows = load_dataset(**place, split=split)
            if rows.info.builder_name == "csv":  # of a hub; see _read_csv
                types = Features(
                    {
                        column: kind if "ClassLabel" in str(kind) else Value("string")
                        for column, kind in rows.features.items()
                    }
                )
                rows = load_dataset(**place, split=split, features=types, keep_default_na=False)
            # pyarrow takes a text such as 2024-01-01T10:00:00 in JSON for a time, which prints in
            # another spelling.
            mixed = [
                name
                for name, kind in rows.features.items()
                if re.search("timestamp|Json", str(kind))
            ]
            if mixed and rows.info.builder_name == "json":
                types = Features(rows.features | dict.fromkeys(mixed, Json()))
                rows = load_dataset(**place, split=split, features=types)
                rows = _with_texts(rows, mixed)
        rows = _with_names(rows) if "ClassLabel" in str(rows.features) else rows
        if not len(rows):
            raise ValueError("holds no rows")
    # A torn file, a wrong configuration, a network that is down: each library has types of its own,
    # and says which.
    except Exception as error:
        where = f"dataset_name: {name}{f' ({config})' if config else ''}, split {split!r}"
        raise RecipeError(f"{where}: cannot be read: {_cause(error, path)}") from error
    return rows


def _cause(error: Exception, path: Path) -> str:
    cause = first_line(error.__cause__ or error)
    cause += " Fix: iconv -f windows-1252 -t utf-8 FILE > NEW (or gbk, utf-16, …)" * (
        "utf-8" in cause.casefold()
    )
    beside = [] if path.exists() else [each.name for each in path.parent.glob("*")]
    for close in nearest(path.name, beside, 1):
        cause += f" Did you mean {path.parent / close}?"
    return cause


def _place(
    path: Path, name: str, split: str, config: str | None, revision: str | None, hub: str
) -> dict[str, Any]:
    reader, whole = _READERS.get(path.suffix.lower()), split.partition("[")[0]
    if path.is_file() or reader:
        if not reader or whole not in ("train", "test", "validation"):
            raise ValueError(
                f"a file ends in {', '.join(_READERS)}, and is read as train, test or validation"
            )
        if not path.is_file():
            raise ValueError(f"no such file (looked in {Path.cwd()}, then beside the recipe)")
        return {"path": reader, "data_files": {whole: str(path)}}
    if hub == "modelscope" and not path.exists():
        from modelscope import dataset_snapshot_download  # heavy

        path = Path(dataset_snapshot_download(name, revision=revision))
    place = {"path": str(path) if path.exists() else name, "revision": revision}
    # A slash at the end means a folder instead of a configuration. Many copies have folders, too.
    if config and (config.endswith("/") or (path / config).is_dir()):
        return {**place, "data_dir": config.rstrip("/")}
    return {**place, "name": config}


def _with_texts(rows: Dataset, columns: list[str]) -> Dataset:
    """Return rows whose texts are as they stand in the file.

    datasets 5.2 reads the text 007 as 7 in a column that has numbers, too. It stores what it read.
    """
    for name in columns:
        cells = rows.with_format("arrow")[:][name].to_pylist()
        if any(cell and cell[0] not in "{[" for cell in cells):
            texts = [json.loads(cell) if cell and cell[0] == '"' else cell for cell in cells]
            rows = rows.remove_columns(name).add_column(name, texts)
    return rows


def _with_names(rows: Dataset) -> Dataset:
    """Return rows with the names of classes, which datasets stores as numbers, -1 for none."""
    for column, kind in rows.features.items():
        if names := getattr(kind, "names", None):
            texts = [None if at in (None, -1) else names[at] for at in rows[column]]
            rows = rows.remove_columns(column).add_column(column, texts)
    return rows


def _part(source: Any, split: str) -> Dataset:
    from datasets import Dataset, ReadInstruction  # heavy

    # datasets reads train[-128:] itself, but not of rows that are in memory already.
    splits = {split.partition("[")[0]: source} if isinstance(source, Dataset) else source
    sizes = {name: len(rows) for name, rows in splits.items()}
    (part,) = ReadInstruction.from_spec(split).to_absolute(sizes)
    return splits[part.splitname].select(range(part.from_, part.to))


def _tables(folder: Path, split: str) -> list[Path]:
    """Return a folder's CSV files of a split, as datasets chooses them by their paths.

    Of several kinds of files, it would read one in silence.
    """
    from datasets.data_files import DataFilesDict, get_data_patterns  # heavy

    found = DataFilesDict.from_patterns(
        get_data_patterns(str(folder)), str(folder), allowed_extensions=[*_READERS]
    )
    files = [Path(file) for file in found.get(split, ())]
    kinds = {_READERS.get(file.suffix, file.suffix) for file in files}
    if len(kinds) > 1:
        raise ValueError(f"holds files of several kinds: {', '.join(kinds)}. Fix: one per folder")
    return files if kinds == {"csv"} else []


def _read_csv(path: Path) -> Dataset:
    # Every cell is text, and an empty one None. pandas, with which datasets reads CSV, makes 7 of
    # 007 and nothing of NA. An unquoted 1,080 in the first line shifts all its columns in silence.
    from datasets import Dataset  # heavy

    csv.field_size_limit(2**31 - 1)  # characters; Python's default is 131,072
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = re.sub('"[^"]*"', "", file.readline())
        file.seek(0)
        delimiter = max(",;\t|", key=header.count)
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)
        names, rows = reader.fieldnames or [], []
        for row in reader:
            if None in row or None in row.values() or len(row) < len(names):
                raise ValueError(
                    f"line {reader.line_num} does not fit the header. Fix: one name a column, and "
                    f"cells that contain {delimiter!r} in double quotes"
                )
            rows.append({name: cell or None for name, cell in row.items() if name})
    return Dataset.from_list(rows)


def split_fix(rows: int) -> str:
    """Return recipe keys that hold out the last tenth of the rows, at most 200, for the test."""
    last = max(1, min(200, rows // 10))
    return f"dataset_train_split: 'train[:-{last}]' and dataset_test_split: 'train[-{last}:]'"
