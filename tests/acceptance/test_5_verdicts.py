"""Verdicts: right answers are paid in the spellings that models use, wrong ones and tricks are not, and no answer holds a step up."""

import time

import pytest
import yaml

from conftest import HERE

KINDS = yaml.safe_load((HERE / "verdicts.yaml").read_text())
JUDGE = """
from r1_recipes.verification import grade, judge
verdicts = judge(data["golds"], data["answers"], questions=data.get("questions"), locale=data.get("locale", "en"))
answer = [[verdict.right, str(verdict.refusal or "")] for verdict in verdicts]
"""
pytestmark = pytest.mark.quick


def pairs(kind):
    return [
        (group["gold"], answer, group.get("question", ""), right)
        for group in KINDS[kind]
        for right, name in ((True, "right"), (False, "wrong"))
        for answer in group[name]
    ]


@pytest.fixture(scope="module")
def verdicts(ask):
    """One batch, as a step would have it."""
    every = [pair for kind in KINDS for pair in pairs(kind)]
    golds, answers, questions, _ = zip(*every, strict=True)
    got = ask(JUDGE, {"golds": golds, "answers": answers, "questions": questions})
    return dict(zip(every, (right for right, _ in got), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_right_answers_are_paid(verdicts, kind):
    assert not [(gold, answer) for gold, answer, question, right in pairs(kind) if right and verdicts[gold, answer, question, right] is not True]


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_answers_are_refused(verdicts, kind):
    assert not [(gold, answer) for gold, answer, question, right in pairs(kind) if not right and verdicts[gold, answer, question, right]]


def test_grade_says_the_same(ask):
    lines = "from r1_recipes.verification import grade\nanswer = grade(*data)"
    assert ask(lines, [["72", "72", "72", "", None], ["72", "71", None, "72", "72"]]) == [True, False, False, None, None]


def test_a_refusal_has_a_reason(ask):
    (right, reason), (wrong, refusal) = ask(JUDGE, {"golds": ["7", "7"], "answers": ["7", "7 or 8"]})
    assert right and not reason and not wrong and refusal


def test_german_numbers(ask):
    got = ask(JUDGE, {"golds": ["1.234,5"] * 3, "answers": ["1234,5", "1.234,50", "12345"], "locale": "de"})
    assert [right for right, _ in got] == [True, True, False]


HANGING = [
    "9^{9^{9^{9}}}",
    "100000000!",
    "(" * 20000 + "1" + ")" * 20000,
    "\\frac{1}{" * 1000 + "1" + "}" * 1000,
    "1" * 100000,
    "[1]*10**9",
    "\\int_0^\\infty e^{-x^{x^{x}}} dx",
    "\\sum_{n=1}^{10^{12}} \\frac{1}{n^3}",
    "x^{99999}+y^{99999}",
    "\\sqrt" * 5000,
    "\\boxed{" * 2000,
    "1e999999999",
]


def test_answers_that_never_end_end_in_seconds(ask):
    began = time.monotonic()
    answers = [answer for answer in HANGING for _ in range(2)] + ["72"]
    got = ask(JUDGE, {"golds": ["72", "x^2+1"] * len(HANGING) + ["72"], "answers": answers})
    assert not any(right for right, _ in got[:-1]) and got[-1][0] is True
    assert time.monotonic() - began < 60  # 2 on an idle machine
