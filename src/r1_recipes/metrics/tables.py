"""Scores as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from r1_recipes.metrics.intervals import mean_interval, paired_difference
from r1_recipes.metrics.scores import Scores


def markdown_table(rows: Sequence[tuple[str, Scores | None, dict[str, Any] | None]], *, full: bool = False) -> str:
    """One row a model or a made data set.

    Args:
        full: lenient accuracy, maj@n and pass@n too, and how many samples were cut.
        rows: label, the model's scores, and the yield of what was made instead of a model
            (``kept_completions``, ``completions``); one of the two.

    Returns:
        A Markdown table: accuracy greedy and sampled with 95 % intervals, format rate, language consistency, mean length, and the yield
        where any row has one.
    """
    columns = ["model", "greedy accuracy", "sampled accuracy", "format (greedy / sampled)", "language", "mean tokens"]
    made = any(yielded for _, _, yielded in rows)
    more = []
    if full:
        n = next(scores.num_samples for _, scores, _ in rows if scores is not None)
        more = ["lenient (greedy / sampled)", *([f"maj@{n}", f"pass@{n}"] if n else []), "truncated"]
    lines = [columns + more + ["completions kept"] * made]
    lines.append(["---"] * len(lines[0]))
    for label, scores, yielded in rows:
        cells = [label, *[""] * (len(columns) - 1)]
        if scores is not None:
            cells[1:3] = [_percent(mean_interval(values)) if values else "" for values in (scores.greedy, scores.sampled)]
            cells[3] = _both(scores.greedy_format, scores.sampled_format, digits=0)
            cells[4:6] = ["" if scores.language is None else f"{scores.language:.2f}", f"{scores.mean_tokens:.0f}"]
            if full:
                lenient = (sum(values) / len(values) if values else None for values in (scores.greedy_lenient, scores.sampled_lenient))
                cells.append(_both(*lenient, digits=1))
                if n:
                    cells += [_percent(mean_interval(values)) for values in (scores.majority, scores.pass_at(n))]
                cells.append(f"{100 * scores.truncated:.0f} %")
        share = ""
        if yielded is not None:
            kept, all_ = yielded["kept_completions"], yielded["completions"]
            share = f"{kept} of {all_} ({kept / all_:.0%})"
        lines.append(cells + [share] * made)
    return _table(lines)


def rewards_table(rows: Sequence[tuple[str, Scores]]) -> str:
    """What the recipe's own rewards give each model, with 95 % intervals, as a Markdown table; empty where nothing was scored."""
    names = list(dict.fromkeys(name for _, scores in rows for name in scores.rewards))
    if not names:
        return ""
    lines = [["reward, mean", *names], ["---"] * (1 + len(names))]
    for label, scores in rows:
        cells = [label]
        for name in names:
            judged = [value for value in scores.rewards.get(name, ()) if value is not None]
            cells.append("{:.3f} ({:.3f} to {:.3f})".format(*mean_interval(judged)) if judged else "")
        lines.append(cells)
    return _table(lines)


def _table(lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _both(greedy: float, sampled: float | None, *, digits: int) -> str:
    return " / ".join(f"{100 * value:.{digits}f} %" for value in (greedy, sampled) if value is not None)


def _percent(interval: tuple[float, float, float], sign: str = "") -> str:
    mean, low, high = (100 * value for value in interval)
    return f"{mean:{sign}.1f} % ({low:{sign}.1f} to {high:{sign}.1f})"


# Each of Scores' lists that a difference is taken of, and what it is called.
COMPARED = {"greedy": "greedy", "sampled": "sampled", "greedy_lenient": "lenient greedy", "sampled_lenient": "lenient sampled"}


def differences(before: Scores, after: Scores) -> dict[str, tuple[float, float, float]]:
    """How much better the second is, over the same rows, with 95 % intervals: strict and lenient, greedy and (where there are) sampled."""
    return {name: paired_difference(getattr(before, name), getattr(after, name)) for name in COMPARED if getattr(after, name)}


def difference_line(before: Scores, after: Scores, what: str, *, full: bool = False) -> str:
    """One sentence: how much better, greedy and sampled, over the same rows, with 95 % intervals; ``full``: leniently, too."""
    parts = [
        f"{COMPARED[name]} {_percent(difference, '+').replace(' %', ' points', 1)}"
        for name, difference in differences(before, after).items()
        if full or name in ("greedy", "sampled")
    ]
    return f"{what}: {', '.join(parts)}; paired over the same {len(before.greedy)} problems."
