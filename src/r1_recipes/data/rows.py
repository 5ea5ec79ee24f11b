"""Read local JSON Lines, JSON, CSV and Parquet files as datasets whose values are what stands in the files.

One rule for numbers: ``str(value)`` is the text in the file. A JSON number that Python writes otherwise (0.10, 1e400, 19 digits) is text,
and so is every value of a column that mixes kinds (72 and "72 cm", 3 and 2.5). Every CSV cell is text; an empty one is ``None``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from types import NoneType
from typing import Any

import datasets
import pyarrow
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
from datasets.fingerprint import Hasher
from datasets.utils.json import ujson_loads

from r1_recipes.common.errors import first_line
from r1_recipes.data.csv_files import BOM, NeedsWhole, csv_header, csv_tables, undecodable, unreadable
from r1_recipes.data.sources import CsvStyle, plain_features

_SAMPLE = 5000  # JSON rows that say what the columns hold
_MAX_DEPTH = 20  # Arrow reads no more than 64 levels; a deeper column is held as JSON text
_MAX_KEYS = 250  # an object with more keys, over all rows, is a mapping: its column is held as JSON text


def read_files(paths: list[Path], style: CsvStyle) -> datasets.Dataset:
    """Read files of one format as one dataset, cached until a file changes.

    Raises:
        RecipeError: a file cannot be read; the text names file, row and cause.
    """
    for path in paths:
        with path.open("rb") as file:
            if file.read(23) == b"version https://git-lfs":
                raise unreadable(path, "is a Git LFS pointer, not the data. Fix: git lfs pull")
    stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    for whole in (False, True):
        builder = _Files(config_id=f"rows-{Hasher.hash((stamps, style))}")
        builder.paths, builder.style, builder.whole = paths, style, whole
        try:
            builder.download_and_prepare(verification_mode="no_checks")
        except datasets.exceptions.DatasetGenerationError as error:  # says only that there was an error
            if not isinstance(error.__cause__, NeedsWhole):
                raise error.__cause__ or error from None
        else:
            break
    return builder.as_dataset(split="train")


class _Files(datasets.ArrowBasedBuilder):
    VERSION = datasets.Version("1.1.0")  # of the rules above: a new one makes old cache files stale
    paths: list[Path]
    style: CsvStyle
    whole: bool

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo()

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        paths = self.paths
        if paths[0].suffix.lower() == ".parquet":
            features = _parquet_features(paths)
        elif paths[0].suffix.lower() in (".csv", ".tsv"):
            columns = dict.fromkeys(column for path in paths for column in csv_header(path, self.style)[0])
            features = datasets.Features(dict.fromkeys(columns, datasets.Value("string")))
        else:
            self.kinds = _json_kinds(paths, None if self.whole else _SAMPLE)
            features = datasets.Features({column: _feature(kind) for column, kind in self.kinds.items()})
        broken = [column for column in features if "\0" in column]
        if broken:  # Arrow would cut it there
            raise unreadable(paths[0], f"column {broken[0]!r} has a NUL in its name")
        self.info.features = features
        return [datasets.SplitGenerator(name="train", gen_kwargs={})]

    def _generate_tables(self) -> Iterator[tuple[Any, pyarrow.Table]]:
        features = self.info.features
        for number, path in enumerate(self.paths):
            if path.suffix.lower() == ".parquet":
                tables = (_as_written(pyarrow.Table.from_batches([batch])) for batch in _open_parquet(path).iter_batches(1000))
            elif path.suffix.lower() in (".csv", ".tsv"):
                tables = csv_tables(path, self.style, whole=self.whole)
            else:
                tables = _json_tables(path, self.kinds, features)
            count = 0
            try:
                for table in tables:
                    for column in features.keys() - set(table.column_names):
                        table = table.append_column(column, pyarrow.nulls(len(table)))
                    yield datasets.builder.Key(number, count), datasets.table.table_cast(table, features.arrow_schema)
                    count += len(table)
            except (pyarrow.ArrowException, OSError, datasets.table.CastError) as error:
                raise unreadable(path, first_line(error)) from error
            if not count:
                raise unreadable(path, "holds no rows")


def _open_parquet(path: Path) -> pyarrow.parquet.ParquetFile:
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise unreadable(path, first_line(error)) from error


def _parquet_features(paths: list[Path]) -> datasets.Features:
    features = datasets.Features()
    for path in paths:
        schema = _open_parquet(path).schema_arrow
        try:
            found = datasets.Features.from_arrow_schema(schema)
        except (ValueError, NotImplementedError) as error:  # a type that datasets has not, such as a map
            raise unreadable(path, first_line(error)) from error
        if not found:
            raise unreadable(path, "has no columns")
        for column, feature in found.items():
            single = feature in (datasets.Value("float32"), datasets.Value("float16"))
            features.setdefault(column, datasets.Value("float64") if single else plain_features(feature))
    return features


def _as_written(table: pyarrow.Table) -> pyarrow.Table:
    """The table with single floats as the doubles that their shortest texts mean: 0.1, not 0.10000000149011612."""
    for position, field in enumerate(table.schema):
        if field.type in (pyarrow.float32(), pyarrow.float16()):
            texts = table[position].cast(pyarrow.float32()).cast(pyarrow.string())
            table = table.set_column(position, field.name, texts.cast(pyarrow.float64()))
    return table


def _json_kinds(paths: list[Path], sample: int | None) -> dict[str, Any]:
    """The kind of each column, from the first rows of each file or from all."""
    kinds: Any = {}
    for path in paths:
        for row, (line, source) in enumerate(islice(_json_sources(path), sample)):
            kind = _kind(_object(path, row, line, source))
            if kind != kinds:
                kinds = _join(kinds, kind)
            if kinds is object:
                raise unreadable(path, f"there are more than {_MAX_KEYS} columns", row, line)
    if not kinds:
        raise unreadable(paths[0], "has no columns")
    return kinds


def _json_tables(path: Path, kinds: dict[str, Any], features: datasets.Features) -> Iterator[pyarrow.Table]:
    schema, rows = features.arrow_schema, enumerate(_json_sources(path))
    exact = not any(word in str(schema.types) for word in ("double", "json"))  # Arrow's reader keeps no number's spelling, and has no JSON
    while batch := list(islice(rows, 1000)):
        table = _arrow_table([source for _, (_, source) in batch], schema) if exact else None
        if table is None:
            values = [_object(path, row, line, source) for row, (line, source) in batch]
            if any((kind := _kind(value)) != kinds and _join(kinds, kind) != kinds for value in values):
                raise NeedsWhole
            columns = [[_cast(value.get(column), feature) for value in values] for column, feature in features.items()]
            table = pyarrow.table([pyarrow.array(*column) for column in zip(columns, schema.types, strict=True)], schema.names)
        yield table


def _arrow_table(lines: list[Any], schema: pyarrow.Schema) -> pyarrow.Table | None:
    """The lines as :func:`_object` and :func:`_cast` read them, at twice the speed; ``None`` if Arrow might read them otherwise."""
    # Arrow reads -0 as 0, and dies of a line that is null.
    if not all(isinstance(line, bytes) and line.startswith(b"{") and b"-0" not in line for line in lines):
        return None
    text = b"".join(lines)
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    try:
        text.decode()
        table = pyarrow.json.read_json(
            pyarrow.BufferReader(text), pyarrow.json.ReadOptions(block_size=len(text), use_threads=False), options
        )
    except (pyarrow.ArrowException, UnicodeDecodeError, OverflowError):  # the slow way names row and cause
        return None
    return table if len(table) == len(lines) else None  # one line may hold two objects


def _json_sources(path: Path) -> Iterator[tuple[int | None, Any]]:
    """Number and bytes of each line that holds a row; or ``None`` and the row, of a list, an object's list ``data``, or one object."""
    with path.open("rb") as file:
        lines = ((number, line.removeprefix(BOM)) for number, line in enumerate(file, start=1) if line.strip(b" \t\r\n" + BOM))
        first, second = next(lines, None), next(lines, None)
        if first is None:
            raise unreadable(path, "holds no rows")
        if second is not None and (_is_json(first[1]) or (path.suffix.lower() != ".json" and not first[1].lstrip().startswith(b"["))):
            yield from chain((first, second), lines)
            return
        file.seek(0)
        text = file.read().removeprefix(BOM)
    document = _parse(path, None, None, text)
    if isinstance(document, dict):
        rows = document.get("data") if path.suffix.lower() == ".json" else None
        if _by_column(document):
            raise unreadable(path, 'is one object of columns. Fix: a list of rows, as df.to_json(path, orient="records") writes it')
        document = rows if isinstance(rows, list) and (not rows or isinstance(rows[0], dict)) else [document]
    if document == []:
        raise unreadable(path, "holds no rows")
    for value in document if isinstance(document, list) else [document]:
        yield None, value


