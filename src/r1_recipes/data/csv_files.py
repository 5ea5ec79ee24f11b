"""Read CSV files whose separator, encoding and quotes may be anybody's. Every cell is text; an empty one is ``None``."""

from __future__ import annotations

import csv
import json
import logging
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pyarrow
import pyarrow.csv
from pyarrow import compute

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.data.sources import CsvStyle

logger = logging.getLogger(__name__)

_CSV_BLOCK = 1 << 22  # bytes; a row must fit in one
BOM = b"\xef\xbb\xbf"
_DECIMAL_COMMA = r"^\s*[-+]?([1-9]\d{0,2}(\.\d{3})+|\d+)(,\d+)?\s*$"
_EITHER = r"^\s*[-+]?[1-9]\d{0,2}\.\d{3}\s*$"  # 1.250: a group of thousands, or three decimals
_DECIMAL_POINT = r"^\s*[-+]?(0\.\d+|\d+\.(\d{1,2}|\d{4,}))\s*$"


class NeedsWhole(Exception):
    """A row is not as the first ones, or larger than a block: only the whole file tells how to read it."""


def unreadable(path: Path, cause: str, row: int | None = None, line: int | None = None) -> RecipeError:
    """The error for a file; rows are counted from 0, as in the log, and lines from 1, as in an editor."""
    place = "" if row is None else f"row {row}: " if line is None else f"row {row} (line {line}): "
    return RecipeError(f"dataset_name: {path}: cannot be read: {place}{' '.join(cause.split())}")


