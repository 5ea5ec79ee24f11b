"""Means with 95 % confidence intervals, for a model and for the difference between two models."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_Z = statistics.NormalDist().inv_cdf(0.975)  # Two-sided 95 %.


Interval = tuple[float, float, float]  # The mean, the lower and the upper bound.


def mean_interval(values: Sequence[float], samples: float = math.inf) -> Interval:
    """Return the mean and the 95 % interval of independent values, one per row.

    Values from 0 to 1 get Wilson's interval (J. Am. Stat. Assoc. 22, 1927), which stays between 0
    and 1 and keeps a width at both ends. For shares, an effective number of rows replaces the
    number of rows: the number of 0/1 values whose mean would vary equally (Korn and Graubard,
    Survey Methodology 24, 1998, do this with another interval). Other values get the normal
    interval.

    Args:
        values: One value per row.
        samples: The completions behind each value. Shares of so many count as at most so many 0/1
            values each, however equal the rows are.
    """
    if min(values) < 0 or max(values) > 1:
        return _normal_interval(values)
    mean = statistics.fmean(values)
    variance = statistics.pvariance(values)
    binomial = mean * (1 - mean)  # the variance of 0/1 values with this mean
    n = float(len(values))
    if variance:
        n *= min(binomial / variance, samples)
    scale = 1 + _Z**2 / n
    centre = (mean + _Z**2 / (2 * n)) / scale
    half = _Z / scale * math.sqrt(binomial / n + _Z**2 / (4 * n**2))
    # At the ends the bound is exactly 0 or 1. Avoid rounding errors.
    low = max(0.0, centre - half) if mean else 0.0
    high = min(1.0, centre + half) if mean < 1 else 1.0
    return mean, low, high


def paired_difference(before: Sequence[float], after: Sequence[float]) -> Interval:
    """Return the mean of ``after - before`` over the same rows, and its 95 % interval.

    0/1 values get the interval of Bonett and Price (J. Educ. Behav. Stat. 37, 2012), which keeps a
    width even if few rows changed.

    Raises:
        ValueError: The numbers of values differ.
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    if not {*before, *after} <= {0.0, 1.0}:
        return _normal_interval(differences)
    n = len(differences) + 2
    won = (differences.count(1.0) + 1) / n
    lost = (differences.count(-1.0) + 1) / n
    centre = won - lost
    half = _Z * math.sqrt((won + lost - centre**2) / n)
    return statistics.fmean(differences), max(-1.0, centre - half), min(1.0, centre + half)


def _normal_interval(values: Sequence[float]) -> Interval:
    mean = statistics.fmean(values)
    half = math.inf
    if len(values) > 1:
        half = _Z * statistics.stdev(values, mean) / math.sqrt(len(values))
    return mean, mean - half, mean + half
