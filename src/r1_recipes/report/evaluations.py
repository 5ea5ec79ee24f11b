"""Scores that were written beside a run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from r1_recipes.metrics.intervals import mean_interval
from r1_recipes.report.read import RunData, file_text, finite

_PATTERNS = ("results*.json", "scores*.json", "eval*.json")
Bounds = list[float | None]


def read_evaluations(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Read the scores in the runs' directories, in a folder in them, or beside them.

    Returns:
        One entry per judged model: ``source``, ``label``, ``model`` and ``values``: by column ``[mean, low, high]``, the bounds ``None``
        if the file has one number. Lists of one number per problem get their 95 % interval.
    """
    own = [run.path.resolve() for run in runs]
    folders = [*own, *(path for folder in own for path in sorted(folder.iterdir()) if path.is_dir()), *(folder.parent for folder in own)]
    found: dict[str, dict[str, Any]] = {}
    for path in (path for folder in dict.fromkeys(folders) for pattern in _PATTERNS for path in sorted(folder.glob(pattern))):
        try:
            content = json.loads(file_text(path))
        except (OSError, ValueError, RecursionError) as error:
            runs[0].torn(path.name, error)
            continue
        for label, scores in _score_entries(content, path.stem.removeprefix("scores_")):
            judged_on = scores.get("judged_on")
            source = f"{path.name}: {judged_on}" if isinstance(judged_on, str) and judged_on else path.name
            values = dict(_score_values(scores))
            if values:
                # The same judgement stands in a pipeline's table and in the stage's own file.
                entry = {"source": source, "label": label, "model": scores["model"], "values": values}
                found.setdefault(json.dumps([scores["model"], values]), entry)
    return list(found.values())


def _score_entries(content: Any, label: str, depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping that says which model it is of, with the nearest name there is for it."""
    if depth > 4:
        return
    if isinstance(content, dict):
        label = content["label"] if isinstance(content.get("label"), str) else label
        if isinstance(content.get("model"), str):
            yield label, content
            return
        for key, value in content.items():
            yield from _score_entries(value, label if key in ("scores", "stages", "models") else str(key), depth + 1)
    elif isinstance(content, list):
        for value in content:
            name = value.get("model") if isinstance(value, dict) else None
            yield from _score_entries(value, Path(name).name if isinstance(name, str) else label, depth + 1)


def _score_values(scores: dict[str, Any]) -> Iterator[tuple[str, Bounds]]:
    for key, value in scores.items():
        if isinstance(value, list) and value and all(finite(item) is not None for item in value):
            yield key, _bounds(mean_interval([float(item) for item in value]))
        elif isinstance(value, dict) and {"mean", "low", "high"} <= value.keys():
            yield key, _bounds(value[bound] for bound in ("mean", "low", "high"))
        elif isinstance(value, dict) and key == "pass_at":
            yield from ((f"pass@{k}", _bounds(found)) for k, found in value.items() if isinstance(found, list) and len(found) == 3)
        elif isinstance(value, dict) and key == "rewards":
            judged = {name: [one for one in each if finite(one) is not None] for name, each in value.items() if isinstance(each, list)}
            yield from ((f"rewards/{name}", [finite(statistics.fmean(each)), None, None]) for name, each in judged.items() if each)
        elif finite(value) is not None:
            yield key, [finite(value), None, None]


def _bounds(values: Iterable[Any]) -> Bounds:
    return [finite(value) for value in values]
