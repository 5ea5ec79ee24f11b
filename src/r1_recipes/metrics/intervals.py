"""Means with 95 % intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

# Two-sided 95 %.
_Z = statistics.NormalDist().inv_cdf(0.975)
# Mean, lower and upper bound.
Interval = tuple[float, float, float]


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % interval of independent values, one per row.

    0/1 values get Wilson's interval, which stays inside 0..1 and does not collapse at the ends. So do shares, with the number of 0/1
    values whose mean would vary as much in place of the number of rows, and Student's t in place of the normal point (Korn and Graubard,
    Survey Methodology 24, 1998, do the same with another interval). Values outside 0..1 get Student's interval.
    """
    mean, low, high = _student_interval(values)
    if set(values) <= {0.0, 1.0}:
        low, high = _wilson(mean, len(values), _Z)
        # At the ends the bound is 0 or 1 exactly; rounding must not say otherwise.
        return mean, 0.0 if mean == 0 else low, 1.0 if mean == 1 else high
    if min(values) >= 0 and max(values) <= 1 and low < mean and len(values) > 1:
        point = _student(len(values) - 1)
        return mean, *_wilson(mean, mean * (1 - mean) * (point / (mean - low)) ** 2, point)
    return mean, low, high


def paired_difference(before: Sequence[float], after: Sequence[float]) -> Interval:
    """Mean of ``after - before`` over the same rows, with its 95 % interval.

    For 0/1 values it is Bonett and Price's (J. Educ. Behav. Stat. 37, 2012), which keeps a width even if hardly a row changed; else
    Student's.

    Raises:
        ValueError: the lists are not equally long.
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    if not {*before, *after} <= {0.0, 1.0}:
        return _student_interval(differences)
    n = len(differences)
    won, lost = ((differences.count(value) + 1) / (n + 2) for value in (1.0, -1.0))
    half = _Z * math.sqrt((won + lost - (won - lost) ** 2) / (n + 2))
    return sum(differences) / n, max(-1.0, won - lost - half), min(1.0, won - lost + half)


def _student_interval(values: Sequence[float]) -> Interval:
    n, mean = len(values), sum(values) / len(values)
    half = _student(n - 1) * math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n) if n > 1 else math.inf
    return mean, mean - half, mean + half


def _wilson(mean: float, n: float, z: float) -> tuple[float, float]:
    """Wilson's bounds of a proportion (J. Am. Stat. Assoc. 22, 1927)."""
    centre = (mean + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(mean * (1 - mean) / n + z**2 / (4 * n**2))
    return centre - half, centre + half


def _student(degrees: int) -> float:
    """Two-sided 95 % point of Student's t, within 0.004 from three degrees on (Abramowitz and Stegun, 26.7.5)."""
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, start=1))
