"""Read local JSON Lines, JSON, CSV and Parquet files as what stands in them.

One rule for numbers: ``str(value)`` is the text in the file. A JSON number that Python writes
otherwise (0.10, 1e400, 19 digits) is text, and so is every value of a column that mixes types (72
and "72 cm", 3 and 2.5). Every CSV cell is text; an empty one is ``None``.

``datasets`` writes the rows, but its readers cannot keep that rule. Its JSON reader makes 0.10 a
double and its CSV reader fills up a short line; neither says in which line a fault is. Its Parquet
reader takes the path of a file as a pattern, so that ``data[1]`` would read ``data1``.
"""

import csv
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from types import NoneType
from typing import Any
from uuid import uuid4

import datasets
import pyarrow
import pyarrow.parquet
from datasets.arrow_writer import ArrowWriter
from datasets.features.features import _visit
from datasets.fingerprint import Hasher
from datasets.utils.json import ujson_loads

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.files import not_utf8

_RULES = 4  # another number makes old cache files stale
_BATCH = 1000  # rows
_DTYPES = {bool: "bool", int: "int64", float: "float64", str: "string"}


def unreadable(path: Path, cause: str) -> RecipeError:
    return RecipeError(f"dataset_name: {path}: cannot be read: {' '.join(cause.split())}")


def read_files(paths: list[Path]) -> datasets.Dataset:
    """Read files of one format as one dataset, cached until a file changes.

    An error names file, line and cause.
    """
    stamps = []
    for path in paths:
        with path.open("rb") as file:
            if file.read(23) == b"version https://git-lfs":
                raise unreadable(path, "is a Git LFS pointer, not the data. Fix: git lfs pull")
        stamps.append((str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns))
    name = f"rows-{Hasher.hash((_RULES, stamps))}"
    if _cached_path(name).is_file():
        return _read_cached(name)
    is_parquet = paths[0].suffix.lower() == ".parquet"
    features = _parquet_features(paths) if is_parquet else _text_features(paths)
    for column in features:
        if "\0" in column:  # Arrow would cut it there
            raise unreadable(paths[0], f"column {column!r} has a NUL in its name")
    tables = chain.from_iterable(_tables(path, features) for path in paths)
    return write_cached(tables, features.arrow_schema, name)


def write_cached(
    tables: Iterable[pyarrow.Table],
    schema: pyarrow.Schema,
    name: str | None = None,
) -> datasets.Dataset:
    """Write tables of one schema to the datasets cache and map it into memory.

    Without a name the same rows get the same dataset, so that what a trainer caches of it is shared
    by all processes, and is never taken for other rows.
    """
    part = _cached_path(uuid4().hex)  # other processes may be writing the same rows
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with ArrowWriter(path=str(part), schema=schema) as writer:
            for table in tables:
                writer.write_table(table)
            writer.finalize()
        if name is None:
            with part.open("rb") as file:
                name = hashlib.file_digest(file, "blake2b").hexdigest()[:16]
        part.replace(_cached_path(name))
    finally:
        part.unlink(missing_ok=True)
    return _read_cached(name)


def _cached_path(name: str) -> Path:
    return Path(datasets.config.HF_DATASETS_CACHE, "r1_recipes", f"{name}.arrow")


def _read_cached(name: str) -> datasets.Dataset:
    table = datasets.table.MemoryMappedTable.from_file(str(_cached_path(name)))
    return datasets.Dataset(table, fingerprint=name)


def plain_features(features: Any) -> Any:
    """Return the features with ``decode=False`` wherever there is ``decode``."""
    return _visit(features, _undecoded)


def _undecoded(feature: Any) -> Any:
    if getattr(feature, "decode", False):
        return dataclasses.replace(feature, decode=False)
    return feature


def _parquet_features(paths: list[Path]) -> datasets.Features:
    features = datasets.Features()
    for path in paths:
        try:
            schema = pyarrow.parquet.read_schema(path)
            columns = plain_features(datasets.Features.from_arrow_schema(schema))
        except Exception as error:  # Arrow and datasets have many types for one thing
            raise unreadable(path, first_line(error)) from error
        features = datasets.Features({**columns, **features})
    return features


def _text_features(paths: list[Path]) -> datasets.Features:
    """Return the columns' types: that of all values, text if they differ, JSON if one is nested."""
    types: dict[str, set[type]] = {}
    for path in paths:
        for row in _rows(path):
            for column, value in row.items():
                types.setdefault(column, set()).add(type(value))
    features = datasets.Features()
    for column, seen in types.items():
        if seen & {dict, list}:
            features[column] = datasets.Json()
        else:
            dtypes = [_DTYPES[one] for one in seen - {NoneType}]
            features[column] = datasets.Value(dtypes[0] if len(dtypes) == 1 else "string")
    return features


