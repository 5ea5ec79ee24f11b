"""Generated rows on disk, appended as they come, so that a run killed at any moment goes on without loss.

A shard is a JSON-lines file. A record that was cut off when the process died is removed when the folder is opened again, and its row is
generated again. A whole record is never changed.
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

# Rows per file: small enough to copy about, large enough that a corpus is not a folder of a million files.
SHARD_ROWS = 1000


class ShardStore:
    """Append-only records by ``index``, in ``folder/shard-00000.jsonl`` and on; a context manager that locks the folder.

    Attributes:
        digests: index -> digest of the row that the stored record answers.
        failed: indices whose record holds an error.
    """

    def __init__(self, folder: Path, shard_rows: int = SHARD_ROWS, rank: int = 0, world_size: int = 1) -> None:
        self.folder = folder
        self.digests: dict[int, str] = {}
        self.failed: set[int] = set()
        self._rank, self._world_size, self._shard_rows = rank, world_size, shard_rows
        self._places: dict[int, tuple[Path, int]] = {}
        self._last: Path | None = None
        self._rows_in_last = self._next = 0

    @classmethod
    @contextlib.contextmanager
    def shared(cls, folder: Path) -> Iterator[ShardStore]:
        """The store of this run's processes: rank 0 locks and repairs it before the others read it."""
        store = cls(folder, rank=processes.rank(), world_size=processes.world_size())
        if store._rank:
            processes.wait()
        with store:
            if not store._rank:
                processes.wait()
            processes.wait()  # the others read what is there; then it grows
            yield store

    def __enter__(self) -> ShardStore:
        if not self._rank:
            locks.hold(self.folder)
        self.reload()
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._rank:
            locks.release(self.folder)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The records in order of their index, read from disk one at a time."""
        current = None
        with contextlib.ExitStack() as opened:
            for index in sorted(self._places):
                path, start = self._places[index]
                if path != current:
                    opened.close()
                    current, file = path, opened.enter_context(path.open("rb"))
                file.seek(start)
                yield json.loads(file.readline())

    def reload(self) -> None:
        """Read what all processes have stored; a process knows only its own records otherwise."""
        paths = sorted(self.folder.glob("shard-*.jsonl"))
        for path in paths:
            self._read(path)
        # Several processes start new files, whose numbers go up with time: the newest record of a row must stand furthest on.
        self._next = (int(paths[-1].stem.removeprefix("shard-")) + 1 if paths else 0) + self._rank
        if self._world_size > 1:
            self._last = None

    def _read(self, path: Path) -> None:
        """Note a shard's records; cut off a record that was never finished."""
        rows, end = 0, 0
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                try:
                    record = json.loads(line)
                    _check_record(record)
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise RecipeError(
                        f"{path}: line {rows + 1} is no record of a generation run; the file was changed or damaged. Remove it to "
                        "generate its rows again"
                    ) from None
                self._note(record, path, end)
                rows, end = rows + 1, end + len(line)
        if end < path.stat().st_size:
            logger.warning("%s: its last record was cut off when the run ended; that row is generated again", path)
            os.truncate(path, end)
        self._last, self._rows_in_last = path, rows

    def _note(self, record: dict[str, Any], path: Path, start: int) -> None:
        """A row that was asked for again after a failure has two records; the later one counts."""
        index = record["index"]
        self._places[index] = (path, start)
        self.digests[index] = record["digest"]
        (self.failed.add if record["error"] else self.failed.discard)(index)

    def append(self, record: dict[str, Any]) -> None:
        """Write a record (``index``, ``digest``, ``error``, ``completions`` and more) and make sure that it is on the disk.

        Raises:
            RecipeError: the disk is full or cannot be written; everything stored before is still whole.
        """
        # ASCII escapes carry lone surrogates and control characters, which UTF-8 cannot.
        line = (json.dumps(record, default=str) + "\n").encode("ascii")
        if self._last is None or self._rows_in_last >= self._shard_rows:
            self._last, self._rows_in_last = self.folder / f"shard-{self._next:05d}.jsonl", 0
            self._next += self._world_size
        try:
            start = _append(self._last, line)
        except OSError as error:
            raise RecipeError(
                f"{self._last}: cannot be written: {error.strerror}. {len(self)} rows are stored whole; make room and run the same "
                "command again"
            ) from error
        self._note(record, self._last, start)
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


def _append(path: Path, line: bytes) -> int:
    """Append a line, wholly or not at all, and return where it begins."""
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
    return start


def _check_record(record: dict[str, Any]) -> None:
    """Raise KeyError or TypeError if what is read later is missing or of another kind: the folder may be somebody else's."""
    fields = [(record, "index", int), (record, "digest", str), (record, "error", str | None), (record, "completions", list)]
    for completion in record["completions"]:
        fields += [(completion, "text", str), (completion, "tokens", int), (completion, "finish_reason", str | None)]
    for part, name, kind in fields:
        if not isinstance(part[name], kind) or isinstance(part[name], bool):
            raise TypeError(name)


def row_digest(prompt: object, solution: object) -> str:
    """A short digest of a row, to notice stored completions of other questions or golds than today's."""
    return hashlib.sha256(json.dumps([prompt, solution], sort_keys=True, default=str).encode("ascii")).hexdigest()[:16]
