"""Scores that ``evaluate`` and ``pipeline`` wrote beside a run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from r1_recipes.metrics.intervals import mean_interval
from r1_recipes.report.read import RunData, file_text, finite, is_number

_PER_ROW = ("greedy", "sampled", "majority", "greedy_lenient", "sampled_lenient")


def read_evaluations(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Read the scores in the runs' directories, in a folder in them, or beside them.

    Returns:
        Per judged model ``source``, ``label``, ``model`` and ``values``: by column ``[mean, low, high]``, bounds ``None`` if unknown.
    """
    own = [run.path.resolve() for run in runs]
    places = [(folder, pattern) for folder in own for pattern in ("results.json", "*/results.json")]
    places += [(folder.parent, "results.json") for folder in own]
    found: dict[str, dict[str, Any]] = {}
    for path in dict.fromkeys(path for folder, pattern in places for path in sorted(folder.glob(pattern))):
        with runs[0].reading(path.name):
            for label, scores in _judged(json.loads(file_text(path))):
                entry = {"label": str(label), "model": str(scores["model"]), "values": dict(_values(scores))}
                source = f"{path.name}: {scores['judged_on']}" if scores.get("judged_on") else path.name
                # The same judgement may stand in a pipeline's table and in an evaluation of its own.
                found.setdefault(json.dumps([entry["model"], entry["values"]]), {"source": source, **entry})
    return list(found.values())


def _judged(content: Any) -> list[tuple[str, dict[str, Any]]]:
    """Labels and scores in what evaluate writes (a list), or a pipeline (its stages)."""
    if isinstance(content, list):
        return [(Path(scores["model"]).name, scores) for scores in content]
    return [(stage["label"], stage["scores"]) for stage in content["stages"].values() if stage["scores"]]


def _values(scores: dict[str, Any]) -> Iterator[tuple[str, list[float | None]]]:
    for key, value in scores.items():
        if is_number(value):
            yield key, [finite(value), None, None]
        elif key in _PER_ROW and value:
            yield key, [finite(bound) for bound in mean_interval(value)]
        elif key == "pass_at":
            yield from ((f"pass@{k}", [finite(bound) for bound in interval]) for k, interval in value.items())
        elif key == "rewards":
            judged = {name: [one for one in values if one is not None] for name, values in value.items()}
            yield from ((f"rewards/{name}", [finite(statistics.fmean(each)), None, None]) for name, each in judged.items() if each)