def _tables(path: Path, features: datasets.Features) -> Iterator[pyarrow.Table]:
    schema, count = features.arrow_schema, 0
    is_parquet = path.suffix.lower() == ".parquet"
    try:
        for table in _parquet_tables(path) if is_parquet else _text_tables(path, features):
            count += len(table)
            yield datasets.table.table_cast(table, schema)
    except RecipeError:
        raise
    except Exception as error:  # Arrow and datasets have many types for one thing
        raise unreadable(path, first_line(error)) from error
    if not count or not features:
        raise unreadable(path, "holds no rows")


def _parquet_tables(path: Path) -> Iterator[pyarrow.Table]:
    for batch in pyarrow.parquet.ParquetFile(path).iter_batches(_BATCH):
        yield pyarrow.Table.from_batches([batch])


def _text_tables(path: Path, features: datasets.Features) -> Iterator[pyarrow.Table]:
    rows = _rows(path)
    while batch := list(islice(rows, _BATCH)):
        columns = {}
        for column, feature in features.items():
            columns[column] = [_cell(row.get(column), feature) for row in batch]
        yield pyarrow.table(columns, features.arrow_schema)


def _cell(value: Any, feature: Any) -> Any:
    """Return a value as its column's type has it: as it is, as text, or as JSON."""
    is_plain = isinstance(feature, datasets.Value)
    if value is None or (is_plain and (feature.dtype != "string" or isinstance(value, str))):
        return value
    text = json.dumps(value, ensure_ascii=False)
    if is_plain or ujson_loads(text) == value:
        return text
    # datasets reads it with ujson, which is off in the last digits of some decimals.
    return json.dumps(json.loads(text, parse_float=str), ensure_ascii=False)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON or CSV file; an error names the line."""
    readers = {".csv": _csv_rows, ".tsv": _csv_rows, ".json": _document_rows}
    try:
        for place, value in readers.get(path.suffix.lower(), _json_lines)(path):
            if not isinstance(value, dict):
                raise unreadable(path, f"{place}: is not an object but {json.dumps(value)[:60]}")
            yield value
    except UnicodeDecodeError:
        raise unreadable(path, not_utf8(path)) from None


def _csv_rows(path: Path) -> Iterator[tuple[str, dict[str, str | None]]]:
    csv.field_size_limit(2**31 - 1)  # characters; Python's own limit is 131,072
    line = 1  # where the row begins
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = next((text for text in file if text.strip()), "")
        file.seek(0)
        delimiter = max(",;\t|", key=first.count)
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        names: list[str] = []
        try:
            for cells in reader:
                if cells and not names:
                    names = cells
                    _check_header(names, path)
                elif cells:
                    if len(cells) != len(names):
                        fault = f"has {len(cells)} cells, the header {len(names)}: {cells!r:.60}"
                        fix = f"put cells that hold {delimiter!r} in double quotes"
                        raise unreadable(path, f"line {line}: {fault}. Fix: {fix}")
                    # A column without a name is a spreadsheet's empty one, or pandas' index.
                    named = zip(names, cells, strict=True)
                    yield f"line {line}", {name: cell or None for name, cell in named if name}
                line = reader.line_num + 1
        except csv.Error as error:
            fault = f"a quote is not closed, or text follows it ({error})"
            raise unreadable(path, f"line {line}: {fault}") from error


def _check_header(names: list[str], path: Path) -> None:
    for name in names:
        if name and names.count(name) > 1:
            fault = f"a column stands twice in the header: {name!r}"
            raise unreadable(path, f"{fault}. Fix: rename one")


def _document_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a file that is a list, an object with a list ``data``, or one object.

    A file with several objects has one per line.
    """
    document = path.read_bytes().decode("utf-8-sig")
    if not document.strip():
        return
    try:
        value = _DECODER.decode(document)
    except (json.JSONDecodeError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            yield from _json_lines(path)
            return
        raise _json_fault(path, 1, error) from None
    rows = value.get("data") if isinstance(value, dict) else value
    for number, row in enumerate(rows if isinstance(rows, list) else [value]):
        yield f"row {number}", row


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield place and value of each line that is not empty."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            text = line.decode("utf-8-sig").strip()
            if not text:
                continue
            try:
                value = _DECODER.decode(text)
            except (json.JSONDecodeError, RecursionError) as error:
                raise _json_fault(path, number, error) from None
            if "\\ud" in text.lower():
                written = json.dumps(value, ensure_ascii=False)
                if any("\ud800" <= char <= "\udfff" for char in written):
                    fault = "holds an unpaired surrogate, which is not valid Unicode"
                    raise unreadable(path, f"line {number}: {fault}")
            yield f"line {number}", value


def _json_fault(path: Path, line: int, error: Exception) -> RecipeError:
    if not isinstance(error, json.JSONDecodeError):
        return unreadable(path, f"line {line}: is nested too deeply")
    fault = f"is not JSON: {error.msg} (column {error.colno})"
    return unreadable(path, f"line {line + error.lineno - 1}: {fault}")


_DECODER = json.JSONDecoder(
    parse_float=lambda text: number if repr(number := float(text)) == text else text,
    parse_int=lambda text: int(text) if len(text) < 19 and text != "-0" else text,
    parse_constant=lambda text: None,  # Python writes a missing number as NaN, which JSON has not
)
