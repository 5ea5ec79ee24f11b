"""Intervals: every expected value carries its working."""

import random

import pytest

from r1_recipes.metrics.intervals import mean_interval, paired_difference
from tests.core.metrics.test_scores import make_scores


def test_wilson_interval_of_a_proportion():
    # n = 100, p = 0.5, z = 1.96: centre (0.5 + 3.8415/200) / (1 + 3.8415/100) = 0.5;
    # half width 1.96/1.038415 * sqrt(0.25/100 + 3.8415/40000) = 1.8875 * 0.050951 = 0.0962
    mean, low, high = mean_interval([1.0] * 50 + [0.0] * 50)
    assert (mean, round(low, 4), round(high, 4)) == (0.5, 0.4038, 0.5962)


def test_interval_of_shares():
    # values 0.25, 0.5, 0.75, 0.5: mean 0.5, variance 0.125/4 = 0.03125, of the mean 0.0078125: as
    # of 0.25 / 0.0078125 = 32 values that are 0 or 1. z^2/32 = 0.12005: half width 1.96 / 1.12005 *
    # sqrt(0.25/32 + 0.12005/(4*32)) = 1.7499 * 0.093544 = 0.1637
    mean, low, high = mean_interval([0.25, 0.5, 0.75, 0.5])
    assert (mean, round(high - mean, 3), round(mean - low, 3)) == (0.5, 0.164, 0.164)
    # Of one sample each, they are four values that are 0 or 1, and no more, however alike they are.
    assert mean_interval([0.25, 0.5, 0.75, 0.5], 1) == mean_interval([0.0, 0.0, 1.0, 1.0])
    # one wrong sample among 400 leaves the bounds inside 0..1
    mean, low, high = mean_interval([1.0] * 99 + [0.75])
    assert 0.9 < low < mean < high < 1.0


def test_paired_difference_uses_the_pairs():
    # every row gains exactly 0.25: no spread, so no width, although each list alone varies
    before = [0.0, 0.25, 0.5, 0.75]
    assert paired_difference(before, [value + 0.25 for value in before]) == (0.25, 0.25, 0.25)
    with pytest.raises(ValueError):
        paired_difference([0.0], [0.0, 1.0])


def greedy_verdicts(rng, rows):
    """0/1. Of one probability n values give n + 1 intervals, which cover it in jumps; over many it
    evens out.
    """
    p = rng.uniform(0.1, 0.9)
    return mean_interval([float(rng.random() < p) for _ in range(rows)]), p


def shares_of_samples(rng, rows, n=8, a=0.3, b=0.7):
    """Problems that are mostly easy or hard: a row's probability is drawn from Beta(a, b), its
    share from n samples.
    """
    return mean_interval([rights(rng, n, rng.betavariate(a, b)) / n for _ in range(rows)]), a / (
        a + b
    )


def hard_problems(rng, rows):
    return shares_of_samples(rng, rows, a=0.1, b=0.9)


def pass_at_2_of_8(rng, rows):
    """Beta(1, 2): the truth is 1 - E[(1-p)^2] = 1 - (2*3)/(3*4) = 0.5."""
    scores = make_scores(
        [0.0] * rows, [rights(rng, 8, rng.betavariate(1, 2)) / 8 for _ in range(rows)], 8
    )
    return mean_interval(scores.pass_at(2)), 0.5


def paired_verdicts(rng, rows):
    """One in ten rows is won, one in twenty lost."""
    before, after = [], []
    for _ in range(rows):
        drawn = rng.random()
        before.append(float(0.1 <= drawn < 0.6))
        after.append(float(drawn < 0.55))
    return paired_difference(before, after), 0.05


def verdicts_that_only_rise(rng, rows):
    """One in twenty rows is won, none is lost: the plain interval would hold the truth in 78 of 100
    with 30 rows.
    """
    drawn = [rng.random() for _ in range(rows)]
    return paired_difference(
        [float(x < 0.5) for x in drawn], [float(x < 0.55) for x in drawn]
    ), 0.05


def paired_shares(rng, rows):
    """A tenth of what is missing is gained, on every row: E[(1-p)/10] of Beta(1, 1)."""
    before, after = [], []
    for _ in range(rows):
        p = rng.random()
        before.append(rights(rng, 4, p) / 4)
        after.append(rights(rng, 4, p + (1 - p) / 10) / 4)
    return paired_difference(before, after), 0.05


def rights(rng, n, p):
    return sum(rng.random() < p for _ in range(n))


# Too few of them would promise too much, all of them would say nothing: what is rare in few rows
# may be covered more often than 95 %.
@pytest.mark.parametrize(
    "experiment, rows, most",
    [
        (greedy_verdicts, 30, 0.975),
        (greedy_verdicts, 200, 0.975),
        (shares_of_samples, 30, 0.975),
        (hard_problems, 150, 0.975),
        (pass_at_2_of_8, 60, 0.975),
        (paired_verdicts, 30, 0.995),
        (paired_verdicts, 200, 0.975),
        (verdicts_that_only_rise, 100, 0.985),
        (paired_shares, 30, 0.975),
    ],
)
def test_intervals_hold_the_truth_as_often_as_they_say(experiment, rows, most):
    # 1,500 experiments at 95 %: 4 standard deviations of the share are 4 * sqrt(.95*.05/1500) =
    # 0.023
    rng = random.Random(0)
    held = 0
    for _ in range(1500):
        (_, low, high), truth = experiment(rng, rows)
        held += low <= truth <= high
    assert 0.927 < held / 1500 < most
