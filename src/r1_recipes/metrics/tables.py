"""Write scores as a Markdown table, and the difference between two models as a line."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from r1_recipes.metrics.intervals import Interval, mean_interval, paired_difference
from r1_recipes.metrics.scores import _KEPT, COMPARED, Scores


def markdown_table(
    rows: Sequence[tuple[str, Scores | None, dict[str, Any] | None]], *, full: bool = False
) -> str:
    """Return a Markdown table with a line per row.

    Args:
        rows: For each line: a label, the scores of a model and the report of a selection. The
            scores or the report may be ``None``.
        full: Add lenient accuracy, maj@n, pass@n, the share of truncated completions, and the mean
            of each reward.
    """
    lines = []
    for label, scores, selection in rows:
        line = {"model": label} | (_score_cells(scores, full) if scores else {})
        if selection:
            kept, count = (selection["completions"][key] for key in ("kept", "generated"))
            line[_KEPT] = f"{kept} of {count} ({kept / count:.0%})"
        lines.append(line)
    # The number of kept completions is the last column.
    names = sorted(
        dict.fromkeys(name for line in lines for name in line), key=lambda name: name == _KEPT
    )
    cells = [
        names,
        ["---"] * len(names),
        *([line.get(name, "") for name in names] for line in lines),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _score_cells(scores: Scores, full: bool) -> dict[str, str]:
    cells = {
        "greedy accuracy": _percent(mean_interval(scores.greedy)),
        "sampled accuracy": _percent(mean_interval(scores.sampled)) if scores.sampled else "",
        "format (greedy / sampled)": _both(scores.greedy_format, scores.sampled_format, digits=0),
        "language": "" if scores.language is None else f"{scores.language:.2f}",
        "mean tokens": f"{scores.mean_tokens:.0f}",
    }
    if full:
        n = scores.num_samples
        lenient = [
            statistics.fmean(values) if values else None
            for values in (scores.greedy_lenient, scores.sampled_lenient)
        ]
        cells["lenient (greedy / sampled)"] = _both(*lenient, digits=1)
        if n:
            cells |= {
                f"maj@{n}": _percent(mean_interval(scores.majority)),
                f"pass@{n}": _percent(mean_interval(scores.pass_at(n))),
            }
        cells["truncated"] = f"{100 * scores.truncated:.0f} %"
        judged = {
            name: [value for value in values if value is not None]
            for name, values in scores.rewards.items()
        }
        cells |= {
            f"reward {name}": f"{statistics.fmean(values):.3f}"
            for name, values in judged.items()
            if values
        }
    return cells


def _both(greedy: float | None, sampled: float | None, *, digits: int) -> str:
    return " / ".join(
        f"{100 * value:.{digits}f} %" for value in (greedy, sampled) if value is not None
    )


def _percent(interval: Interval, sign: str = "") -> str:
    mean, low, high = (100 * value for value in interval)
    return f"{mean:{sign}.1f} % ({low:{sign}.1f} to {high:{sign}.1f})"


def differences(before: Scores, after: Scores) -> dict[str, Interval]:
    """Return the differences of two models over the same rows, by the names in :data:`COMPARED`."""
    return {
        name: paired_difference(getattr(before, name), getattr(after, name))
        for name in COMPARED
        if getattr(after, name)
    }


def difference_line(before: Scores, after: Scores, what: str, *, full: bool = False) -> str:
    """Return a line with the differences of two models over the same rows, with 95 % intervals.

    ``full`` adds the differences of lenient accuracy.
    """
    parts = []
    for name, difference in differences(before, after).items():
        if full or "lenient" not in name:
            parts.append(
                f"{COMPARED[name]} {_percent(difference, '+').replace(' %', ' points', 1)}"
            )
    return f"{what}: {', '.join(parts)}; paired over the same {len(before.greedy)} problems."