def _by_column(document: dict[str, Any]) -> bool:
    """Whether an object looks like a table by columns, as pandas writes it: by index, or lists of values."""
    columns = list(document.values())
    if len(columns) < 2 or any(not isinstance(column, dict | list) or len(column) != len(columns[0]) or not column for column in columns):
        return False
    if all(isinstance(column, dict) for column in columns):
        return all(list(column) == [str(index) for index in range(len(column))] for column in columns)
    return not any(isinstance(column, dict) or any(isinstance(value, dict | list) for value in column) for column in columns)


def _is_json(line: bytes) -> bool:
    try:
        _DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _parse(path: Path, row: int | None, line: int | None, source: bytes) -> Any:
    try:
        return _DECODER.decode(source.decode())
    except UnicodeDecodeError:
        raise undecodable(path, "utf-8") from None
    except RecursionError:
        raise unreadable(path, "is nested too deeply", row, line) from None
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise unreadable(path, f"is not JSON: {error.msg} ({place})", row, line) from None
    except ValueError as error:
        raise unreadable(path, str(error), row, line) from None


def _object(path: Path, row: int, line: int | None, source: Any) -> dict[str, Any]:
    value = _parse(path, row, line, source) if isinstance(source, bytes) else source
    if not isinstance(value, dict):
        raise unreadable(path, f"is not an object but {json.dumps(value)[:60]}", row, line)
    if not isinstance(source, bytes) or b"\\ud" in source or b"\\uD" in source:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise unreadable(path, "holds an unpaired surrogate, which is not valid Unicode", row, line) from None
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} stands twice in one object")
    return found


