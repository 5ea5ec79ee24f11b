"""Sampled completions of runs, packed for the page."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any

from r1_recipes.common.errors import first_line
from r1_recipes.common.messages import clip, words
from r1_recipes.report.read import RunData, finite

# Compressed completions in one page, in bytes of base64: with the page's own 0.6 MB and its curves it stays below 15 MB.
MAX_COMPLETION_BYTES = 13_500_000
# Rows read, over all runs; twice 500 steps of 64. More would make every save wait.
MAX_COMPLETIONS = 64_000
_NO_REWARD = {"step", "advantage"}
# One step's completions, unpacked; a few KB of Parquet can stand for any number of GB.
_MAX_TABLE_BYTES = 1 << 30


def read_completions(runs: Sequence[RunData]) -> dict[str, Any]:
    """Sampled completions of all runs, column by column.

    Returns:
        ``rewards`` and ``extras`` (column names), ``rows`` (``run``, ``step``, ``prompt``: an index into ``prompts``, ``text``,
        ``reward``: the weighted sum, ``advantage``, ``scores`` and ``extra``: a list a name), ``prompts``, and ``total``: rows there are.
    """
    import pyarrow
    import pyarrow.parquet

    counts = []
    for run in runs:
        readable = []
        for path in run.files:
            try:
                found = pyarrow.parquet.read_metadata(path)
                size = sum(found.row_group(group).total_byte_size for group in range(found.num_row_groups))
                if path.is_symlink() or size > _MAX_TABLE_BYTES:
                    raise OSError("a link" if path.is_symlink() else f"{size} bytes, unpacked")
                readable.append((path, found.num_rows))
            except (OSError, pyarrow.ArrowException) as error:
                run.missing.append(("torn_file", {"file": f"completions/{path.name}", "reason": first_line(error)}))
        counts.append(readable)
    total = sum(rows for readable in counts for _, rows in readable)
    share = min(1.0, MAX_COMPLETIONS / total) if total else 1.0
    table = _Table(len(runs))
    for number, (run, readable) in enumerate(zip(runs, counts, strict=True)):
        weights = _weights(run)
        for path, _ in spread(readable, share):
            try:
                with pyarrow.parquet.ParquetFile(path) as file:
                    rows = file.read().to_pylist()
            except (OSError, ValueError, OverflowError, pyarrow.ArrowException) as error:
                run.missing.append(("torn_file", {"file": f"completions/{path.name}", "reason": first_line(error)}))
                continue
            for row in rows:
                table.add(number, row, weights)
    return {**table.columns(), "total": total}


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


class _Table:
    """Rows of many files as columns; a column that a file lacks is ``None`` there."""

    def __init__(self, runs: int) -> None:
        self.rows: list[tuple[int, dict[str, Any], int, float | None]] = []
        self.prompts: dict[str, int] = {}
        self.scores: dict[str, None] = {}
        self.extras: dict[str, None] = {}

    def add(self, run: int, row: dict[str, Any], weights: Mapping[str, float]) -> None:
        step = row.get("step")
        kept: dict[str, Any] = {"step": step if isinstance(step, int) else None, "text": clip(words(row.get("completion")))}
        kept["advantage"] = finite(row.get("advantage"))
        total = None
        for key, value in row.items():
            if key in ("prompt", "completion") or key in _NO_REWARD:
                continue
            if isinstance(value, int | float) and not isinstance(value, bool):
                self.scores[key] = None
                kept[f"score {key}"] = score = finite(value)
                if score is not None:
                    total = (total or 0.0) + weights.get(key, 1.0) * score
            elif value is not None:
                self.extras[key] = None
                kept[f"extra {key}"] = clip(value if isinstance(value, str) else words(value) or str(value))
        prompt = self.prompts.setdefault(clip(words(row.get("prompt"), roles=True)), len(self.prompts))
        self.rows.append((run, kept, prompt, None if total is None else finite(total)))

    def columns(self) -> dict[str, Any]:
        rows = self.rows
        return {
            "rewards": list(self.scores),
            "extras": list(self.extras),
            "prompts": list(self.prompts),
            "rows": {
                "run": [run for run, *_ in rows],
                "step": [kept["step"] for _, kept, *_ in rows],
                "prompt": [prompt for _, _, prompt, _ in rows],
                "text": [kept["text"] for _, kept, *_ in rows],
                "reward": [total for *_, total in rows],
                "advantage": [kept["advantage"] for _, kept, *_ in rows],
                "scores": [[kept.get(f"score {name}") for _, kept, *_ in rows] for name in self.scores],
                "extra": [[kept.get(f"extra {name}") for _, kept, *_ in rows] for name in self.extras],
            },
        }


def pack_completions(completions: dict[str, Any]) -> tuple[int, str, int]:
    """Rows there are, the packed columns, and rows among them; whole steps are left out evenly until they fit the page."""
    rows = completions["rows"]
    steps = sorted({(run, step or 0) for run, step in zip(rows["run"], rows["step"], strict=True)})
    share = 1.0
    while True:
        chosen = set(spread(steps, share))
        keep = [i for i, place in enumerate(zip(rows["run"], rows["step"], strict=True)) if (place[0], place[1] or 0) in chosen]
        packed = _packed(_selected(completions, keep) if len(keep) < len(rows["run"]) else completions)
        if len(packed) <= MAX_COMPLETION_BYTES or len(chosen) <= 1:
            return completions["total"], packed, len(keep)
        share *= 0.95 * MAX_COMPLETION_BYTES / len(packed)


def _selected(completions: dict[str, Any], keep: list[int]) -> dict[str, Any]:
    rows = completions["rows"]
    chosen = {key: [rows[key][i] for i in keep] for key in ("run", "step", "text", "reward", "advantage")}
    chosen |= {key: [[column[i] for i in keep] for column in rows[key]] for key in ("scores", "extra")}
    prompts = {index: new for new, index in enumerate(dict.fromkeys(rows["prompt"][i] for i in keep))}
    chosen["prompt"] = [prompts[rows["prompt"][i]] for i in keep]
    return {**completions, "rows": chosen, "prompts": [completions["prompts"][index] for index in prompts]}


def _packed(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode("ascii")
