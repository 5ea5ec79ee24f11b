"""Read local JSON Lines, JSON, CSV and Parquet files as datasets whose values are what stands in the files.

One rule for numbers: ``str(value)`` is the text in the file. A JSON number that Python writes otherwise (0.10, 1e400, 19 digits) is text,
and so is every value of a column that mixes kinds (72 and "72 cm", 3 and 2.5). Every CSV cell is text; an empty one is ``None``.
"""

import csv
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from types import NoneType
from typing import Any
from uuid import uuid4

import datasets
import pyarrow
import pyarrow.parquet
from datasets.fingerprint import Hasher
from datasets.utils.json import ujson_loads

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.files import not_utf8

_RULES = 4  # another number makes old cache files stale
_BATCH = 1000  # rows
_DTYPES = {bool: "bool", int: "int64", float: "float64", str: "string", NoneType: "string"}


def unreadable(path: Path, cause: str) -> RecipeError:
    return RecipeError(f"dataset_name: {path}: cannot be read: {' '.join(cause.split())}")


def read_files(paths: list[Path]) -> datasets.Dataset:
    """Read files of one format as one dataset, cached until a file changes; an error names file, line and cause."""
    for path in paths:
        with path.open("rb") as file:
            if file.read(23) == b"version https://git-lfs":
                raise unreadable(path, "is a Git LFS pointer, not the data. Fix: git lfs pull")
    stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    name = f"rows-{Hasher.hash((_RULES, stamps))}"
    if _cached_path(name).is_file():
        return _read_cached(name)
    features = _parquet_features(paths) if paths[0].suffix.lower() == ".parquet" else _text_features(paths)
    if cut := [column for column in features if "\0" in column]:  # Arrow would cut it there
        raise unreadable(paths[0], f"column {cut[0]!r} has a NUL in its name")
    return write_cached(chain(*(_tables(path, features) for path in paths)), features.arrow_schema, name)


def write_cached(tables: Iterable[pyarrow.Table], schema: pyarrow.Schema, name: str | None = None) -> datasets.Dataset:
    """Write tables of one schema to the datasets cache and map it into memory; without a name, the same rows get the same dataset."""
    part = _cached_path(uuid4().hex)  # other processes may be writing the same rows
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with part.open("w+b") as file:
            with pyarrow.ipc.new_stream(file, schema) as writer:
                for table in tables:
                    writer.write_table(table)
            file.seek(0)
            name = name or hashlib.file_digest(file, "blake2b").hexdigest()[:16]
        part.replace(_cached_path(name))
    finally:
        part.unlink(missing_ok=True)
    return _read_cached(name)


def _cached_path(name: str) -> Path:
    return Path(datasets.config.HF_DATASETS_CACHE, "r1_recipes", f"{name}.arrow")


def _read_cached(name: str) -> datasets.Dataset:
    return datasets.Dataset(datasets.table.MemoryMappedTable.from_file(str(_cached_path(name))), fingerprint=name)


def plain_features(feature: Any) -> Any:
    """The feature, or features, with ``decode=False`` wherever there is ``decode``."""
    if isinstance(feature, dict):
        return type(feature)({name: plain_features(item) for name, item in feature.items()})
    if isinstance(feature, list):
        return [plain_features(item) for item in feature]
    if isinstance(feature, datasets.List | datasets.LargeList):
        return dataclasses.replace(feature, feature=plain_features(feature.feature))
    if getattr(feature, "decode", False):
        return dataclasses.replace(feature, decode=False)
    return feature


def _parquet_features(paths: list[Path]) -> datasets.Features:
    features = datasets.Features()
    for path in paths:
        with _named_in_errors(path):
            found = datasets.Features.from_arrow_schema(pyarrow.parquet.ParquetFile(path).schema_arrow)
        features = datasets.Features({**plain_features(found), **features})
    return features


def _text_features(paths: list[Path]) -> datasets.Features:
    """The type of each column: that of all its values, text if they differ, JSON if any is an object or a list."""
    kinds: dict[str, type] = {}
    for column, value in chain.from_iterable(row.items() for path in paths for row in _rows(path)):
        kind, known = type(value), kinds.setdefault(column, NoneType)
        if kind is not known and kind is not NoneType and known is not dict:
            kinds[column] = dict if kind in (dict, list) else kind if known is NoneType else str
    types = {column: datasets.Value(_DTYPES[kind]) if kind in _DTYPES else datasets.Json() for column, kind in kinds.items()}
    return datasets.Features(types)


