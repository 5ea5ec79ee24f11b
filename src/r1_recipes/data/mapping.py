"""Every row of a dataset through its mapper and renderer, a batch at a time."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.data.mappers import Mapper, SkipRow
from r1_recipes.data.render import Renderer

if TYPE_CHECKING:
    from datasets import Dataset, Features
    from datasets.features.features import FeatureType

logger = logging.getLogger(__name__)

_BATCH = 1000  # rows mapped, rendered and written at once


@dataclass
class LoadReport:
    """What became of the rows of one split.

    Attributes:
        read: rows read: with ``max_samples`` no more than it takes, else all of the source.
        kept: rows in the dataset.
        dropped: count by reason.
        first_index: source row index of the first row dropped for each reason; in a mixture, a reason starts with its dataset.
    """

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first_index: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str, index: int) -> None:
        self.dropped[reason] += 1
        self.first_index.setdefault(reason, index)

    def __str__(self) -> str:
        dropped = [f"{count} dropped: {reason} (first: row {self.first_index[reason]})" for reason, count in self.dropped.items()]
        return "; ".join([f"{self.kept} of {self.read} rows kept", *dropped])


@dataclass
class RowMapper:
    """Maps and renders the rows of one dataset."""

    mapper: Mapper
    renderer: Renderer
    keep: list[str]  # source columns that stay
    report: LoadReport
    where: str = ""  # what reasons start with: in a mixture, the dataset
    indices: Sequence[int] | None = None  # where each row stands in the source; None: in order

    def __call__(self, rows: Dataset, limit: int | None = None) -> Dataset:
        """The rows that mapper and renderer accept, in order; of many, as far as ``limit`` of them need."""
        from datasets import Features, concatenate_datasets  # heavy

        from r1_recipes.data.rows import write_cached  # heavy

        features = Features({column: rows.features[column] for column in self.keep})
        pieces = []  # another one whenever a column gets its type; in files, so that memory stays flat
        for schema, batches in groupby(self._batches(rows, limit, features), key=lambda batch: batch.data.schema):
            pieces.append(write_cached((batch.data.table for batch in batches), schema))
        for number, piece in enumerate(pieces):
            final = Features({column: features[column] for column in piece.features})
            if piece.features != final:
                pieces[number] = piece.cast(final)
        return concatenate_datasets(pieces) if pieces else rows.select([])

    def _batches(self, rows: Dataset, limit: int | None, features: Features) -> Iterator[Dataset]:
        """Rendered rows; ``features`` grows with the columns that the mapper gives."""
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
            untyped = {column: values for column, values in columns.items() if "null" in repr(features.get(column, "null"))}
            if untyped:
                for column, feature in Dataset.from_dict(untyped).features.items():
                    features[column] = _merged(features.get(column), feature)
            yield Dataset.from_dict(columns, features=features.copy())

    def _render(self, batch: dict[str, list[Any]], start: int) -> list[dict[str, Any]]:
        rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        self.report.read += len(rows)
        places, results = [], []
        for number, row in enumerate(rows, start):
            place = number if self.indices is None else int(self.indices[number])
            try:
                result = {column: row[column] for column in self.keep} | self.renderer(row, self.mapper(row))
            except RecipeError:
                raise
            except SkipRow as skipped:
                self.report.drop(f"{self.where}{skipped}", place)
            except Exception as error:  # a mapper may be anybody's
                reason = f"{self.where}mapper {self.mapper.name!r} fails with {type(error).__name__}"
                if reason not in self.report.dropped:  # the message may differ from row to row
                    logger.warning("dataset_name: %srow %d: %s", self.where, place, first_line(error))
                self.report.drop(reason, place)
            else:
                places.append(place)
                results.append(result)
        over = self.renderer.over_limits(results)
        for index in sorted(over):
            self.report.drop(self.where + over[index], places[index])
        return [result for index, result in enumerate(results) if index not in over]


def _merged(known: FeatureType | None, found: FeatureType) -> FeatureType:
    """The feature with what is null in it as it was found now."""
    from datasets import List, Value  # heavy

    if known is None or known == Value("null"):
        return found
    if isinstance(known, dict) and isinstance(found, dict):
        return {key: _merged(feature, found.get(key, feature)) for key, feature in known.items()}
    if isinstance(known, List) and isinstance(found, List):
        return List(_merged(known.feature, found.feature))
    return known
