"""Read local JSON Lines, JSON, CSV and Parquet files as datasets whose values are what stands in the files.

One rule for numbers: ``str(value)`` is the text in the file. A JSON number that Python writes otherwise (0.10, 1e400, 19 digits) is text,
and so is every value of a column that mixes kinds (72 and "72 cm", 3 and 2.5). Every CSV cell is text; an empty one is ``None``.
"""

from __future__ import annotations

import codecs
import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from types import NoneType
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
from datasets.fingerprint import Hasher
from datasets.utils.json import ujson_loads

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.data import csv_files
from r1_recipes.data.cache import cached_path, read_cached, write_cached
from r1_recipes.data.csv_files import CsvStyle, csv_header, csv_rows, undecodable, unreadable

_RULES = 2  # another number makes old cache files stale
_BATCH = 1000  # rows
_MAX_COLUMNS = 250


def read_files(paths: list[Path], style: CsvStyle) -> datasets.Dataset:
    """Read files of one format as one dataset, cached until a file changes; an error names file, line and cause."""
    for path in paths:
        with path.open("rb") as file:
            if file.read(23) == b"version https://git-lfs":
                raise unreadable(path, "is a Git LFS pointer, not the data. Fix: git lfs pull")
    stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    name = f"rows-{Hasher.hash((_RULES, stamps, style))}"
    if cached_path(name).is_file():
        return read_cached(name)
    ending = paths[0].suffix.lower()
    if ending == ".parquet":
        features = _parquet_features(paths)
    elif ending in csv_files.ENDINGS:
        features = datasets.Features(dict.fromkeys(chain(*(csv_header(path, style) for path in paths)), datasets.Value("string")))
    else:
        features = _json_features(paths)
    for column in features:
        if "\0" in column:  # Arrow would cut it there
            raise unreadable(paths[0], f"column {column!r} has a NUL in its name")
    return write_cached(chain(*(_tables(path, style, features) for path in paths)), features.arrow_schema, name)


def _tables(path: Path, style: CsvStyle, features: datasets.Features) -> Iterator[pyarrow.Table]:
    ending, schema, count = path.suffix.lower(), features.arrow_schema, 0
    tables: Iterator[pyarrow.Table]
    with _named_in_errors(path):
        if ending == ".parquet":
            batches = pyarrow.parquet.ParquetFile(path).iter_batches(_BATCH)
            tables = (datasets.table.table_cast(pyarrow.Table.from_batches([batch]), schema) for batch in batches)
        elif ending in csv_files.ENDINGS:
            tables = _batches(csv_rows(path, style), schema)
        else:
            rows = ({column: _cell(value.get(column), kind) for column, kind in features.items()} for value in _json_rows(path))
            tables = _batches(rows, schema)
        for table in tables:
            yield table
            count += len(table)
    if not count:
        raise unreadable(path, "holds no rows")


@contextmanager
def _named_in_errors(path: Path) -> Iterator[None]:
    try:
        yield
    # The last two: a type that datasets has not, such as a map.
    except (pyarrow.ArrowException, OSError, datasets.table.CastError, ValueError, NotImplementedError) as error:
        raise error if isinstance(error, RecipeError) else unreadable(path, first_line(error)) from error


def _batches(rows: Iterator[dict[str, Any]], schema: pyarrow.Schema) -> Iterator[pyarrow.Table]:
    while batch := list(islice(rows, _BATCH)):
        yield pyarrow.Table.from_pylist(batch, schema)


def _parquet_features(paths: list[Path]) -> datasets.Features:
    features = datasets.Features()
    for path in paths:
        with _named_in_errors(path):
            found = datasets.Features.from_arrow_schema(pyarrow.parquet.ParquetFile(path).schema_arrow)
        features = datasets.Features({**plain_features(found), **features})
    return features


def plain_features(feature: Any, trusted: type | None = None) -> Any:
    """The feature, or features, with ``decode=False`` wherever there is ``decode``, but for ``trusted``."""
    if isinstance(feature, dict):
        return type(feature)({name: plain_features(item, trusted) for name, item in feature.items()})
    if isinstance(feature, list):
        return [plain_features(item, trusted) for item in feature]
    if isinstance(feature, datasets.List | datasets.LargeList):
        return dataclasses.replace(feature, feature=plain_features(feature.feature, trusted))
    if getattr(feature, "decode", False) and not (trusted and isinstance(feature, trusted)):
        return dataclasses.replace(feature, decode=False)
    return feature


