"""Store generated rows on disk as they arrive, so that a killed run resumes without loss.

A shard is a JSON-lines file. Every start of a process writes a new shard. If the process dies
within a record, the incomplete record is removed when the folder is opened again, and its row is
generated again. A complete record never changes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import operator
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.common import locks, processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.completions.types import Completion

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


class ShardStore:
    """An append-only store of records by ``index``, which all processes of a run open together.

    Rank 0 locks and repairs the folder first.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digests: dict[int, str] = {}  # index -> digest of the row that the record answers
        self.failed: set[int] = set()  # indices of records with an error
        self._places: dict[int, tuple[Path, int]] = {}

    def __enter__(self) -> ShardStore:
        processes.first(self._open)
        if processes.rank():
            self.reload()
        processes.wait()  # every process must read the shards before a new one is written
        return self

    def _open(self) -> None:
        locks.hold(self.folder)
        self.reload()

    def __exit__(self, *exception: object) -> None:
        locks.release(self.folder)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the records in the order of their index, read from disk one at a time."""
        for index in sorted(self._places):
            path, start = self._places[index]
            with path.open("rb") as file:
                file.seek(start)
                record = json.loads(file.readline())
            yield record

    def reload(self) -> None:
        """Read the records of all processes. Without it, a process knows only its own records."""
        paths = sorted(self.folder.glob("shard-*.jsonl"))
        for path in paths:
            self._read(path)
        # Shard numbers grow with time, because the newest record of a row must come last.
        last = int(paths[-1].stem.removeprefix("shard-")) if paths else -1
        self._shard = self.folder / f"shard-{last + 1 + processes.rank():05d}.jsonl"

    def _read(self, path: Path) -> None:
        end = 0
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    logger.warning(
                        "%s: the last record is incomplete, because the run ended while writing "
                        "it; its row is generated again",
                        path,
                    )
                    with open(path, "r+b") as shard:
                        shard.truncate(end)
                    return
                try:
                    record = json.loads(line)
                    [Completion(**completion) for completion in record["completions"]]
                    self._note(record, path, end)
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise RecipeError(
                        f"{path}: line {number}: is damaged, or not a record of a generation run. "
                        "Fix: delete the file to generate its rows again"
                    ) from None
                end += len(line)

    def _note(self, record: dict[str, Any], path: Path, start: int) -> None:
        """Remember a record's place.

        A row that was generated again after a failure has two records; the later one counts.
        """
        index = operator.index(record["index"])
        self.digests[index] = record["digest"]
        if record["error"]:
            self.failed.add(index)
        else:
            self.failed.discard(index)
        self._places[index] = (path, start)

    def append(self, record: dict[str, Any]) -> None:
        """Write a record to disk.

        It has ``index``, ``digest``, ``error``, ``completions`` and more. Raise RecipeError if the
        disk is full.
        """
        # ASCII escapes can hold lone surrogates and control characters, which UTF-8 cannot.
        line = (json.dumps(record, default=str) + "\n").encode("ascii")
        try:
            with open(self._shard, "ab") as file:
                start = file.tell()
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RecipeError(
                f"{self._shard}: cannot be written: {error.strerror}. {len(self)} rows are stored. "
                "Fix: free some disk space, then run the same command again"
            ) from error
        self._note(record, self._shard, start)

    def check_complete(self, rows: int) -> None:
        """Raise if rows of other processes are missing.

        Call it after a barrier and :meth:`reload`.
        """
        if missing := rows - len(self):
            raise RecipeError(
                f"{self.folder}: {missing} of {rows} rows are missing, because the hosts do not "
                "share this folder. "
                "Fix: run the same command again with an output_dir on storage that all hosts share"
            )

    def check_rows(self, digests: Sequence[str]) -> None:
        """Raise unless every record answers the row with its index, by the row's digest."""
        other = [
            index
            for index, digest in self.digests.items()
            if index >= len(digests) or digests[index] != digest
        ]
        if other:
            raise RecipeError(
                f"{self.folder.parent}: holds completions of other rows, settings or weights "
                f"than this run's (row {other[0]}). "
                "Fix: choose another output folder, or delete this one"
            )


def row_digests(rows: Dataset, made_by: dict[str, Any] | None = None) -> list[str]:
    """Return a short digest per row of its question, its reference answer and ``made_by``.

    A stored completion with another digest belongs to other data or settings.
    """
    solutions = rows["solution"] if "solution" in rows.column_names else [None] * len(rows)
    digests = []
    for prompt, solution in zip(rows["prompt"], solutions, strict=True):
        shaping = [prompt if made_by is None else [prompt, made_by], solution]
        text = json.dumps(shaping, sort_keys=True, default=str)
        digests.append(hashlib.sha256(text.encode()).hexdigest()[:16])
    return digests