def _tables(path: Path, features: datasets.Features) -> Iterator[pyarrow.Table]:
    schema, count = features.arrow_schema, 0
    with _named_in_errors(path):
        if path.suffix.lower() == ".parquet":
            batches = pyarrow.parquet.ParquetFile(path).iter_batches(_BATCH)
            tables = (datasets.table.table_cast(pyarrow.Table.from_batches([batch]), schema) for batch in batches)
        else:
            rows = ({column: _cell(row.get(column), kind) for column, kind in features.items()} for row in _rows(path))
            tables = (pyarrow.Table.from_pylist(batch, schema) for batch in iter(lambda: list(islice(rows, _BATCH)), []))
        for table in tables:
            yield table
            count += len(table)
    if not count or not features:
        raise unreadable(path, "holds no rows")


@contextmanager
def _named_in_errors(path: Path) -> Iterator[None]:
    try:
        yield
    # The last two: an unpaired surrogate; a type that datasets has not, such as a map.
    except (pyarrow.ArrowException, OSError, datasets.table.CastError, ValueError, NotImplementedError) as error:
        raise error if isinstance(error, RecipeError) else unreadable(path, first_line(error)) from error


def _cell(value: Any, feature: Any) -> Any:
    if value is None or (isinstance(feature, datasets.Value) and (feature.dtype != "string" or isinstance(value, str))):
        return value
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(feature, datasets.Value) or ujson_loads(text) == value:
        return text
    return json.dumps(json.loads(text, parse_float=str), ensure_ascii=False)  # ujson is off in the last digits of some decimals


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSON or CSV file; an error names the line."""
    try:
        if path.suffix.lower() in (".csv", ".tsv"):
            yield from _csv_rows(path)
            return
        for place, value in _json_values(path):
            if not isinstance(value, dict):
                raise unreadable(path, f"{place}: is not an object but {json.dumps(value)[:60]}")
            yield value
    except UnicodeDecodeError:
        raise unreadable(path, not_utf8(path)) from None


def _csv_rows(path: Path) -> Iterator[dict[str, str | None]]:
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
                    if len(named := [name for name in names if name]) > len(set(named)):
                        raise unreadable(path, f"a column stands twice in the header: {max(named, key=named.count)!r}. Fix: rename one")
                elif cells:
                    if len(cells) != len(names):
                        fix = f"put cells that hold {delimiter!r} in double quotes"
                        raise unreadable(path, f"line {line}: has {len(cells)} cells, the header {len(names)}: {cells!r:.60}. Fix: {fix}")
                    # A column without a name is a spreadsheet's empty one, or pandas' index.
                    yield {name: cell or None for name, cell in zip(names, cells, strict=True) if name}
                line = reader.line_num + 1
        except csv.Error as error:
            raise unreadable(path, f"line {line}: a quote is not closed, or text follows it ({error})") from error


def _json_values(path: Path) -> Iterator[tuple[str, Any]]:
    """Place and value of each line, or of a ``.json`` file's list, list ``data`` or object."""
    number, document = 1, path.read_bytes() if path.suffix.lower() == ".json" else b""
    try:
        if document.strip():
            try:
                whole = _DECODER.decode(document.decode("utf-8-sig"))
            except json.JSONDecodeError as error:
                if error.msg != "Extra data":  # or it has an object a line
                    raise
            else:
                rows = whole.get("data") if isinstance(whole, dict) else whole
                for place, row in enumerate(rows if isinstance(rows, list) else [whole]):
                    yield f"row {place}", row
                return
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if text := line.decode("utf-8-sig").strip():
                    value = _DECODER.decode(text)
                    if "\\ud" in text.lower() and any("\ud800" <= char <= "\udfff" for char in json.dumps(value, ensure_ascii=False)):
                        raise unreadable(path, f"line {number}: holds an unpaired surrogate, which is not valid Unicode")
                    yield f"line {number}", value
    except json.JSONDecodeError as error:
        raise unreadable(path, f"line {number + error.lineno - 1}: is not JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise unreadable(path, f"line {number}: is nested too deeply") from None


_DECODER = json.JSONDecoder(
    parse_float=lambda text: number if repr(number := float(text)) == text else text,
    parse_int=lambda text: int(text) if len(text) < 19 and text != "-0" else text,
    parse_constant=lambda text: None,  # Python writes a missing number as NaN, which JSON has not
)
