"""Read CSV files with any separator, encoding and decimal mark. Every cell is text; an empty one is ``None``."""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from r1_recipes.common.errors import RecipeError

ENDINGS = (".csv", ".tsv")
_MAX_CELL = 2**31 - 1  # characters; Python's own limit is 131,072
_DECIMAL_COMMA = re.compile(r"\s*[-+]?([1-9]\d{0,2}(\.\d{3})+|\d+)(,\d+)?\s*")


@dataclass(frozen=True)
class CsvStyle:
    """How CSV files are written.

    Attributes:
        separator: between cells; ``None``: a comma, or a tab in a ``.tsv`` file.
        encoding: any that Python knows.
        decimal: the decimal mark; with ``","``, a cell that is such a number as a whole, ``1.250,5``, is read as ``1250.5``.
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


def unreadable(path: Path, cause: str) -> RecipeError:
    return RecipeError(f"dataset_name: {path}: cannot be read: {' '.join(cause.split())}")


def undecodable(path: Path, encoding: str) -> RecipeError:
    """The error for a text file in another encoding, with the first line that shows it."""
    fix = "csv_encoding: utf-16, cp1252 or gbk" if path.suffix.lower() in ENDINGS else "save it as UTF-8"
    place = ""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode(encoding)
            except UnicodeDecodeError:
                place = f"line {number}: "
                break
    return unreadable(path, f"{place}is not {encoding}. Fix: {fix}")


def csv_header(path: Path, style: CsvStyle) -> list[str]:
    return next(_cells(path, style))


def csv_rows(path: Path, style: CsvStyle) -> Iterator[dict[str, str | None]]:
    """The rows; an error names the line."""
    rows = _cells(path, style)
    names = next(rows)
    for cells in rows:
        if style.decimal == ",":
            cells = [cell.replace(".", "").replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell for cell in cells]
        yield dict(zip(names, (cell or None for cell in cells), strict=True))


def _cells(path: Path, style: CsvStyle) -> Iterator[list[str]]:
    """The column names, then the cells of each row."""
    separator = style.separator or ("\t" if path.suffix.lower() == ".tsv" else ",")
    csv.field_size_limit(_MAX_CELL)
    names: list[str] = []
    line = 1  # where the row begins
    try:
        with path.open(encoding="utf-8-sig" if style.encoding == "utf-8" else style.encoding, newline="") as file:
            reader = csv.reader(file, delimiter=separator, strict=True)
            for cells in reader:
                if cells and not names:
                    names = _names(path, cells, separator)
                    yield names
                elif cells:
                    if len(cells) != len(names):
                        text = separator.join(cells)[:60]
                        raise unreadable(path, f"line {line}: has {len(cells)} cells, the header {len(names)}: {text!r}")
                    yield cells
                line = reader.line_num + 1
    except UnicodeError as error:
        raise undecodable(path, style.encoding) from error
    except csv.Error as error:
        raise unreadable(path, f"line {line}: a quote is not closed, or text follows it ({error})") from error
    if not names:
        raise unreadable(path, "holds no rows")


def _names(path: Path, header: list[str], separator: str) -> list[str]:
    other = next((mark for mark in ",;\t|" if len(header) == 1 and mark in header[0] and mark != separator), None)
    if other is not None:
        raise unreadable(path, f"the header is one column, {header[0]!r}, with {separator!r}. Fix: csv_separator: {json.dumps(other)}")
    names = [name or f"Unnamed: {position}" for position, name in enumerate(header)]  # an index that pandas wrote, as pandas names it
    twice, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise unreadable(path, f"column {twice!r} stands twice in the header")
    return names
