"""Read a row's rubric and a judge's verdicts on it (``{rubric}`` in the prompt of the judge).

Sources: Rubrics as Rewards (arXiv:2507.17746, explicit aggregation) and HealthBench
(arXiv:2505.08775). In HealthBench, a criterion that describes a mistake has negative points, and
only the positive points can be reached.
"""

import json
import math
import re
from collections.abc import Iterable
from typing import Any

Rubric = tuple[tuple[str, float], ...]  # The criteria and their weights.

_VERDICT = re.compile(r"[-#]{0,9}([0-9]{1,4})[.):](yes|no)\.?", re.IGNORECASE)
_EMPHASIS = re.compile(r"[\s*_`]+")


def read_rubric(value: Any) -> Rubric | None:
    """Return the criteria of a row, or ``None`` if they cannot be read.

    ``value`` is a list or its JSON text. An entry has ``criterion`` and ``weight``, or
    ``description`` and ``points``.
    """
    rubric = []
    try:
        entries = json.loads(value) if isinstance(value, str) else value
        for entry in entries:
            text = entry.get("criterion") or entry["description"]
            weight = entry.get("weight")
            # A file of both spellings has every key in every row, empty where it was not written.
            weight = float(entry["points"] if weight is None else weight)
            rubric.append((" ".join(text.split()), weight))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None
    is_valid = all(text and math.isfinite(weight) for text, weight in rubric)
    return tuple(rubric) if is_valid and _best(rubric) > 0 else None


def _best(rubric: Iterable[tuple[str, float]]) -> float:
    return sum(max(0.0, weight) for _, weight in rubric)


def numbered(rubric: Rubric) -> str:
    """Return the criteria for the prompt of a judge: a numbered line each, without weights."""
    return "\n".join(f"{number}. {text}" for number, (text, _) in enumerate(rubric, start=1))


def read_verdicts(reply: str, rubric: Rubric) -> float | None:
    """Return the weight of the criteria met, divided by the positive weights and clipped to 0..1.

    Return ``None`` if a verdict is missing. The reply must end in a line ``1: yes`` or ``1: no``
    for each criterion, in order and without other lines between. So quotations do not count.
    """
    lines = [_EMPHASIS.sub("", line) for line in reply.split("\n")]
    verdicts = [line for line in lines if line][-len(rubric) :]
    if len(verdicts) < len(rubric):
        return None
    met = []
    for number, line in enumerate(verdicts, start=1):
        verdict = _VERDICT.fullmatch(line)
        if not verdict or int(verdict[1]) != number:
            return None
        if verdict[2].lower() == "yes":
            met.append(rubric[number - 1][1])
    # sum, as for the best: adding one by one rounds otherwise from Python 3.12 on.
    return min(1.0, max(0.0, sum(met) / _best(rubric)))
