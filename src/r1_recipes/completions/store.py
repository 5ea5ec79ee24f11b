"""Generated rows on disk, appended as they come, so that a run killed at any moment goes on without
loss.

A shard is a JSON-lines file; every start of a process writes its own. A record that was cut off
when the process died is removed when the folder is opened again, and its row is generated again. A
whole record is never changed.
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
from r1_recipes.common.files import open_unlinked, refuse_link
from r1_recipes.completions.types import Completion
from r1_recipes.data.load import identities

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


class ShardStore:
    """Append-only records by ``index``, which all processes of a run open together; rank 0 locks
    and repairs the folder before.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digests: dict[int, str] = {}  # by index, of the row that the stored record answers
        self.failed: set[int] = set()  # indices whose record holds an error
        self._places: dict[int, tuple[Path, int]] = {}

    def __enter__(self) -> ShardStore:
        processes.first(self._open)
        if processes.rank():
            self.reload()
        processes.wait()  # all have read what is there; then it grows
        return self

    def _open(self) -> None:
        refuse_link(self.folder)
        locks.hold(self.folder)
        self.reload()

    def __exit__(self, *exception: object) -> None:
        locks.release(self.folder)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The records in order of their index, read from disk one at a time."""
        for index in sorted(self._places):
            path, start = self._places[index]
            with path.open("rb") as file:
                file.seek(start)
                line = file.readline()
            yield json.loads(line)

    def reload(self) -> None:
        """Read what all processes have stored; a process knows only its own records otherwise."""
        paths = sorted(self.folder.glob("shard-*.jsonl"))
        for path in paths:
            self._read(path)
        # Numbers go up with time: the newest record of a row must stand furthest on.
        last = int(paths[-1].stem.removeprefix("shard-")) if paths else -1
        self._own = self.folder / f"shard-{last + 1 + processes.rank():05d}.jsonl"

    def _read(self, path: Path) -> None:
        end = 0
        with open_unlinked(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    logger.warning(
                        "%s: its last record was cut off when the run ended; that row is "
                        "generated again",
                        path,
                    )
                    with open_unlinked(path, "r+b") as shard:
                        shard.truncate(end)
                    return
                try:
                    record = json.loads(line)
                    [Completion(**completion) for completion in record["completions"]]
                    self._note(record, path, end)
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise RecipeError(
                        f"{path}: line {number} is no record of a generation run, or damaged. "
                        "Fix: remove the file to generate its rows again"
                    ) from None
                end += len(line)

    def _note(self, record: dict[str, Any], path: Path, start: int) -> None:
        """A row that was asked for again after a failure has two records; the later one counts."""
        index = operator.index(record["index"])
        self.digests[index] = record["digest"]
        if record["error"]:
            self.failed.add(index)
        else:
            self.failed.discard(index)
        self._places[index] = (path, start)

    def append(self, record: dict[str, Any]) -> None:
        """Write a record (``index``, ``digest``, ``error``, ``completions`` and more) and make sure
        that it is on the disk.
        """
        # ASCII escapes carry lone surrogates and control characters, which UTF-8 cannot.
        line = (json.dumps(record, default=str) + "\n").encode("ascii")
        try:
            with open_unlinked(self._own, "ab") as file:
                start = file.tell()
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RecipeError(
                f"{self._own}: cannot be written: {error.strerror}. "
                f"{len(self)} rows are stored whole; make room and run the same command again"
            ) from error
        self._note(record, self._own, start)

    def check_whole(self, rows: int) -> None:
        """Make sure that what all processes wrote is here; ask after a wait and :meth:`reload`."""
        if missing := rows - len(self):
            raise RecipeError(
                f"{self.folder}: {missing} of {rows} rows are not here: the hosts do not "
                f"share this folder. "
                "Fix: run the same command again with it on a disk that they share"
            )

    def check_rows(self, digests: Sequence[str]) -> None:
        """Make sure that every record answers the row of its index by its digest."""
        other = [
            index
            for index, digest in self.digests.items()
            if index >= len(digests) or digests[index] != digest
        ]
        if other:
            raise RecipeError(
                f"{self.folder.parent}: holds completions of other rows, settings or weights "
                f"than today's (row {other[0]}); "
                "choose another output folder, or remove this one"
            )


def row_digests(rows: Dataset, made_by: dict[str, Any] | None = None) -> list[str]:
    """A short digest per row, to notice stored completions of other questions, golds or settings
    (``made_by``) than today's.
    """
    solutions = rows["solution"] if "solution" in rows.column_names else [None] * len(rows)
    digests = []
    for prompt, solution in zip(identities(rows), solutions, strict=True):
        shaping = [prompt if made_by is None else [prompt, made_by], solution]
        digests.append(
            hashlib.sha256(
                json.dumps(shaping, sort_keys=True, default=str).encode("ascii")
            ).hexdigest()[:16]
        )
    return digests
