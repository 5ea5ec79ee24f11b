"""What the benchmarks of hours share: a folder has one set of settings, and a command that is told
to stop may save first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from r1_recipes.common import processes
from r1_recipes.common.files import write_whole

# The allocator keeps its large blocks; the Makefile says why.
_ENVIRONMENT = {**os.environ, "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}


def hold_settings(parser: argparse.ArgumentParser, output: Path, settings: dict[str, Any]) -> None:
    """Make the folder for runs with these settings; the parser's error where it holds runs with
    others.
    """
    output.mkdir(parents=True, exist_ok=True)
    kept = output / "settings.json"
    if not kept.exists():  # another process of the same benchmark may read it now
        write_whole(kept, json.dumps(settings))
    elif (found := kept.read_text(encoding="utf-8")) != json.dumps(settings):
        parser.error(
            f"--output {output}: holds runs with other settings, {found}; choose another folder"
        )


def is_judged(results: Path, *models: Path) -> bool:
    """Whether there are verdicts, and of these models: those of one that was trained again since
    are of another.
    """
    runs = [model / "run.json" for model in models]
    return results.exists() and all(
        not run.exists() or run.stat().st_mtime <= results.stat().st_mtime for run in runs
    )


class Verdicts:
    """Verdicts on each problem by run and seed, in the file of ``--verdicts``, from which other
    machines go on; without one, nothing.

    Args:
        path: the file, which :meth:`keep` makes.
        settings: of the runs; the parser's error where the file has runs with others.
        kinds: of verdicts, keys of what is kept.
    """

    def __init__(
        self,
        parser: argparse.ArgumentParser,
        path: Path | None,
        settings: dict[str, Any],
        kinds: tuple[str, ...],
    ) -> None:
        self.path, self.settings, self.kinds = path, json.loads(json.dumps(settings)), kinds
        if (found := self._read()["settings"]) != self.settings:
            parser.error(f"--verdicts {path}: of runs with other settings, {json.dumps(found)}")

    def _read(self) -> dict[str, Any]:
        return (
            json.loads(self.path.read_text(encoding="utf-8"))
            if self.path and self.path.exists()
            else {"settings": self.settings}
        )

    def get(self, name: str, seed: int) -> dict[str, Any] | None:
        one = self._read().get(name, {}).get(str(seed))
        return one and {
            **one,
            **{kind: [float(value) for value in one[kind]] for kind in self.kinds},
        }

    def keep(self, name: str, seed: int, scores: dict[str, Any], *more: str) -> None:
        """Add the verdicts and what else is in ``scores`` by the names of ``more``."""
        if self.path:
            kept = self._read()  # another process of the same benchmark may have written since
            short = {
                kind: "".join(str(int(value)) for value in scores[kind])
                for kind in self.kinds
                if set(scores[kind]) <= {0.0, 1.0}
            }
            kept.setdefault(name, {})[str(seed)] = {
                key: scores[key] for key in (*self.kinds, *more)
            } | short
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, json.dumps(kept, indent=1, sort_keys=True) + "\n")


def by_problem(found: list[dict[str, Any]], kind: str) -> list[float]:
    """Of each problem the mean over seeds."""
    return [statistics.fmean(values) for values in zip(*(one[kind] for one in found), strict=True)]


def in_points(difference: tuple[float, float, float]) -> str:
    """A difference of shares and its interval, in points: ``+1.8 (-0.9 to +4.6)``."""
    return "{:+z.1f} ({:+z.1f} to {:+z.1f})".format(*(100 * bound for bound in difference))


def rows_folder(train: str, test: str, output: Path) -> str:
    """A data set of two files of rows, copied into ``output``: its splits are ``train`` and
    ``test``, as those of the hub's GSM8K are.
    """
    rows = output / "rows"
    rows.mkdir(exist_ok=True)
    for name, given in (("train", train), ("test", test)):
        kept = rows / f"{name}.jsonl"
        if not kept.exists():
            shutil.copy(given, part := kept.with_suffix(".part"))
            part.replace(kept)
    return str(rows)


def run_logged(words: list[str], folder: Path, *, may_fail: bool = False) -> str:
    """Python with these words in a process of its own; its standard output, which goes to
    ``folder/log.txt`` too, as its errors do.

    Raises:
        SystemExit: it failed; the log's end is shown.
    """
    log = folder / "log.txt"
    sys.stderr.write(f"{words[1]} … (what it says: {log})\n")
    with log.open("a", encoding="utf-8") as sink:
        process = processes.start_child(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            stderr=sink,
            text=True,
            env=_ENVIRONMENT,
        )
        with processes.handled_by(lambda number, frame: process.terminate()):
            text = process.communicate()[0]
        sink.write(text)
    if process.returncode and not may_fail:
        tail = log.read_text(encoding="utf-8", errors="replace")[-3000:]
        raise SystemExit(
            f"{tail}\nerror: {' '.join(words[:3])} ended with status {process.returncode}: "
            f"see {log}"
        )
    return text
