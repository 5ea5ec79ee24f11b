"""Verdicts, majorities, pass@k, intervals and the table: every expected value carries its working."""

import itertools
import random

import pytest

from r1_recipes.prompts import FORMATS
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.rewards.call import score
from r1_recipes.scoring import difference, interval, majority, pass_at, report, summarize, verdicts


@pytest.mark.parametrize("n", [1, 4, 7])
def test_pass_at_k_is_the_closed_form(n):
    # with c right of n samples: the share of k-subsets that hold a right one, counted one by one
    for c in range(n + 1):
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(range(n), k))
            right = sum(any(sample < c for sample in subset) for subset in subsets)
            assert pass_at([c / n], n, k) == [pytest.approx(right / len(subsets))]


@pytest.mark.parametrize(
    "answers, right, expected",
    [
        (["7", "8", "7"], [True, False, True], 1.0),
        (["7", "8", "8"], [True, False, False], 0.0),
        (["1,000", "1000", "5"], [True, True, False], 1.0),  # one answer, written in two ways
        ([None, None, "7"], [False, False, True], 1.0),  # giving none is no vote
        # A decimal and a pair are other answers than the digits alone.
        (["1,5", "15", "15"], [False, True, True], 1.0),
        (["(1,2)", "(12)", "(12)"], [True, False, False], 0.0),
        ([None, None], [False, False], 0.0),
        (["8", "7"], [False, True], 0.0),  # of equally frequent ones the first
        (["1 1/2", "11/2", "11/2"], [True, False, False], 0.0),  # a mixed number
        (["x = 2", "x=2", "3"], [True, True, False], 1.0),
    ],
)
def test_majority(answers, right, expected):
    assert majority(answers, right) == expected


@pytest.mark.parametrize(
    "text, gold, expected",
    [
        ("<think>\n6*12\n</think>\n<answer>\n72\n</answer>", "72", (True, True)),
        ("<think>\n6*12\n</think>\nThe answer is 72.", "72", (False, True)),  # no answer block
        ("So she makes $72 every day.", "72", (False, True)),  # the last number
        ("It is \\boxed{72}", "72", (False, True)),
        ("<think>\n72\n</think>\nI cannot say.", "72", (False, False)),  # inside the reasoning
        ("First 72, then 12 more: 84", "72", (False, False)),
        ("72,000 in all", "72", (False, False)),
        ("72,000 in all", "72000", (False, True)),
        ("nothing", "72", (False, False)),
        ("\x00" * 50, "72", (False, False)),
    ],
)
def test_strict_and_lenient_verdicts(text, gold, expected):
    (accuracy,) = get_reward_funcs(["accuracy"], "think_answer")
    row = {"prompt": "?", "solution": gold}
    scores = {"accuracy": score("accuracy", accuracy, [row], [text], None)}
    found = verdicts(FORMATS["think_answer"], {"accuracy": accuracy}, [row], [text], scores)
    assert found == tuple([value] for value in expected)


def test_lenient_verdicts_read_numbers_as_the_recipe_does():
    (accuracy,) = get_reward_funcs(["accuracy"], "think_answer", number_locale="de")
    text, fmt = "Die Antwort: 1.250,5.", FORMATS["think_answer"]
    for gold, right in (("1250,5", True), ("5", False)):
        row = {"prompt": "?", "solution": gold}
        scores = {"accuracy": score("accuracy", accuracy, [row], [text], None)}
        assert verdicts(fmt, {"accuracy": accuracy}, [row], [text], scores) == ([False], [right])


def test_the_first_reward_that_scores_a_row_decides(caplog):
    rows, texts, fmt = [{"prompt": "?"}] * 4, ["a", "b", "c", "d"], FORMATS["think_answer"]
    scores = {"first": [None, 1.0, 0.0, None], "second": [1.0, 0.0, 1.0, None]}
    assert verdicts(fmt, {}, rows, texts, scores)[0] == [True, True, False, False]
    assert "1 of 4 completions get no score from any of ['first', 'second']" in caplog.text


def table(*rows, length=20):
    """A table of (index, sample, answer, correct)."""
    from pandas import DataFrame

    frame = DataFrame(rows, columns=["index", "sample", "answer", "correct"])
    finish = ["length" if sample == 1 else "stop" for sample in frame["sample"]]
    return frame.assign(
        lenient=True, format=frame["sample"] != 0, question="?", completion="!", solution="7",
        tokens=length, finish_reason=finish, **{"reward extra": [None] * len(frame)},
    )  # fmt: skip


