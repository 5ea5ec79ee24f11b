"""Verdicts, majorities and pass@k."""

import dataclasses
import itertools
import math

import pytest

from r1_recipes.metrics.scores import Scores, _majority, verdicts
from r1_recipes.metrics.tables import difference_line, markdown_table
from r1_recipes.prompts import FORMATS


def make_scores(greedy, sampled, n=2, **changes):
    """Scores in which lenient is strict and the majority is right where most samples are."""
    values = {
        "model": "m",
        "greedy": greedy,
        "sampled": sampled,
        "greedy_lenient": greedy,
        "sampled_lenient": sampled,
        "majority": [float(share > 0.5) for share in sampled],
        "num_samples": n,
        "greedy_format": 1.0,
        "sampled_format": 1.0,
        "language": 1.0,
        "mean_tokens": 20.0,
        "truncated": 0.0,
    }
    return Scores(**{**values, **changes})


@pytest.mark.parametrize("n", [1, 4, 7])
def test_pass_at_k_is_the_closed_form(n):
    # with c right of n samples: the share of k-subsets that hold a right one, counted one by one
    for c in range(n + 1):
        scores = make_scores([0.0], [c / n], n)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(range(n), k))
            expected = sum(any(sample < c for sample in subset) for subset in subsets) / len(
                subsets
            )
            assert scores.pass_at(k) == [pytest.approx(expected)]
        assert scores.pass_at(1) == [pytest.approx(c / n)]


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
    assert _majority(answers, right) == expected


@pytest.mark.parametrize(
    "text, gold, expected",
    [
        ("<think>\n6*12\n</think>\n<answer>\n72\n</answer>", "72", True),
        ("<think>\n6*12\n</think>\nThe answer is 72.", "72", True),  # no answer block
        (
            "So she makes $72 every day.",
            "72",
            True,
        ),  # the last number, as a flexible extraction has it
        ("It is \\boxed{72}", "72", True),
        ("<think>\n72\n</think>\nI cannot say.", "72", False),  # only inside the reasoning
        ("First 72, then 12 more: 84", "72", False),
        ("72,000 in all", "72", False),
        ("72,000 in all", "72000", True),
        ("nothing", "72", False),
        ("\x00" * 50, "72", False),
    ],
)
def test_lenient_verdicts(text, gold, expected):
    from r1_recipes.rewards import get_reward_funcs

    (accuracy,) = get_reward_funcs(["accuracy"], "think_answer")
    row = {"prompt": "?", "solution": gold}
    assert verdicts(FORMATS["think_answer"], {"accuracy": accuracy}, [row], [text])[1] == [expected]


def test_the_table_shows_each_model_and_the_difference():
    first, second = (
        make_scores([0.0, 0.0, 1.0, 0.0], [0.0, 0.5, 0.5, 0.0]),
        make_scores([1.0, 0.0, 1.0, 1.0], [0.5, 1.0, 0.5, 1.0]),
    )
    first = dataclasses.replace(
        first, greedy_format=0.5, sampled_format=0.25, language=0.9, mean_tokens=12.4
    )
    table = markdown_table([("raw", first, None), ("tuned", second, None)]).splitlines()
    assert len(table) == 4 and len({line.count("|") for line in table}) == 1
    assert table[2].startswith("| raw | 25.0 % (") and table[2].endswith(
        "| 50 % / 25 % | 0.90 | 12 |"
    )
    assert table[3].startswith("| tuned | 75.0 % (")
    # a stage that made data has a yield instead: 30 of 40 is 75 %
    made = markdown_table(
        [("raw", first, None), ("data", None, {"completions": {"kept": 30, "generated": 40}})]
    ).splitlines()
    assert (
        made[3] == "| data |  |  |  |  |  | 30 of 40 (75%) |"
        and len({line.count("|") for line in made}) == 1
    )
    # greedy: (1 + 0 + 0 + 1) / 4 = +50 points; sampled: (0.5 + 0.5 + 0 + 1) / 4 = +50 points
    line = difference_line(first, second, "tuned over raw")
    assert (
        "greedy +50.0 points" in line
        and "sampled +50.0 points" in line
        and "same 4 problems" in line
    )
    assert not math.isnan(first.mean_tokens)
