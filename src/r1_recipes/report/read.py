"""A run directory, which may be somebody else's: what is missing or torn is noted, never raised."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.masking import masked
from r1_recipes.common.messages import clip
from r1_recipes.recipe.text import parse_yaml

# A trend compares the means of the first and the last quarter of the logged steps, at most MAX_WINDOW each; fewer points say nothing.
MIN_POINTS = 8
MAX_WINDOW = 20

_LARGEST = 1e100


@dataclass
class RunData:
    """What a run directory says."""

    name: str  # unlike the other runs'
    path: Path
    entry: dict[str, Any] = field(default_factory=dict)  # run.json
    settings: dict[str, Any] = field(default_factory=dict)  # recipe.yaml, with what later starts changed
    # For each metric the logged (step, value) pairs in order; a value is None if it was not finite.
    series: dict[str, list[tuple[int, float | None]]] = field(default_factory=dict)
    started: tuple[str, str] | None = None  # time of the first and of the last line of run.log, ISO 8601
    # What could not be read: a key of the page's table of strings, and its values.
    missing: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)  # of completions

    def values(self, key: str) -> list[float]:
        """A metric's finite values, in order of their steps."""
        return [value for _, value in self.series.get(key, ()) if value is not None]

    def trend(self, key: str) -> tuple[float, float, int] | None:
        """Means of a metric at the beginning and at the end, and the points in each; ``None`` if there are too few."""
        values = self.values(key)
        if len(values) < MIN_POINTS:
            return None
        window = min(len(values) // 4, MAX_WINDOW)
        return statistics.fmean(values[:window]), statistics.fmean(values[-window:]), window

    def torn(self, name: str, error: Exception) -> None:
        """Note that a file cannot be read, and why."""
        self.missing.append(("torn_file", {"file": name, "reason": first_line(error)}))


def read_run(path: Path, name: str | None = None) -> RunData:
    """Read a run directory.

    Raises:
        RecipeError: there is no such directory.
    """
    if not path.is_dir():
        raise RecipeError(f"{path}: no such run directory; give the output_dir of a run")
    run = RunData(name or path.resolve().name, path)
    run.entry = _mapping(run, "run.json", json.loads)
    run.settings = _mapping(run, "recipe.yaml", lambda text: parse_yaml(text, "recipe.yaml"))
    continued = run.entry.get("continued")
    for start in continued if isinstance(continued, list) else ():
        if isinstance(start, dict) and isinstance(start.get("settings"), dict):
            run.settings |= start["settings"]
    _read_metrics(run)
    times = re.findall(r'^\{"time": "(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"', _text(run, "run.log") or "", re.MULTILINE)
    if times:
        run.started = (times[0], times[-1])
    run.files = sorted(file for file in (path / "completions").glob("*.parquet") if file.is_file())
    if not run.files and run.entry.get("method", "grpo") == "grpo":
        run.missing.append(("no_completions", {"file": "completions/*.parquet"}))
    return run


def file_text(path: Path) -> str:
    """The text of a file of a run folder, which may be somebody else's: no link out of it, no pipe or device that never ends."""
    if path.is_symlink() or not path.is_file():
        raise FileNotFoundError(f"{path.name} is no file")
    return path.read_text(encoding="utf-8", errors="replace")


def _text(run: RunData, name: str) -> str | None:
    try:
        return file_text(run.path / name)
    except FileNotFoundError:
        run.missing.append(("no_file", {"file": name}))
    except OSError as error:
        run.torn(name, error)
    return None


def _mapping(run: RunData, name: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    text = _text(run, name)
    if text is None:
        return {}
    try:
        found = masked(parse(text))
        if not isinstance(found, dict):
            raise ValueError(f"a mapping is expected, not {type(found).__name__}")
        return found
    except (ValueError, RecursionError) as error:
        run.torn(name, error)
        return {}


def _read_metrics(run: RunData) -> None:
    name = "metrics.jsonl"
    text = _text(run, name)
    if text is None:
        return
    points: dict[str, dict[int, float | None]] = {}
    bad = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            step = entry.pop("step")
            if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**53:
                raise ValueError(step)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            bad.append(number)
            continue
        for key, value in entry.items():
            if is_number(value):
                # A step that is there twice was logged again after a resume; the later line is the run's.
                points.setdefault(key, {})[step] = finite(value)
    if bad:
        run.missing.append(("bad_lines", {"file": name, "count": len(bad), "first": bad[0]}))
    if not points:
        run.missing.append(("no_metrics", {"file": name}))
    run.series = {key: sorted(values.items()) for key, values in points.items()}


def is_number(value: object) -> bool:
    """Whether this is a number, finite or not; a bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite(value: Any) -> float | None:
    """A number with the six digits that a chart can show; ``None`` if it is no number, or too large to add some up."""
    return float(f"{value:.6g}") if is_number(value) and abs(value) < _LARGEST else None


def setting_text(value: Any) -> str:
    """A recipe's value as JSON; of a text, itself."""
    if isinstance(value, str):
        return clip(value)
    try:
        return clip(json.dumps(value, ensure_ascii=False, default=str))
    except (TypeError, ValueError, RecursionError):  # YAML allows keys of any kind, and a list in itself
        return clip(str(value))