def undecodable(path: Path, encoding: str) -> RecipeError:
    """The error for a text file that is in another encoding, with the first line and byte that show it."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode(encoding)
            except UnicodeDecodeError as error:
                found = "utf-16" if line.startswith((b"\xff\xfe", b"\xfe\xff")) else "cp1252"
                fix = f"csv_encoding: {found}" if path.suffix.lower() in (".csv", ".tsv") else "save it as UTF-8"
                return unreadable(path, f"line {number}: byte {error.start + 1} (0x{line[error.start]:02x}) is not {encoding}. Fix: {fix}")
    return unreadable(path, f"is not {encoding}")


def csv_header(path: Path, style: CsvStyle) -> tuple[list[str], int, str]:
    """The column names, how many lines there are above them, and the separator, which Excel may have written there."""
    above, used = 0, style.delimiter(path)
    with path.open("rb") as file:
        if style.encoding != "utf-8" and file.read(3) == BOM:
            raise unreadable(path, f"starts with UTF-8's byte order mark, but csv_encoding is {style.encoding}. Fix: csv_encoding: utf-8")
    with path.open(encoding="utf-8-sig" if style.encoding == "utf-8" else style.encoding, newline="") as file:
        try:
            for line in file:
                told = re.fullmatch(r"sep=([^\w\s\"]|\t)", line.strip("\r\n"))
                if told is None and line.strip("\r\n"):
                    break
                used = style.separator or told[1] if told else used
                above += 1
            else:
                raise unreadable(path, "holds no rows")
            names = next(csv.reader(chain([line], file), delimiter=used, strict=True))
            if not any(line.strip() for line in file):
                raise unreadable(path, f"holds no rows, only the header {', '.join(names)}")
        except UnicodeError as error:
            raise undecodable(path, style.encoding) from error
        except csv.Error as error:
            raise unreadable(path, f"the header is not CSV: {error}") from error
    other = next((mark for mark in ",;\t|" if len(names) == 1 and mark in names[0] and mark != used), None)
    if other is not None:
        raise unreadable(path, f"the header is one column, {names[0]!r}, with {used!r}. Fix: csv_separator: {json.dumps(other)}")
    names = [name or f"Unnamed: {position}" for position, name in enumerate(names)]  # an index that pandas wrote, as pandas names it
    for name in names:
        if names.count(name) > 1:
            raise unreadable(path, f"column {name!r} stands twice in the header")
    return names, above, used


def csv_tables(path: Path, style: CsvStyle, *, whole: bool) -> Iterator[pyarrow.Table]:
    names, above, separator = csv_header(path, style)
    ragged: list[pyarrow.csv.InvalidRow] = []
    last, count, doubtful = None, 0, False
    # Of a column: how many cells are so, and the first.
    either, points = dict.fromkeys(names, (0, sys.maxsize)), dict.fromkeys(names, (0, sys.maxsize))

    def refuse(row: pyarrow.csv.InvalidRow) -> str:
        ragged.append(row)
        return "error"

    try:
        tables = pyarrow.csv.open_csv(
            path,
            pyarrow.csv.ReadOptions(
                use_threads=False,  # rows are numbered only without
                block_size=min(path.stat().st_size + 1, 2**31 - 1) if whole else _CSV_BLOCK,
                skip_rows=above,
                skip_rows_after_names=1,
                column_names=names,
                encoding="utf8" if style.encoding == "utf-8" else style.encoding,  # any other name is decoded in Python
            ),
            pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=refuse),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pyarrow.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )
        for batch in tables:
            table = pyarrow.Table.from_batches([batch])
            last = table[-1][-1].as_py() if len(table) else last
            doubtful = doubtful or any(compute.any(compute.match_substring_regex(c, '(?s)\n.*"|".*\n')).as_py() for c in table.columns)
            if style.decimal == ",":
                for name in names:
                    for marks, pattern in ((either, _EITHER), (points, _DECIMAL_POINT)):
                        found = compute.indices_nonzero(compute.fill_null(compute.match_substring_regex(table[name], pattern), False))
                        if len(found):
                            marks[name] = marks[name][0] + len(found), min(marks[name][1], count + found[0].as_py())
                count += len(table)
                table = _with_points(table)
            yield table
    except (pyarrow.ArrowInvalid, UnicodeDecodeError) as error:
        if ragged:
            row = ragged[0]
            cause = f"has {row.actual_columns} cells, the header {row.expected_columns}: {row.text[:60]!r}"
            if '"' in row.text and "\n" in row.text:
                cause += ". A quote in its first line may not be closed"
            raise unreadable(path, cause, row.number - 2) from error
        if "invalid UTF8" in str(error) or isinstance(error, UnicodeDecodeError):
            raise undecodable(path, style.encoding) from error
        if "straddling" in str(error) and not whole:
            raise NeedsWhole from error
        raise unreadable(path, first_line(error)) from error
    for name in names:
        if either[name][0] and points[name][0]:
            logger.warning(
                "dataset_name: %s: csv_decimal: ',' reads the point of %d cells of column %r as thousands (first: row %d), but %d cells "
                "have a decimal point (first: row %d)",
                *(path, either[name][0], name, either[name][1], *points[name]),
            )
    if doubtful:  # a quote that the next cell's closes leaves that cell's text behind it
        with path.open(encoding="utf-8-sig" if style.encoding == "utf-8" else style.encoding, newline="") as file:
            reader = csv.reader(file, delimiter=separator, strict=True)
            try:
                list(map(len, reader))
            except csv.Error as error:
                if "expected after" in str(error):
                    raise unreadable(path, f"line {reader.line_num}: a quote opened here or above is not closed ({error})") from error
    # A quote that is not closed takes the rest of the file into its cell.
    with path.open("rb") as file:
        file.seek(-min(4096, path.stat().st_size), 2)
        closed = file.read().rstrip(b" \t\r\n\0").endswith(b'"')
        if last is not None and "\n" in last and not closed:
            file.seek(0)
            line = sum(1 for line in file if line.strip(b"\0").endswith(b"\n")) - last.count("\n") + 1
            raise unreadable(path, f"line {line}: the quote before {last[:60]!r} is never closed")


def _with_points(table: pyarrow.Table) -> pyarrow.Table:
    """The table with ``1.250,5`` as ``1250.5`` where that is the whole cell."""
    for position, name in enumerate(table.column_names):
        cells = table[position]
        plain = compute.replace_substring(compute.replace_substring(cells, ".", ""), ",", ".")
        table = table.set_column(position, name, compute.if_else(compute.match_substring_regex(cells, _DECIMAL_COMMA), plain, cells))
    return table
