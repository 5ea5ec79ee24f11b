"""Read CSV files with any separator, encoding and decimal mark. Every cell is text; an empty one is ``None``."""

from __future__ import annotations

import codecs
import csv
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from r1_recipes.common.errors import RecipeError

logger = logging.getLogger(__name__)

ENDINGS = (".csv", ".tsv")
BOM = codecs.BOM_UTF8
_MAX_CELL = 2**31 - 1  # characters; Python's own limit is 131,072
_DECIMAL_COMMA = re.compile(r"\s*[-+]?([1-9]\d{0,2}(\.\d{3})+|\d+)(,\d+)?\s*")
_EITHER = re.compile(r"\s*[-+]?[1-9]\d{0,2}\.\d{3}\s*")  # 1.250: a group of thousands, or three decimals
_DECIMAL_POINT = re.compile(r"\s*[-+]?(0\.\d+|\d+\.(\d{1,2}|\d{4,}))\s*")


@dataclass(frozen=True)
class CsvStyle:
    """How CSV files are written.

    Attributes:
        separator: between cells; ``None``: a comma, or a tab in a ``.tsv`` file.
        encoding: any that Python knows.
        decimal: the decimal mark; with ``","``, a cell that is such a number as a whole, ``1.250,5``, is read as ``1250.5``.

    Raises:
        RecipeError: no such style.
    """

    separator: str | None = None
    encoding: str = "utf-8"
    decimal: str = "."

    def __post_init__(self) -> None:
        if self.separator == "\\t":  # as a shell hands it in
            object.__setattr__(self, "separator", "\t")
        if self.separator is not None and (len(self.separator) != 1 or not self.separator.isascii() or self.separator in '"\r\n'):
            raise RecipeError(
                f'csv_separator: must be one ASCII character other than a quote, such as ";" or "\\t", got {self.separator!r}'
            )
        try:
            object.__setattr__(self, "encoding", codecs.lookup(self.encoding).name.removesuffix("-sig"))
        except LookupError as error:
            raise RecipeError(f"csv_encoding: must be an encoding that Python knows, such as cp1252, got {self.encoding!r}") from error
        if self.decimal not in (".", ","):
            raise RecipeError(f'csv_decimal: must be "." or ",", got {self.decimal!r}')


def unreadable(path: Path, cause: str, row: int | None = None, line: int | None = None) -> RecipeError:
    """The error for a file; rows are counted from 0, as in the log, and lines from 1, as in an editor."""
    place = "" if row is None else f"row {row}: " if line is None else f"row {row} (line {line}): "
    return RecipeError(f"dataset_name: {path}: cannot be read: {place}{' '.join(cause.split())}")


def undecodable(path: Path, encoding: str) -> RecipeError:
    """The error for a text file in another encoding, with the first line and byte that show it."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode(encoding)
            except UnicodeDecodeError as error:
                found = "utf-16" if line.startswith((b"\xff\xfe", b"\xfe\xff")) else "cp1252"
                fix = f"csv_encoding: {found}" if path.suffix.lower() in ENDINGS else "save it as UTF-8"
                return unreadable(path, f"line {number}: byte {error.start + 1} (0x{line[error.start]:02x}) is not {encoding}. Fix: {fix}")
    return unreadable(path, f"is not {encoding}")


def csv_header(path: Path, style: CsvStyle) -> list[str]:
    """The column names.

    Raises:
        RecipeError: the file has no header, or no rows.
    """
    names, rows = _open(path, style)
    if next(rows, None) is None:
        raise unreadable(path, f"holds no rows, only the header {', '.join(names)}")
    return names


def csv_rows(path: Path, style: CsvStyle) -> Iterator[dict[str, str | None]]:
    """The rows, checked.

    Raises:
        RecipeError: a row has too few or too many cells, or a quote is not closed; names row and line.
    """
    names, rows = _open(path, style)
    thousands: dict[str, list[int]] = {name: [] for name in names}
    points: dict[str, list[int]] = {name: [] for name in names}
    for number, cells in rows:
        row = dict(zip(names, (cell or None for cell in cells), strict=True))
        if style.decimal == ",":
            for name, cell in row.items():
                if cell is None:
                    continue
                if _EITHER.fullmatch(cell):
                    thousands[name].append(number)
                elif _DECIMAL_POINT.fullmatch(cell):
                    points[name].append(number)
                if _DECIMAL_COMMA.fullmatch(cell):
                    row[name] = cell.replace(".", "").replace(",", ".")
        yield row
    for name in names:
        if thousands[name] and points[name]:
            logger.warning(
                "dataset_name: %s: csv_decimal: ',' reads the point of %d cells of column %r as thousands (first: row %d), but %d cells "
                "have a decimal point (first: row %d)",
                *(path, len(thousands[name]), name, thousands[name][0], len(points[name]), points[name][0]),
            )


def _open(path: Path, style: CsvStyle) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The column names, and the cells of each row with its number."""
    rows = _numbered(path, style)
    names = next(rows, (-1, []))[1]
    if not names:
        raise unreadable(path, "holds no rows")
    names = [name or f"Unnamed: {position}" for position, name in enumerate(names)]  # an index that pandas wrote, as pandas names it
    twice, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise unreadable(path, f"column {twice!r} stands twice in the header")
    return names, rows


def _numbered(path: Path, style: CsvStyle) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row; the header is row -1."""
    separator = style.separator or ("\t" if path.suffix.lower() == ".tsv" else ",")
    with path.open("rb") as start:
        if style.encoding != "utf-8" and start.read(3) == BOM:
            raise unreadable(path, f"starts with UTF-8's byte order mark, but csv_encoding is {style.encoding}. Fix: csv_encoding: utf-8")
    csv.field_size_limit(_MAX_CELL)
    row, line, width = -1, 1, 0
    try:
        with path.open(encoding="utf-8-sig" if style.encoding == "utf-8" else style.encoding, newline="") as file:
            first = file.readline()
            told = re.fullmatch(r"sep=([^\w\s\"]|\t)[\r\n]+", first)
            if told:  # Excel's name for the separator
                separator, line, first = style.separator or told[1], 2, ""
            above, reader = line - 1, csv.reader(chain([first], file), delimiter=separator, strict=True)
            for cells in reader:
                if cells:
                    if row == -1:
                        width = len(cells)
                        _check_separator(path, cells, separator)
                    elif len(cells) != width:
                        text = separator.join(cells)[:60]
                        raise unreadable(path, f"has {len(cells)} cells, the header {width}: {text!r}", row, line)
                    yield row, cells
                    row += 1
                line = above + reader.line_num + 1
    except UnicodeError as error:
        raise undecodable(path, style.encoding) from error
    except csv.Error as error:
        if row == -1:
            raise unreadable(path, f"the header is not CSV: {error}") from error
        raise unreadable(path, f"a quote is not closed, or text follows it ({error})", row, line) from error


def _check_separator(path: Path, header: list[str], separator: str) -> None:
    other = next((mark for mark in ",;\t|" if len(header) == 1 and mark in header[0] and mark != separator), None)
    if other is not None:
        raise unreadable(path, f"the header is one column, {header[0]!r}, with {separator!r}. Fix: csv_separator: {json.dumps(other)}")
