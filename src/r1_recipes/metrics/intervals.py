"""Means with 95 % intervals, of one model and of the difference between two on the same rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_Z = statistics.NormalDist().inv_cdf(0.975)  # two-sided 95 %


Interval = tuple[float, float, float]  # mean, lower and upper bound


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % interval of independent values, one per row.

    Values in 0..1 get Wilson's interval (J. Am. Stat. Assoc. 22, 1927), which stays inside and does
    not collapse at the ends. Of shares it takes the number of 0/1 values whose mean would vary as
    much in place of the number of rows (Korn and Graubard, Survey Methodology 24, 1998, do the same
    with another interval). Other values get the normal interval.
    """
    if min(values) < 0 or max(values) > 1:
        return _normal_interval(values)
    mean, spread = statistics.fmean(values), statistics.pvariance(values)
    n = mean * (1 - mean) * len(values) / spread if spread else len(values)
    scale = 1 + _Z**2 / n
    centre = (mean + _Z**2 / (2 * n)) / scale
    half = _Z / scale * math.sqrt(mean * (1 - mean) / n + _Z**2 / (4 * n**2))
    # At the ends the bound is 0 or 1 exactly; rounding must not say otherwise.
    return (
        mean,
        max(0.0, centre - half) if mean else 0.0,
        min(1.0, centre + half) if mean < 1 else 1.0,
    )


def paired_difference(before: Sequence[float], after: Sequence[float]) -> Interval:
    """Mean of ``after - before`` over the same rows, with its 95 % interval; ``ValueError`` if they
    are not equally many.

    For 0/1 values it is Bonett and Price's (J. Educ. Behav. Stat. 37, 2012), which keeps a width
    even if hardly a row changed.
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    if not {*before, *after} <= {0.0, 1.0}:
        return _normal_interval(differences)
    n = len(differences)
    won, lost = ((differences.count(value) + 1) / (n + 2) for value in (1.0, -1.0))
    half = _Z * math.sqrt((won + lost - (won - lost) ** 2) / (n + 2))
    return sum(differences) / n, max(-1.0, won - lost - half), min(1.0, won - lost + half)


def _normal_interval(values: Sequence[float]) -> Interval:
    mean = statistics.fmean(values)
    half = (
        _Z * statistics.stdev(values, mean) / math.sqrt(len(values))
        if len(values) > 1
        else math.inf
    )
    return mean, mean - half, mean + half
