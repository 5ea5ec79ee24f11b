r"""Which answers score.

``telling.jsonl`` has the cases that each rule exists for. ``honest.jsonl`` has right answers as
models write them, ``tricks.jsonl`` wrong ones that an attack on the rules tried, by class.
"""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes.verification import Refusal, final_answer, grade, judge

HERE = Path(__file__).parent


def rows(name):
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", ["telling", "honest", "tricks"])
def test_rows(name):
    cases = rows(f"{name}.jsonl")
    found = grade([row["gold"] for row in cases], [row["answer"] for row in cases])
    wanted = [row.get("right", name == "honest") for row in cases]
    assert [
        row for row, *pair in zip(cases, found, wanted, strict=True) if pair[0] != pair[1]
    ] == []
    assert len(cases) >= 45


@pytest.mark.parametrize(
    ("gold", "answer", "question", "right"),
    [
        ("24", r"\frac{48}{2}", r"Half of 48 is $\dfrac{48}{2}$. How much is that?", False),
        (r"\frac{3}{4}", r"\frac{3}{4}", r"Is $\frac{3}{4}$ less than 1? Write the smaller one.", True),
        ("0.75", r"\frac{3}{4}", r"Write $\frac{3}{4}$ as it stands.", True),  # in lowest terms: nothing to do
        ("-3", "-3", "Which is smaller, -3 or 2?", True),
        ("(A) x+1", "x+1", "(A) x+1 (B) x+2", True),  # an option
    ],
)  # fmt: skip
def test_a_task_copied_out_of_the_question_is_no_answer(gold, answer, question, right):
    verdict = judge([gold], [answer], questions=[question])[0]
    assert verdict.right is right and (verdict.refusal is Refusal.COPIED) is not right


def test_a_reference_answer_that_is_empty_prose_or_a_question_judges_nobody():
    golds = ["", "  ", None, "a" * 2000, "It is the " + "very " * 11 + "end.", "How many?"]
    for answers in (
        golds,
        [None] * 6,
        ["72"] * 6,
    ):  # the same text included: all of a group or none
        verdicts = judge(golds, answers)
        assert {(verdict.right, verdict.refusal) for verdict in verdicts} == {(None, Refusal.GOLD)}


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (None, Refusal.NO_ANSWER),
        ("7" * 1001, Refusal.TOO_LONG),
        ("71 and 72", Refusal.SEVERAL),
        ("not 72", Refusal.WORDS),
        ("seventy-two", Refusal.UNREADABLE),
        ("71", Refusal.DIFFERENT),
        ("9^{9999*9999}", Refusal.SLOW),
        ("72", None),
    ],
)
def test_a_refusal_says_why(answer, refusal):
    assert judge(["72"], [answer])[0].refusal == refusal


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"First \boxed{72}, so again \boxed{72}.", "72"),
        (r"\boxed{71} no, \boxed{72}", r"\boxed{71}, \boxed{72}"),  # each is compared
        (r"\boxed{72", None),  # a box that never closes
        ("The answer is 5. Wait.\nThe final answer is: 72.\nI hope so 3", "72."),
        ("He has 48 + 24.\n#### 72", "72"),
        ("**Answer:**\n72", "72"),
        ("The final answer is $72$. I hope it is correct.", "$72$"),
        ("The final answer is 72. No, 71.", "72. No, 71."),
        ("The answer is:\n$$\n72\n$$", "72"),
        ("So it is\n\\[\n72\n\\]\n", "72"),
        (r"So \boxed {72}", "72"),
        ("答案是72", "72"),
        ("First 48, then 24.\n\n$72$\n", "$72$"),
        ("First 48, then 24.\nHe sold 72 clips", None),  # a sentence commits to nothing
        ("\\[21 + 11 = 32\\]\n\\[32 + 22", None),  # cut: nobody says 54
        ("So\n\\[ x = 5\n\\]", r"\[ x = 5"),
        ("", None),
        (r"\boxed{5}. So the answer is \boxed{6", None),  # cut: 5 is not the answer
        (r"\boxed{5} hmm \boxed{}", None),
        (r"within \boxed{}: \boxed{5}", "5"),
    ],
)  # fmt: skip
def test_final_answer(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    "gold",
    [
        "He has 48 + 24.\n#### 72",
        "He has 48 + 24.\n#### 72\nThe answer is: 72",  # MetaMathQA
        "There are $48+24=72$ clips. The answer is: 72",
        "**Answer:** 72",
        "First 48.\n答案：72",
        r"So \boxed{72}.\nThe answer is 71?",  # a box comes first
        r"We get \boxed{48} in April, and \boxed{72} in both.",  # the last one
    ],
)
def test_the_answer_of_a_worked_solution(gold):
    assert [verdict.right for verdict in judge([gold] * 3, ["72", "48", "71"])] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("gold", "answer", "locale", "right"),
    [
        ("3,14", "3{,}14", "de", True),
        ("$2{,}125$", "2125", "de", False),
        ("1.008,75", "1008{,}75", "de", True),
        ("0,125", "0.125", "de", True),
        ("10.000", "10000", "de", True),
        ("10,080", "10{,}080", "en", True),
        ("1914-1918", "1914–1918", "en", True),
        ("1914-1918", "-4", "en", False),  # years and scores are no subtraction
        ("2-1", "3-2", "en", False),
        ("Die Antwort ist 8.", "8", "en", True),
        ("٧٢", "72", "en", True),  # Arabic, Persian and Devanagari digits
        ("72", "۷۲", "en", True),
        ("72", "७१", "en", False),
        ("٣٫٥", "3.5", "en", True),
    ],
)
def test_numbers_as_people_write_them(gold, answer, locale, right):
    assert judge([gold], [answer], locale)[0].right is right


