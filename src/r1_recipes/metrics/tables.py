"""Write scores as a Markdown table, and the difference between two models as a line."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import chain
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
        line = {"model": label}
        if scores:
            line |= _score_cells(scores, full)
        if selection:
            kept = selection["completions"]["kept"]
            count = selection["completions"]["generated"]
            line[_KEPT] = f"{kept} of {count} ({kept / count:.0%})"
        lines.append(line)
    # The number of kept completions is the last column.
    names = sorted(dict.fromkeys(chain(*lines)), key=lambda name: name == _KEPT)
    cells = [names, ["---"] * len(names)]
    cells += [[line.get(name, "") for name in names] for line in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _score_cells(scores: Scores, full: bool) -> dict[str, str]:
    n = scores.num_samples
    cells = {
        "greedy accuracy": _percent(mean_interval(scores.greedy)),
        "sampled accuracy": _percent(mean_interval(scores.sampled, n)) if scores.sampled else "",
        "format (greedy / sampled)": _both(scores.greedy_format, scores.sampled_format, digits=0),
        "language": "" if scores.language is None else f"{scores.language:.2f}",
        "mean tokens": f"{scores.mean_tokens:.0f}",
    }
    if not full:
        return cells
    sampled = statistics.fmean(scores.sampled_lenient) if scores.sampled_lenient else None
    lenient = _both(statistics.fmean(scores.greedy_lenient), sampled, digits=1)
    cells["lenient (greedy / sampled)"] = lenient
    if n:
        cells[f"maj@{n}"] = _percent(mean_interval(scores.majority)) if scores.majority else ""
        cells[f"pass@{n}"] = _percent(mean_interval(scores.pass_at(n), n))
    cells["truncated"] = f"{100 * scores.truncated:.0f} %"
    for name, values in scores.rewards.items():
        judged = [value for value in values if value is not None]
        if judged:
            cells[f"reward {name}"] = f"{statistics.fmean(judged):.3f}"
    return cells


def _both(greedy: float, sampled: float | None, *, digits: int) -> str:
    text = f"{100 * greedy:.{digits}f} %"
    return text if sampled is None else f"{text} / {100 * sampled:.{digits}f} %"


def _percent(interval: Interval, unit: str = "%", sign: str = "") -> str:
    mean, low, high = (f"{100 * value:{sign}.1f}" for value in interval)
    return f"{mean} {unit} ({low} to {high})"


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
            parts.append(f"{COMPARED[name]} {_percent(difference, 'points', '+')}")
    return f"{what}: {', '.join(parts)}; paired over the same {len(before.greedy)} problems."
