"""Read local JSON Lines, JSON, CSV and Parquet files without changing their values.

Numbers follow one rule: ``str(value)`` is the text in the file. A JSON number that Python would
write differently (0.10, 1e400, 19 digits) becomes text. So does every value of a column that mixes
types (72 and "72 cm", 3 and 2.5). Every CSV cell is text; an empty cell is ``None``.

``datasets`` writes the rows, but its readers break this rule. Its JSON reader turns 0.10 into a
double. Its CSV reader pads a short line. Neither names the line of an error. Its Parquet reader
reads a path as a pattern, so ``data[1]`` would read ``data1``.
"""

import csv
import dataclasses
import hashlib
import json
import re
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

_RULES = 4  # Increase this number to make old cache files stale.
_BATCH = 1000  # Rows.
_DTYPES = {bool: "bool", int: "int64", float: "float64", str: "string"}


def unreadable(path: Path, cause: str) -> RecipeError:
    """Return the error for a file that cannot be read."""
    return RecipeError(f"dataset_name: {path}: cannot be read: {' '.join(cause.split())}")


def read_files(paths: list[Path]) -> datasets.Dataset:
    """Read files of one format as one dataset, cached until a file changes.

    Raises:
        RecipeError: A file cannot be read. The message names the file, the line and the cause.
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
        if "\0" in column:  # Arrow would end the name there.
            raise unreadable(
                paths[0], f"column {column!r} has a NUL in its name. Fix: rename the column"
            )
    tables = chain.from_iterable(_tables(path, features) for path in paths)
    return write_cached(tables, features.arrow_schema, name)


def write_cached(
    tables: Iterable[pyarrow.Table],
    schema: pyarrow.Schema,
    name: str | None = None,
) -> datasets.Dataset:
    """Write tables of one schema to the datasets cache, and return them as a memory-mapped dataset.

    Without a name, equal rows get the same cache file and fingerprint. So all processes share what
    a trainer caches, and the cache is never used for other rows.
    """
    part = _cached_path(uuid4().hex)  # Other processes may write the same rows.
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
    """Return the features with ``decode=False`` where they have ``decode``."""
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
    """Return the type of each column: text if values differ in type, JSON if a value is nested."""
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
            dtypes = [_DTYPES[type_] for type_ in seen - {NoneType}]
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
    """Return a value in the type of its column: unchanged, as text, or as JSON."""
    is_plain = isinstance(feature, datasets.Value)
    if value is None or (is_plain and (feature.dtype != "string" or isinstance(value, str))):
        return value
    text = json.dumps(value, ensure_ascii=False)
    if is_plain or ujson_loads(text) == value:
        return text
    # datasets reads JSON with ujson, which gets the last digits of some decimals wrong.
    return json.dumps(json.loads(text, parse_float=str), ensure_ascii=False)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON or CSV file. An error names the line."""
    readers = {".csv": _csv_rows, ".tsv": _csv_rows, ".json": _document_rows}
    try:
        for place, value in readers.get(path.suffix.lower(), _json_lines)(path):
            if not isinstance(value, dict):
                raise unreadable(path, f"{place}: is not a JSON object: {json.dumps(value)[:60]}")
            yield value
    except UnicodeDecodeError:
        raise unreadable(path, not_utf8(path)) from None


def _csv_rows(path: Path) -> Iterator[tuple[str, dict[str, str | None]]]:
    csv.field_size_limit(2**31 - 1)  # Characters. The default of Python is 131,072.
    line = 1  # The line where the row begins.
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = next((text for text in file if text.strip()), "")
        file.seek(0)
        unquoted = re.sub('"[^"]*"', "", first)
        tabs = path.suffix.lower() == ".tsv" and "\t" in unquoted
        delimiter = "\t" if tabs else max(",;\t|", key=unquoted.count)
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        names: list[str] = []
        try:
            for cells in reader:
                if cells and not names:
                    names = cells
                    _check_header(names, path)
                elif cells:
                    if len(cells) != len(names):
                        cause = f"has {len(cells)} cells, the header {len(names)}: {cells!r:.60}"
                        fix = f"put cells that contain {delimiter!r} in double quotes"
                        raise unreadable(path, f"line {line}: {cause}. Fix: {fix}")
                    # A column without a name is empty in a spreadsheet, or the index of pandas.
                    named = zip(names, cells, strict=True)
                    yield f"line {line}", {name: cell or None for name, cell in named if name}
                line = reader.line_num + 1
        except csv.Error as error:
            cause = f"a quote is not closed, or text follows a closing quote ({error})"
            raise unreadable(path, f"line {line}: {cause}") from error


def _check_header(names: list[str], path: Path) -> None:
    for name in names:
        if name and names.count(name) > 1:
            cause = f"the header has a column twice: {name!r}"
            raise unreadable(path, f"{cause}. Fix: rename one of the columns")


def _document_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place and value of each row of a JSON document.

    The document is a list, an object with a list ``data``, or a single object. A document with
    several objects is read as JSON Lines.
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
        raise _json_error(path, 1, error) from None
    rows = value.get("data") if isinstance(value, dict) else value
    for number, row in enumerate(rows if isinstance(rows, list) else [value]):
        yield f"row {number}", row


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place and value of each line that is not empty."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            text = line.decode("utf-8-sig").strip()
            if not text:
                continue
            try:
                value = _DECODER.decode(text)
            except (json.JSONDecodeError, RecursionError) as error:
                raise _json_error(path, number, error) from None
            if "\\ud" in text.lower():
                written = json.dumps(value, ensure_ascii=False)
                if any("\ud800" <= char <= "\udfff" for char in written):
                    cause = "contains an unpaired surrogate, which is not valid Unicode"
                    raise unreadable(path, f"line {number}: {cause}")
            yield f"line {number}", value


def _json_error(path: Path, line: int, error: Exception) -> RecipeError:
    if not isinstance(error, json.JSONDecodeError):
        return unreadable(path, f"line {line}: is nested too deeply")
    cause = f"is not JSON: {error.msg} (column {error.colno})"
    return unreadable(path, f"line {line + error.lineno - 1}: {cause}")


_DECODER = json.JSONDecoder(
    parse_float=lambda text: number if repr(number := float(text)) == text else text,
    parse_int=lambda text: int(text) if len(text) < 19 and text != "-0" else text,
    parse_constant=lambda text: None,  # Python writes a missing number as NaN.
)
