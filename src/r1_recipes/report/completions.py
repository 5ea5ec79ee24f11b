"""Sampled completions of runs, packed for the page."""

from __future__ import annotations

import base64
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from r1_recipes.common.messages import clip, words
from r1_recipes.report.read import RunData, finite, is_number

# Compressed completions in one page, in bytes of base64: with the page's own 0.6 MB and its curves it stays below 15 MB.
MAX_COMPLETION_BYTES = 13_500_000
# Rows read, over all runs; twice 500 steps of 64. More would make every save wait.
MAX_COMPLETIONS = 64_000
# One step's completions, unpacked; a few KB of Parquet can stand for any number of GB.
_MAX_TABLE_BYTES = 1 << 30
_NO_REWARD = {"prompt", "completion", "step", "advantage"}
# Values of a row that are a column of the page each.
_PLAIN = ("run", "step", "text", "reward", "advantage")

Row = dict[str, Any]


def read_completions(runs: Sequence[RunData]) -> tuple[list[Row], int]:
    """Read the sampled completions of all runs, or of evenly spaced files if there are too many.

    Returns:
        One mapping per completion: ``run`` (its number), ``step``, ``prompt``, ``text``, ``reward`` (the weighted sum), ``advantage``,
        ``scores`` and ``extras`` (by name); and the number of completions that there are.
    """
    import pyarrow
    import pyarrow.parquet

    readable = [_readable(run) for run in runs]
    total = sum(count for files in readable for _, count in files)
    share = min(1.0, MAX_COMPLETIONS / total) if total else 1.0
    rows = []
    for number, (run, files) in enumerate(zip(runs, readable, strict=True)):
        weights = _weights(run)
        for path, _ in spread(files, share):
            try:
                with pyarrow.parquet.ParquetFile(path) as file:
                    found = file.read().to_pylist()
            except (OSError, ValueError, OverflowError, pyarrow.ArrowException) as error:
                run.torn(f"completions/{path.name}", error)
                continue
            rows += [_row(number, values, weights) for values in found]
    return rows, total


def _readable(run: RunData) -> list[tuple[Path, int]]:
    """The run's files, with the number of rows in each."""
    import pyarrow
    import pyarrow.parquet

    files = []
    for path in run.files:
        try:
            found = pyarrow.parquet.read_metadata(path)
            size = sum(found.row_group(group).total_byte_size for group in range(found.num_row_groups))
            if path.is_symlink() or size > _MAX_TABLE_BYTES:
                raise OSError("a link" if path.is_symlink() else f"{size} bytes, unpacked")
            files.append((path, found.num_rows))
        except (OSError, pyarrow.ArrowException) as error:
            run.torn(f"completions/{path.name}", error)
    return files


def spread(items: list[Any], share: float) -> list[Any]:
    """Evenly spaced items, the first and the last among them."""
    count = max(1, round(len(items) * min(1.0, share)))
    if count >= len(items):
        return items
    return [items[round(i * (len(items) - 1) / max(1, count - 1))] for i in range(count)]


def _weights(run: RunData) -> dict[str, float]:
    names, weights = run.settings.get("reward_funcs"), run.settings.get("reward_weights")
    if not isinstance(names, list) or not isinstance(weights, list):
        return {}
    named = {str(name).rpartition(":")[2]: finite(weight) for name, weight in zip(names, weights, strict=False)}
    return {name: weight for name, weight in named.items() if weight is not None}


def _row(run: int, values: dict[str, Any], weights: Mapping[str, float]) -> Row:
    others = {key: value for key, value in values.items() if key not in _NO_REWARD and value is not None}
    scores = {key: finite(value) for key, value in others.items() if is_number(value)}
    weighted = [weights.get(key, 1.0) * score for key, score in scores.items() if score is not None]
    extras = {key: value if isinstance(value, str) else words(value) or str(value) for key, value in others.items() if key not in scores}
    return {
        "run": run,
        "step": values["step"] if isinstance(values.get("step"), int) else None,
        "prompt": sys.intern(clip(words(values.get("prompt"), roles=True))),  # one copy for its whole group
        "text": clip(words(values.get("completion"))),
        "reward": finite(sum(weighted)) if weighted else None,
        "advantage": finite(values.get("advantage")),
        "scores": scores,
        "extras": {key: clip(text) for key, text in extras.items()},
    }


def columns(rows: Sequence[Row]) -> dict[str, Any]:
    """The rows as the page reads them, column by column.

    Returns:
        ``rewards``, ``extras`` and ``prompts``, and ``rows``: lists of what :func:`read_completions` gives, in which a prompt is an index
        into ``prompts``, and ``scores`` and ``extra`` are a list per name.
    """
    prompts = {prompt: index for index, prompt in enumerate(dict.fromkeys(row["prompt"] for row in rows))}
    rewards, extras = (list(dict.fromkeys(name for row in rows for name in row[kind])) for kind in ("scores", "extras"))
    table: dict[str, Any] = {name: [row[name] for row in rows] for name in _PLAIN}
    table["prompt"] = [prompts[row["prompt"]] for row in rows]
    table["scores"] = [[row["scores"].get(name) for row in rows] for name in rewards]
    table["extra"] = [[row["extras"].get(name) for row in rows] for name in extras]
    return {"rewards": rewards, "extras": extras, "prompts": list(prompts), "rows": table}


def pack_completions(rows: Sequence[Row]) -> tuple[str, int]:
    """The packed columns, and the number of rows in them; whole steps are left out evenly until they fit the page."""
    steps = sorted({(row["run"], row["step"] or 0) for row in rows})
    share = 1.0
    while True:
        chosen = set(spread(steps, share))
        kept = [row for row in rows if (row["run"], row["step"] or 0) in chosen]
        text = json.dumps(columns(kept), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        packed = base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode("ascii")
        if len(packed) <= MAX_COMPLETION_BYTES or len(chosen) <= 1:
            return packed, len(kept)
        share *= 0.95 * MAX_COMPLETION_BYTES / len(packed)
