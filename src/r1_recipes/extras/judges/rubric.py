"""A row's rubric and a judge's verdicts on it: ``{rubric}`` in the prompt of a judge.

Sources: Rubrics as Rewards (arXiv:2507.17746, explicit aggregation), HealthBench (arXiv:2505.08775:
a criterion that describes a fault has negative points, and the positive ones alone are what can be
reached).
"""

import json
import math
import re
from typing import Any

Rubric = tuple[tuple[str, float], ...]  # criteria and their weights

_VERDICT = re.compile(r"[-#]{0,9}([0-9]{1,4})[.):](yes|no)\.?", re.IGNORECASE)
_EMPHASIS = re.compile(r"[\s*_`]+")


def read_rubric(value: Any) -> Rubric | None:
    """A row's criteria, a list or JSON text, with ``criterion`` and ``weight`` or ``description``
    and ``points``; ``None``: it is none.
    """
    try:
        entries = json.loads(value) if isinstance(value, str) else value
        rubric = tuple(
            (
                " ".join((entry.get("criterion") or entry["description"]).split()),
                float(entry.get("weight", entry.get("points"))),
            )
            for entry in entries
        )
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None
    whole = all(text and math.isfinite(weight) for text, weight in rubric)
    return rubric if whole and any(weight > 0 for _, weight in rubric) else None


def numbered(rubric: Rubric) -> str:
    """The criteria as a judge sees them: one numbered line each, without the weights."""
    return "\n".join(f"{number}. {text}" for number, (text, _) in enumerate(rubric, start=1))


def read_verdicts(reply: str, rubric: Rubric) -> float | None:
    """The weights of the criteria that are met over the positive ones, cut to 0..1; ``None`` if the
    reply does not end in one line each.

    Only ``1: yes`` or ``1: no``, in order and with nothing after or between them, is a verdict: of
    what a judge quotes, nothing counts.
    """
    lines = [line for line in (_EMPHASIS.sub("", line) for line in reply.split("\n")) if line]
    found = [_VERDICT.fullmatch(line) for line in lines[-len(rubric) :]]
    if [verdict and int(verdict[1]) for verdict in found] != list(range(1, len(rubric) + 1)):
        return None
    met = sum(
        weight
        for verdict, (_, weight) in zip(found, rubric, strict=True)
        if verdict and verdict[2].lower() == "yes"
    )
    return min(1.0, max(0.0, met / sum(weight for _, weight in rubric if weight > 0)))