WHOLE = st.one_of(st.integers(-3000, 3000), st.integers(-(10**14), 10**14))
SHAPES = [
    "{n}",
    "{n:,}",
    "${n}$",
    "\\boxed{{{n}}}",
    "{n}.0",
    "x = {n}",
    "{n} apples",
    r"{n}\text{{ cm}}^2",
    "{n} km/h",
    "{n}元",
    "{n} °C",
]


@settings(max_examples=200, deadline=None)
@given(WHOLE, WHOLE, st.sampled_from(SHAPES), st.sampled_from(SHAPES))
def test_whole_numbers(left, right, of_gold, of_answer):
    golds = [of_gold.format(n=left)] * 2
    assert grade(golds, [of_answer.format(n=left), of_answer.format(n=right)]) == [
        True,
        left == right,
    ]


@settings(max_examples=200, deadline=None)
@given(*[st.integers(-99, 99), st.integers(1, 99)] * 2)
def test_fractions(a, b, c, d):
    gold = rf"\frac{{{a}}}{{{b}}}"
    assert grade([gold] * 2, [f"{a}/{b}", f"{c}/{d}"]) == [True, Fraction(a, b) == Fraction(c, d)]


LETTERS = st.lists(
    st.sampled_from(["b", "c", "x", "y", "m", "n", "G", "M", "r_1", "v_0"]),
    min_size=2,
    max_size=4,
    unique=True,
)


@settings(max_examples=60, deadline=None)
@given(LETTERS, st.integers(2, 9), st.randoms())
def test_no_letter_of_the_reference_answer_may_be_missing(letters, factor, rng):
    """The same product in another order is right. With a letter less, or another, it is wrong."""
    mixed = rng.sample(letters, len(letters))
    answers = [
        f"{factor} {' '.join(mixed)}",
        f"{factor} {' '.join(mixed[1:])}",
        f"{factor} {' '.join(['z', *mixed[1:]])}",
        str(factor),
    ]
    assert grade([rf"{factor} {' '.join(letters)}"] * 4, answers) == [True, False, False, False]


def test_a_date_is_no_subtraction():
    golds = ["2024-01-12", "2024-01-12", "1989-11-09", "9/11/2024"]
    assert grade(golds, ["2024-01-12", "2024-12-01", "1969", "11/9/2024"]) == [True, *[False] * 3]
