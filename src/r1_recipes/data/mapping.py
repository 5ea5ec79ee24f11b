"""Every row of a dataset through its mapper and renderer, a batch at a time."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.data.mappers import Mapper, SkipRow
from r1_recipes.data.render import Renderer

if TYPE_CHECKING:
    from datasets import Dataset, Features

logger = logging.getLogger(__name__)

_BATCH = 1000  # rows mapped, rendered and written at once


@dataclass
class LoadReport:
    """What became of the rows of one split.

    Attributes:
        read: rows read: with ``max_samples`` no more than it takes, else all of the source.
        kept: rows in the dataset.
        dropped: count by reason.
        first_index: source row index of the first row dropped for each reason.
        first_source: in a mixture, the dataset that this row is of.
    """

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first_index: dict[str, int] = field(default_factory=dict)
    first_source: dict[str, str] = field(default_factory=dict)

    def drop(self, reason: str, index: int, source: str | None = None) -> None:
        self.dropped[reason] += 1
        if reason not in self.first_index:
            self.first_index[reason] = index
            if source is not None:
                self.first_source[reason] = source

    def __str__(self) -> str:
        parts = []
        for reason, count in self.dropped.items():
            source = f" of {self.first_source[reason]}" if reason in self.first_source else ""
            parts.append(f"{count} dropped: {reason} (first: row {self.first_index[reason]}{source})")
        return "; ".join([f"{self.kept} of {self.read} rows kept", *parts])


@dataclass
class RowMapper:
    """Maps and renders the rows of one dataset.

    Attributes:
        keep: source columns that stay.
        report: counts the rows that cannot be used.
        name: the dataset's name in the report; ``None`` outside a mixture.
        indices: where each row stands in the source; ``None``: in order.
    """

    mapper: Mapper
    renderer: Renderer
    keep: list[str]
    report: LoadReport
    name: str | None = None
    indices: Sequence[int] | None = None
    warned: set[str] = field(default_factory=set)

    def __call__(self, rows: Dataset, limit: int | None = None) -> Dataset:
        """The rows that mapper and renderer accept, in order; of many, as far as ``limit`` of them need."""
        from datasets import Features, concatenate_datasets  # heavy

        features = Features({column: rows.features[column] for column in self.keep})
        pieces = list(_stored(self._batches(rows, limit, features), on_disk=bool(rows.cache_files)))
        if not pieces:
            return rows.select([])
        # A piece written before a column had its first value gets the column's type now.
        for number, piece in enumerate(pieces):
            final = Features({column: features[column] for column in piece.column_names})
            pieces[number] = piece if piece.features == final else piece.cast(final)
        return concatenate_datasets(pieces)

    def _batches(self, rows: Dataset, limit: int | None, features: Features) -> Iterator[Dataset]:
        """Rendered rows, as far as ``limit`` needs them. ``features`` grows with the columns that the mapper gives."""
        from datasets import Dataset  # heavy
        from datasets.utils import tqdm  # heavy

        kept = 0
        for start in tqdm(range(0, len(rows), _BATCH), desc="mapping rows", unit="batch"):
            if limit is not None and kept >= limit:
                return
            results = self._render(rows[start : start + _BATCH], start)
            if not results:
                continue
            kept += len(results)
            columns = {column: [result.get(column) for result in results] for column in dict.fromkeys([*features, *chain(*results)])}
            unknown = {column: values for column, values in columns.items() if "null" in repr(features.get(column, "null"))}
            if unknown:
                for column, feature in Dataset.from_dict(unknown).features.items():
                    features[column] = _merged(features[column], feature) if column in features else feature
            yield Dataset.from_dict(columns, features=features.copy())

    def _render(self, batch: dict[str, list], start: int) -> list[dict[str, Any]]:
        rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        places = range(start, start + len(rows)) if self.indices is None else self.indices[start : start + len(rows)]
        results = []
        mapped = [self._fields(row, int(place)) for row, place in zip(rows, places, strict=True)]
        for row, place, found in zip(rows, places, self.renderer(rows, mapped), strict=True):
            if isinstance(found, SkipRow):
                self.report.drop(str(found), int(place), self.name)
            else:
                results.append({column: row[column] for column in self.keep} | found)
        self.report.read += len(rows)
        return results

    def _fields(self, row: dict[str, Any], place: int) -> dict[str, Any] | SkipRow:
        """What the mapper makes of a row; a row that it fails on is one more to be left out, not the end of the run."""
        try:
            fields = self.mapper(row)
        except SkipRow as reason:
            return reason
        except RecipeError:
            raise
        except Exception as error:
            reason = f"mapper {self.mapper.name!r} fails with {type(error).__name__}"
            if reason not in self.warned:  # the message may differ from row to row
                self.warned.add(reason)
                logger.warning("%s row %d: %s", self.name or "dataset", place, first_line(error))
            return SkipRow(reason)
        return fields if _is_unicode(fields) else SkipRow("half a surrogate pair, which is no text")


def _stored(batches: Iterator[Dataset], *, on_disk: bool) -> Iterator[Dataset]:
    """One dataset for each run of batches with equal columns.

    On disk, memory stays flat, and a file's name is the hash of its content: processes that load the same rows get the same dataset,
    and share what a trainer caches of it.
    """
    import datasets  # heavy
    import pyarrow  # heavy

    folder = Path(datasets.config.HF_DATASETS_CACHE, "r1_recipes")
    for _, run in groupby(batches, key=lambda batch: batch.features):
        if not on_disk:
            yield datasets.concatenate_datasets(list(run))
            continue
        folder.mkdir(parents=True, exist_ok=True)
        first = next(run)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as file:
            with pyarrow.ipc.new_stream(file, first.data.schema) as writer:
                for batch in chain([first], run):
                    writer.write_table(batch.data.table)
            file.seek(0)
            digest = hashlib.file_digest(file, "blake2b").hexdigest()[:16]
        path = folder / f"{digest}.arrow"
        os.replace(file.name, path)
        yield datasets.Dataset(datasets.table.MemoryMappedTable.from_file(str(path)), fingerprint=digest)


def _merged(known: Any, found: Any) -> Any:
    """The feature with what is null in it as it was found now."""
    from datasets import List, Value  # heavy

    if known == Value("null"):
        return found
    if isinstance(known, dict) and isinstance(found, dict):
        return {key: _merged(feature, found.get(key, feature)) for key, feature in known.items()}
    if isinstance(known, List) and isinstance(found, List):
        return List(_merged(known.feature, found.feature))
    return known


def _is_unicode(value: Any) -> bool:
    """Whether every text in ``value`` can be written: JSON may hold half a surrogate pair, Arrow and tokenizers may not."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
        return True
    if isinstance(value, dict):
        return all(map(_is_unicode, value.values()))
    return all(map(_is_unicode, value)) if isinstance(value, list) else True