def _float(text: str) -> float | str:
    return number if repr(number := float(text)) == text else text


def _int(text: str) -> int | str:
    return int(text) if len(text) < 19 and text != "-0" else text


# Python writes a missing number as NaN, which JSON has not.
_DECODER = json.JSONDecoder(
    parse_float=_float, parse_int=_int, object_pairs_hook=_once, parse_constant=lambda text: None if text == "NaN" else text
)


def _kind(value: Any, depth: int = 0) -> Any:
    """The shape of a JSON value: a type, ``[kind]`` for a list, ``{key: kind}`` for an object, or ``object`` where it is too deep."""
    if depth > _MAX_DEPTH:
        return object
    if isinstance(value, dict):
        return {key: _kind(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        kind = NoneType
        for item in value:
            kind = _join(kind, _kind(item, depth + 1))
        return [kind]
    return type(value)


def _join(one: Any, other: Any) -> Any:
    """The kind that holds values of both kinds: text for unlike scalars, ``object`` where only JSON can."""
    if one == other or other is NoneType:
        return one
    if one is NoneType:
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        joined = {key: _join(one.get(key, NoneType), other.get(key, NoneType)) for key in one | other}
        return joined if len(joined) <= _MAX_KEYS else object
    if isinstance(one, list) and isinstance(other, list):
        return [_join(one[0], other[0])]
    return str if isinstance(one, type) and isinstance(other, type) and object not in (one, other) else object


_SCALARS = {NoneType: "null", bool: "bool", int: "int64", float: "float64", str: "string"}


def _feature(kind: Any) -> Any:
    try:
        return _nested(kind)
    except KeyError:  # ``object`` is no scalar; Arrow cuts a key at a NUL
        return datasets.Json()


def _nested(kind: Any) -> Any:
    if isinstance(kind, dict):
        if "\0" in "".join(kind):
            raise KeyError
        return {key: _nested(item) for key, item in kind.items()}
    return datasets.List(_nested(kind[0])) if isinstance(kind, list) else datasets.Value(_SCALARS[kind])


def _cast(value: Any, feature: Any) -> Any:
    """The value as the feature's column holds it."""
    if value is None or (isinstance(value, str) and not isinstance(feature, datasets.Json)):
        return value
    if isinstance(feature, dict):
        return {key: _cast(value.get(key), item) for key, item in feature.items()}
    if isinstance(feature, datasets.List):
        return [_cast(item, feature.feature) for item in value]
    if isinstance(feature, datasets.Json):
        text = json.dumps(value, ensure_ascii=False)
        # What datasets reads it with is off in the last digits of some decimals.
        return text if ujson_loads(text) == value else json.dumps(json.loads(text, parse_float=str), ensure_ascii=False)
    return json.dumps(value) if feature.dtype == "string" else value
