"""Scores as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from r1_recipes.metrics.intervals import Interval, mean_interval, paired_difference
from r1_recipes.metrics.scores import Scores

# Each of Scores' lists that a difference is taken of, and what it is called.
COMPARED = {"greedy": "greedy", "sampled": "sampled", "greedy_lenient": "lenient greedy", "sampled_lenient": "lenient sampled"}
_KEPT = "completions kept"


def markdown_table(rows: Sequence[tuple[str, Scores | None, dict[str, Any] | None]], *, full: bool = False) -> str:
    """Write a table of a row per model or made data set.

    Args:
        rows: label, and either the model's scores or the yield of what was made (``kept_completions``, ``completions``).
        full: lenient accuracy, maj@n and pass@n too, and how many completions were cut.
    """
    lines = []
    for label, scores, made in rows:
        line = {"model": label} | (_score_cells(scores, full) if scores else {})
        if made:
            kept, count = made["kept_completions"], made["completions"]
            line[_KEPT] = f"{kept} of {count} ({kept / count:.0%})"
        lines.append(line)
    names = sorted(dict.fromkeys(name for line in lines for name in line), key=lambda name: name == _KEPT)  # that one last
    return _table(names, [[line.get(name, "") for name in names] for line in lines])


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
        lenient = (sum(values) / len(values) if values else None for values in (scores.greedy_lenient, scores.sampled_lenient))
        cells["lenient (greedy / sampled)"] = _both(*lenient, digits=1)
        if n:
            cells |= {f"maj@{n}": _percent(mean_interval(scores.majority)), f"pass@{n}": _percent(mean_interval(scores.pass_at(n)))}
        cells["truncated"] = f"{100 * scores.truncated:.0f} %"
    return cells


def rewards_table(rows: Sequence[tuple[str, Scores]]) -> str:
    """Write what the recipe's own rewards give each model, with 95 % intervals; empty if nothing was scored."""
    names = list(dict.fromkeys(name for _, scores in rows for name in scores.rewards))
    lines = []
    for label, scores in rows:
        judged = [[value for value in scores.rewards.get(name, ()) if value is not None] for name in names]
        lines.append([label, *("{:.3f} ({:.3f} to {:.3f})".format(*mean_interval(values)) if values else "" for values in judged)])
    return _table(["reward, mean", *names], lines) if names else ""


def _table(header: list[str], lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, ["---"] * len(header), *lines])


def _both(greedy: float | None, sampled: float | None, *, digits: int) -> str:
    return " / ".join(f"{100 * value:.{digits}f} %" for value in (greedy, sampled) if value is not None)


def _percent(interval: Interval, sign: str = "") -> str:
    mean, low, high = (100 * value for value in interval)
    return f"{mean:{sign}.1f} % ({low:{sign}.1f} to {high:{sign}.1f})"


def differences(before: Scores, after: Scores) -> dict[str, Interval]:
    """How much better the second is over the same rows: each list of :data:`COMPARED` that there is."""
    return {name: paired_difference(getattr(before, name), getattr(after, name)) for name in COMPARED if getattr(after, name)}


def difference_line(before: Scores, after: Scores, what: str, *, full: bool = False) -> str:
    """Say how much better, greedy and sampled (``full``: leniently too), over the same rows, with 95 % intervals."""
    shown = [(name, one) for name, one in differences(before, after).items() if full or "lenient" not in name]
    parts = [f"{COMPARED[name]} {_percent(one, '+').replace(' %', ' points', 1)}" for name, one in shown]
    return f"{what}: {', '.join(parts)}; paired over the same {len(before.greedy)} problems."
