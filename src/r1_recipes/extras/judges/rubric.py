"""Read a row's rubric and a judge's verdicts on it (``{rubric}`` in the prompt of the judge).

Sources: Rubrics as Rewards (arXiv:2507.17746, explicit aggregation) and HealthBench
(arXiv:2505.08775). In HealthBench, a criterion that describes a mistake has negative points, and
only the positive points can be reached.
"""

import json
import math
import re
from typing import Any

Rubric = tuple[tuple[str, float], ...]  # The criteria and their weights.

_VERDICT = re.compile(r"[-#]{0,9}([0-9]{1,4})[.):](yes|no)\.?", re.IGNORECASE)
_EMPHASIS = re.compile(r"[\s*_`]+")


def read_rubric(value: Any) -> Rubric | None:
    """Return the criteria of a row, or ``None`` if they cannot be read.

    ``value`` is a list or its JSON text. An entry has ``criterion`` and ``weight``, or
    ``description`` and ``points``.
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
    is_valid = all(text and math.isfinite(weight) for text, weight in rubric)
    return rubric if is_valid and any(weight > 0 for _, weight in rubric) else None


def numbered(rubric: Rubric) -> str:
    """Return the criteria for the prompt of a judge: a numbered line each, without weights."""
    return "\n".join(f"{number}. {text}" for number, (text, _) in enumerate(rubric, start=1))


def read_verdicts(reply: str, rubric: Rubric) -> float | None:
    """Return the weight of the criteria met, divided by the positive weights and clipped to 0..1.

    Return ``None`` if a verdict is missing. The reply must end in a line ``1: yes`` or ``1: no``
    for each criterion, in order and without other lines between. So quotations do not count.
    """
    lines = [line for line in (_EMPHASIS.sub("", line) for line in reply.split("\n")) if line]
    verdicts = [_VERDICT.fullmatch(line) for line in lines[-len(rubric) :]]
    if [verdict and int(verdict[1]) for verdict in verdicts] != list(range(1, len(rubric) + 1)):
        return None
    met = sum(
        weight
        for verdict, (_, weight) in zip(verdicts, rubric, strict=True)
        if verdict and verdict[2].lower() == "yes"
    )
    return min(1.0, max(0.0, met / sum(weight for _, weight in rubric if weight > 0)))
