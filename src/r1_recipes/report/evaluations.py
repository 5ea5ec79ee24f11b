"""Scores that were written beside a run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import first_line
from r1_recipes.metrics.intervals import mean_interval
from r1_recipes.report.read import RunData, file_text, finite


def read_evaluations(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Scores that were written in the runs' directories (or a folder in them) or beside them: ``results*``, ``scores*``, ``eval*.json``.

    Returns:
        One entry a judged model: ``source``, ``label``, ``model`` and ``values``: by column ``[mean, low, high]``, the bounds ``None``
        where the file has one number. Lists of one number a problem get their 95 % interval.
    """
    own = [run.path.resolve() for run in runs]
    folders = [*own, *(path for folder in own for path in sorted(folder.iterdir()) if path.is_dir()), *(folder.parent for folder in own)]
    found: dict[str, dict[str, Any]] = {}
    for folder in dict.fromkeys(folders):
        for path in (path for pattern in ("results*.json", "scores*.json", "eval*.json") for path in sorted(folder.glob(pattern))):
            try:
                content = json.loads(file_text(path))
            except (OSError, ValueError, RecursionError) as error:
                runs[0].missing.append(("torn_file", {"file": path.name, "reason": first_line(error)}))
                continue
            for label, scores in _score_entries(content, path.stem.removeprefix("scores_")):
                values = _score_values(scores)
                judged_on = scores.get("judged_on")
                source = f"{path.name}: {judged_on}" if isinstance(judged_on, str) and judged_on else path.name
                entry = {"source": source, "label": label, "model": scores["model"], "values": values}
                if values:
                    # The same judgement stands in a pipeline's table and in the stage's own file.
                    found.setdefault(json.dumps([scores["model"], values]), entry)
    return list(found.values())


def _score_entries(content: Any, label: str, depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping that says of which model it is, with the nearest name there is for it."""
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


def _score_values(scores: dict[str, Any]) -> dict[str, list[float | None]]:
    values: dict[str, list[float | None]] = {}
    for key, value in scores.items():
        if isinstance(value, list) and value and all(_is_number(item) for item in value):
            values[key] = [finite(bound) for bound in mean_interval([float(item) for item in value])]
        elif isinstance(value, dict) and {"mean", "low", "high"} <= value.keys():
            values[key] = [finite(value[bound]) for bound in ("mean", "low", "high")]
        elif isinstance(value, dict) and key == "pass_at":
            values |= {
                f"pass@{k}": [finite(bound) for bound in found] for k, found in value.items() if isinstance(found, list) and len(found) == 3
            }
        elif isinstance(value, dict) and key == "rewards":
            judged = {name: [one for one in each if _is_number(one)] for name, each in value.items() if isinstance(each, list)}
            values |= {f"rewards/{name}": [finite(statistics.fmean(each)), None, None] for name, each in judged.items() if each}
        elif _is_number(value):
            values[key] = [finite(value), None, None]
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and finite(value) is not None