def _json_features(paths: list[Path]) -> datasets.Features:
    """The type of each column: that of all its values, text if they differ, JSON if any is an object or a list."""
    kinds: dict[str, type] = {}
    for path in paths:
        for value in _json_rows(path):
            for column, cell in value.items():
                kind, known = type(cell), kinds.setdefault(column, NoneType)
                if kind is known or kind is NoneType or known is dict:
                    continue
                if kind in (dict, list):
                    kinds[column] = dict
                else:
                    kinds[column] = kind if known is NoneType else str
            if len(kinds) > _MAX_COLUMNS:
                raise unreadable(path, f"there are more than {_MAX_COLUMNS} columns")
    names = {NoneType: "null", bool: "bool", int: "int64", float: "float64", str: "string"}
    return datasets.Features({column: datasets.Value(names[kind]) if kind in names else datasets.Json() for column, kind in kinds.items()})


def _cell(value: Any, feature: Any) -> Any:
    """The value as its column holds it."""
    if value is None or (isinstance(feature, datasets.Value) and (feature.dtype != "string" or isinstance(value, str))):
        return value
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(feature, datasets.Value) or ujson_loads(text) == value:
        return text
    return json.dumps(json.loads(text, parse_float=str), ensure_ascii=False)  # ujson is off in the last digits of some decimals


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    for place, value, escaped in _json_values(path):
        if not isinstance(value, dict):
            raise unreadable(path, f"{place}: is not an object but {json.dumps(value)[:60]}")
        if escaped:
            try:
                json.dumps(value, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                raise unreadable(path, f"{place}: holds an unpaired surrogate, which is not valid Unicode") from None
        yield value


def _json_values(path: Path) -> Iterator[tuple[str, Any, bool]]:
    """Place, value, and whether surrogates may be in it: of each line, or of a ``.json`` file's list, list ``data`` or object."""
    if path.suffix.lower() == ".json":
        source = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        document, rest = _parse(path, "", source) if source.strip() else ([], "")
        if not rest.strip():
            rows = document.get("data") if isinstance(document, dict) else document
            if not isinstance(rows, list) or (rows and isinstance(document, dict) and not isinstance(rows[0], dict)):
                rows = [document]
            for number, row in enumerate(rows):
                yield f"row {number}", row, _has_surrogates(source)
            return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip(b" \t\r\n"):
                value, rest = _parse(path, f"line {number}: ", line)
                if rest.strip():
                    raise unreadable(path, f"line {number}: is not one JSON object: {rest.strip()[:60]!r} follows")
                yield f"line {number}", value, _has_surrogates(line)


def _parse(path: Path, place: str, source: bytes) -> tuple[Any, str]:
    """The first JSON value, and the text after it."""
    try:
        text = source.decode().lstrip(" \t\r\n")
        value, end = _DECODER.raw_decode(text)
    except UnicodeDecodeError:
        raise undecodable(path, "utf-8") from None
    except RecursionError:
        raise unreadable(path, f"{place}is nested too deeply") from None
    except json.JSONDecodeError as error:
        place = place or f"line {error.lineno}: "
        raise unreadable(path, f"{place}is not JSON: {error.msg} (column {error.colno})") from None
    except ValueError as error:
        raise unreadable(path, f"{place}{error}") from None
    return value, text[end:]


def _has_surrogates(source: bytes) -> bool:
    return b"\\ud" in source or b"\\uD" in source


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key stands twice in one object: {', '.join(key for key, _ in pairs)[:200]}")
    return found


def _float(text: str) -> float | str:
    return number if repr(number := float(text)) == text else text


def _int(text: str) -> int | str:
    return int(text) if len(text) < 19 and text != "-0" else text


# Python writes a missing number as NaN, which JSON has not.
_DECODER = json.JSONDecoder(
    parse_float=_float, parse_int=_int, object_pairs_hook=_once, parse_constant=lambda text: None if text == "NaN" else text
)