def test_the_report_shows_each_model_and_the_difference():
    # Greedy 1 of 2 right; samples 1 and 2 of 2 right: (0.5 + 1) / 2 = 75 %.
    before = table(
        (0, -1, "7", True), (0, 0, "7", True), (0, 1, "8", False),
        (1, -1, "9", False), (1, 0, "7", True), (1, 1, "7", True),
    )  # fmt: skip
    first = {"model": "raw", **summarize(before)}
    assert (first["greedy"], first["sampled"], first["majority"]) == ([1, 0], [0.5, 1], [1, 1])
    assert (first["num_samples"], first["truncated"], first["rewards"]) == (
        2, 0.5, {"extra": [None, None]},
    )  # fmt: skip
    assert first["sampled_format"] == 0.5 and first["pass_at"][2][0] == 1.0
    second = {"model": "tuned", **summarize(before.assign(correct=True))}
    lines = report([first, second], "two rows").splitlines()
    for figures in (
        "| raw | 50.0 % (9.5 to 90.5) | 75.0 % (",
        "| 100 % / 50 % | 20 | 100.0 % / 100.0 %",
    ):
        assert figures in lines[2]
    assert len({line.count("|") for line in lines[:4]}) == 1
    # greedy: (0 + 1) / 2 = +50 points; sampled: (0.5 + 0) / 2 = +25 points
    assert "greedy +50.0 points" in lines[5] and "sampled +25.0 points" in lines[5]
    assert second["difference"]["over"] == "raw"
    greedy = {"model": "m", **summarize(before[before["sample"] < 0])}
    assert greedy["sampled"] == greedy["majority"] == [] and greedy["pass_at"] == {}
    assert "sampled" not in report([greedy], "two rows").splitlines()[2]


def test_wilson_interval_of_a_proportion():
    # n = 100, p = 0.5, z = 1.96: centre (0.5 + 3.8415/200) / (1 + 3.8415/100) = 0.5;
    # half width 1.96/1.038415 * sqrt(0.25/100 + 3.8415/40000) = 1.8875 * 0.050951 = 0.0962
    mean, low, high = interval([1.0] * 50 + [0.0] * 50)
    assert (mean, round(low, 4), round(high, 4)) == (0.5, 0.4038, 0.5962)
    assert interval([0.0] * 3)[:2] == (0.0, 0.0) and interval([1.0] * 3)[2] == 1.0


def test_interval_of_shares():
    # values 0.25, 0.5, 0.75, 0.5: mean 0.5, variance 0.125/4 = 0.03125, of the mean 0.0078125: as
    # of 0.25 / 0.0078125 = 32 values that are 0 or 1. z^2/32 = 0.12005: half width 1.96 / 1.12005 *
    # sqrt(0.25/32 + 0.12005/(4*32)) = 1.7499 * 0.093544 = 0.1637
    mean, low, high = interval([0.25, 0.5, 0.75, 0.5])
    assert (mean, round(high - mean, 3), round(mean - low, 3)) == (0.5, 0.164, 0.164)
    # Of one sample each, they are four values that are 0 or 1, and no more, however alike they are.
    assert interval([0.25, 0.5, 0.75, 0.5], 1) == interval([0.0, 0.0, 1.0, 1.0])


def test_a_difference_uses_the_pairs():
    # every row gains exactly 0.25: no spread, so no width, although each list alone varies
    before = [0.0, 0.25, 0.5, 0.75]
    assert difference(before, [value + 0.25 for value in before]) == (0.25, 0.25, 0.25)
    with pytest.raises(ValueError):
        difference([0.0], [0.0, 1.0])


def rights(rng, n, p):
    return sum(rng.random() < p for _ in range(n))


def greedy_verdicts(rng, rows):
    p = rng.uniform(0.1, 0.9)
    return interval([float(rng.random() < p) for _ in range(rows)]), p


def shares_of_samples(rng, rows, n=8, a=0.3, b=0.7):
    """Problems that are mostly easy or hard: a row's probability is drawn from Beta(a, b)."""
    shares = [rights(rng, n, rng.betavariate(a, b)) / n for _ in range(rows)]
    return interval(shares), a / (a + b)


def pass_at_2_of_8(rng, rows):
    """Beta(1, 2): the truth is 1 - E[(1-p)^2] = 1 - (2*3)/(3*4) = 0.5."""
    shares = [rights(rng, 8, rng.betavariate(1, 2)) / 8 for _ in range(rows)]
    return interval(pass_at(shares, 8, 2)), 0.5


def paired_verdicts(rng, rows):
    """One in ten rows is won, one in twenty lost."""
    drawn = [rng.random() for _ in range(rows)]
    before, after = [float(0.1 <= x < 0.6) for x in drawn], [float(x < 0.55) for x in drawn]
    return difference(before, after), 0.05


def paired_shares(rng, rows):
    """A tenth of what is missing is gained, on every row: E[(1-p)/10] of Beta(1, 1)."""
    ps = [rng.random() for _ in range(rows)]
    after = [rights(rng, 4, p + (1 - p) / 10) / 4 for p in ps]
    return difference([rights(rng, 4, p) / 4 for p in ps], after), 0.05


# What is rare in few rows may be covered more often than 95 %.
@pytest.mark.parametrize(
    "experiment, rows, most",
    [
        (greedy_verdicts, 30, 0.975),
        (shares_of_samples, 30, 0.975),
        (pass_at_2_of_8, 60, 0.975),
        (paired_verdicts, 30, 0.995),
        (paired_verdicts, 200, 0.975),
        (paired_shares, 30, 0.975),
    ],
)
def test_intervals_hold_the_truth_as_often_as_they_say(experiment, rows, most):
    # 1,500 experiments at 95 %: 4 standard deviations of the share are 4 * sqrt(.95*.05/1500) =
    # 0.023
    rng, held = random.Random(0), 0
    for _ in range(1500):
        (_, low, high), truth = experiment(rng, rows)
        held += low <= truth <= high
    assert 0.927 < held / 1500 < most
