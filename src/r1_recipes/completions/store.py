"""Generated rows on disk: appended as they come, whole or not at all, so that a run killed at any moment goes on without loss.

A shard is a JSON-lines file. A record that was being written when the process died is cut off when the folder is opened again; what it
held is generated once more. Nothing that stands in a shard is ever written again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from r1_recipes.common import locks, processes
from r1_recipes.common.errors import RecipeError

logger = logging.getLogger(__name__)

# Rows a file: small enough to copy about, large enough that a corpus is not a folder of a million files.
SHARD_ROWS = 1000


class ShardStore:
    """Append-only records with an ``index`` each, in ``folder/shard-00000.jsonl`` and on.

    A lock keeps a second run out. Use as a context manager.

    Args:
        folder: where the shards are; made where it is not there.
        shard_rows: records a shard.
        rank, world_size: of the processes of one run, each of which appends to shards of its own (see :meth:`shared`).

    Attributes:
        folder: where the shards are.
        digests: index -> digest of the row that each stored record answers.
        failed: indices whose record holds an error.
    """

    def __init__(self, folder: Path, shard_rows: int = SHARD_ROWS, rank: int = 0, world_size: int = 1) -> None:
        self.folder = folder
        self._rank, self._world_size = rank, world_size
        self.digests: dict[int, str] = {}
        self.failed: set[int] = set()
        self._shard_rows = shard_rows
        self._places: dict[int, tuple[Path, int]] = {}
        self._rows_in_last = self._next = 0
        self._last: Path | None = None

    @classmethod
    @contextlib.contextmanager
    def shared(cls, folder: Path) -> Iterator[ShardStore]:
        """The store of this run's processes: rank 0 opens it first, and the others when nothing is torn any more."""
        store = cls(folder, rank=processes.rank(), world_size=processes.world_size())
        if store._rank:
            processes.wait()
        with store:
            if not store._rank:
                processes.wait()
            processes.wait()  # until all have read what is there; then it grows
            yield store

    def __enter__(self) -> ShardStore:
        if self._rank:
            self.reload()
            return self
        locks.hold(self.folder)
        self.reload()
        return self

    def reload(self) -> None:
        """Read what is there: where several processes write, each knows its own records only."""
        paths = sorted(self.folder.glob("shard-*.jsonl"))
        for path in paths:
            self._scan(path)
        # Several processes start new files, whose numbers go up with time: the newest record of a row must stand furthest on.
        self._next = (int(paths[-1].stem.removeprefix("shard-")) + 1 if paths else 0) + self._rank
        if self._world_size > 1:
            self._last = None

    def __exit__(self, *exception: object) -> None:
        if not self._rank:
            locks.release(self.folder)

    def _scan(self, path: Path) -> None:
        """Learn what a shard holds; cut off a record that was never finished."""
        rows, good = 0, 0
        with path.open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                    index, digest, error = record["index"], record["digest"], record["error"]
                    _check_record(record)
                except (ValueError, KeyError, TypeError, RecursionError):
                    if line.endswith(b"\n"):
                        raise RecipeError(
                            f"{path}: line {rows + 1} is no record of a generation run; the file was changed or damaged. Remove it to "
                            "generate its rows again"
                        ) from None
                    break
                if not line.endswith(b"\n"):
                    break
                # A record that was asked for again after a failure stands further on, and counts.
                self._places[index] = (path, good)
                self.digests[index] = digest
                (self.failed.add if error else self.failed.discard)(index)
                rows, good = rows + 1, good + len(line)
        if good < path.stat().st_size:
            logger.warning("%s: its last record was cut off when the run ended; that row is generated again", path)
            os.truncate(path, good)
        self._last, self._rows_in_last = path, rows

    def append(self, records: list[dict[str, Any]]) -> None:
        """Write records and make sure that they are on the disk.

        Args:
            records: JSON-able, each with ``index``, ``digest`` (:func:`row_digest`) and ``error``.

        Raises:
            RecipeError: the disk is full or cannot be written; everything stored before is still whole.
        """
        for record in records:
            # ASCII escapes carry lone surrogates and control characters, which UTF-8 cannot.
            line = (json.dumps(record, default=str) + "\n").encode("ascii")
            if self._last is None or self._rows_in_last >= self._shard_rows:
                self._last, self._rows_in_last = self.folder / f"shard-{self._next:05d}.jsonl", 0
                self._next += self._world_size
            self._write(self._last, line, record)

    def _write(self, path: Path, line: bytes, record: dict[str, Any]) -> None:
        try:
            with path.open("ab", buffering=0) as file:
                start = file.tell()
                try:
                    written = 0
                    while written < len(line):  # a nearly full disk takes a part and then refuses
                        written += file.write(line[written:])
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(file.fileno(), start)
                    raise
        except OSError as error:
            raise RecipeError(
                f"{path}: cannot be written: {error.strerror}. {len(self._places)} rows are stored whole; make room and run the same "
                "command again"
            ) from error
        self._places[record["index"]] = (path, start)
        self.digests[record["index"]] = record["digest"]
        (self.failed.add if record["error"] else self.failed.discard)(record["index"])
        self._rows_in_last += 1

    def check_whole(self, rows: int) -> None:
        """Make sure that what all processes wrote is here; ask after a wait and :meth:`reload`.

        Raises:
            RecipeError: some of ``rows`` have no record: another host wrote them elsewhere.
        """
        missing = [index for index in range(rows) if index not in self._places]
        if missing:
            raise RecipeError(
                f"{self.folder}: {len(missing)} of {rows} rows are not here, the first of them row {missing[0]}, though every process has "
                "finished: the hosts do not share this folder. Run the same command again with it on a disk that they share, or on one host"
            )

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The records in order of their index, read from disk one at a time."""
        current, file = None, None
        try:
            for index in sorted(self._places):
                path, start = self._places[index]
                if path != current:
                    if file:
                        file.close()
                    current, file = path, path.open("rb")
                file.seek(start)
                yield json.loads(file.readline())
        finally:
            if file:
                file.close()


def _check_record(record: dict[str, Any]) -> None:
    """A folder may be somebody else's; what is read of it later must be there, and of its kind.

    Raises:
        KeyError, TypeError: it is not.
    """
    kinds = {"index": (int,), "digest": (str,), "error": (str, type(None)), "completions": (list,)}
    fields = [(record[name], kind) for name, kind in kinds.items()]
    for completion in record["completions"]:
        fields += [(completion["text"], (str,)), (completion["tokens"], (int,)), (completion["finish_reason"], (str, type(None)))]
    for value, kind in fields:
        if type(value) not in kind:
            raise TypeError(f"found {type(value).__name__}")


def row_digest(prompt: Any, solution: Any) -> str:
    """A short digest of a row, to notice that stored completions answer other questions, or are judged by other golds, than today's."""
    return hashlib.sha256(json.dumps([prompt, solution], sort_keys=True, default=str).encode("ascii")).hexdigest()[:16]
