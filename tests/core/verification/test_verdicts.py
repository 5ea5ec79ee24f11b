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


# Each reference answer with answers that are right, and with answers that are wrong.
CASES = [
    (
        "1080",
        "$1,080 | 1,080 dollars | **1080** | +1080 | 1080 cm^2 | 1080 km/h | The total is **1,080**. | 一共1080个 | １０８０ | "
        r"\boxed{1080} | \(1080\) | \[1080\] | \text{1080 eggs} | 1\,080 | $1{,}080$ | x = 1080 | \text{Total} = 1080 | "
        "f(2) = 1080 | 540 + 540 = 1080 | 2*540 | x_1 + x_2 = 1080 | 1 080",
        "108 | 10800 | -1080 | 1080 x^2 | 1081",
    ),
    (
        "72",
        r"≈ 72 | \boxed{72}\% | 48/2=24, 48+24=72. $$\boxed{72}$$ | The number of roots is 72. | \boxed{72} so \boxed{72.0}",
        r"1=2=3=72 | \boxed{1=2=3=72} | 71 = 72 | x = 71 = 72 | 72 / 71? | 72? | 71 72 | 72 ٧١ | 71或72 | \pm 72 | "
        r"\boxed{71} or \boxed{72} | \boxed{72} or \boxed{71} | 5 hours 72 minutes | double 72 | 非72 | ﹣72 | ＜72 | 72分之一 | x \ne 72 | x \not= 72",
    ),
    ("-5", r"$-5 | -$5 | minus 5 | negative 5 | 负5", "5"),
    ("5", "5 kW | 5 Nm | five | 005", "5 million | minus 5 | 5万 | 5 hundred | 5ab"),
    ("025", "25", "0.25"),
    (r"\frac{1}{2}", r"0.5 | 1/2 | 50% | \frac12 | ½ | \frac 1 2 | 5e-1", "2 | 0.05 | 0.51"),
    (r"\frac{7}{3}", r"2\frac{1}{3} | 2 1/3 | 2⅓ | 2.333333", r"2.3 | 2\cdot\frac{1}{3}"),
    ("12.5%", "12.5 | 0.125 | 12.5 percent", "125% | 1.25"),
    (r"6.63\times10^{-34}", "6.63e-34 | 6.63 x 10^{-34} | 6.63·10⁻³⁴", "0.0 | 6.63e-33 | 6.63"),
    ("0.59", "0.5941 | .59 | 0.590", "0.6 | 0.58"),
    (r"\pi", r"π | pi | \frac{2\pi}{2}", "3.14"),
    (r"3\sqrt{2}", r"3√2 | 3*sqrt(2) | \sqrt{18} | 3\sqrt2 | 3\sqrt{2} \approx 4.24", r"4.24 | 2\sqrt{3} | 3\sqrt{2} \approx 4.3"),
    (r"4\pi r^2", r"4\cdot\pi\cdot r^2 | the answer is 4πr² | A = 4 pi r^2", r"4\pi r | 4r^2 | \pi r^2"),
    (r"\frac{\ln 2}{2}", r"1/2 ln 2 | \frac{1}{2}\ln 2 | \ln\sqrt{2}", r"\ln 2 | \frac{1}{2}"),
    ("F_N", "F_{N}", "N | F | F_n | f_N"),
    ("1.5", "1.5 | 3/2", "1,5"),
    ("1, 2", r"2, 1 | x = 1 or x = 2 | \{1,2\} | 1 and 2 | 2和1 | \boxed{1} and \boxed{2}", "1, 2, 3 | 1 | 1, 2 # 3 | 1, 2, ... | 1, 3"),
    (r"\pm 3", r"3, -3 | \{-3, 3\} | x = \pm 3", "3 | 3, 3"),
    ("(1,2)", "(1, 2) | 1,2 | (x, y) = (1, 2) | x = 1 and y = 2 | y = 2, x = 1", r"(2,1) | [1,2] | \{1,2\} | y=1, x=2"),
    ("(-\\infty,3)", r"x<3 | 3>x | \{x \mid x < 3\} | x \in (-\infty, 3) | (-inf, 3)", r"x\le3 | x>3 | (-\infty,3]"),
    ("[1,2]", r"1 \le x \le 2 | x \in [1,2] | 2 >= x >= 1", "(1,2) | 1 < x < 2"),
    ("y=2x+3", "y = 3 + 2x | f(x) = 2x+3 | 2x - y + 3 = 0 | 2x+3", "y=3x+2 | y | 2x-y=3"),
    ("x^2+2x+1", "(x+1)^2 | 1+2x+x^2", r"x^2+2x+1 \mod 2 | x^2 | x^2+2x"),
    ("a+b", "b+a", "c+d and a+b and e+f | a | a-b"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\left[\begin{array}{cc}1&2\\3&4\end{array}\right]", r"\begin{pmatrix}1&3\\2&4\end{pmatrix} | 1,2,3,4"),
    ("x=1, y=2", r"(1,2) | y=2, x=1 | \begin{cases}x=1\\y=2\end{cases}", "(2,1) | x=2, y=1 | x=1"),
    ("B", "(B) | B) pears | 答案是B | Option B | $B$", "A | A oder B | A and B and C and D | B. Actually, the answer is C"),
    ("(C) 17", "C | 17 | (C) | C) 17", "(C) 18 | D | 16"),
    ("ABD", "A, B and D | AB D", "AB | ABCD"),
    ("Yes", "yes | Yes, it is stable. | True", "No | Yes and no | Yes. No. | Yes or no"),
    ("Monday", "monday | It is Monday. | **Monday**", "Tuesday | not Monday"),
    ("5 boys and 7 girls", "5 boys and 7 girls", "7 boys and 5 girls | 5, 7"),
    ("72 km", "72 | 72 kilometres | 72km", "7.2 km | 71 km"),
    (r"\emptyset", "∅ | no solution | There are no solutions.", "0"),
]  # fmt: skip


def test_cases():
    table = [
        (gold, answer, right)
        for gold, *kinds in CASES
        for right, answers in zip((True, False), kinds, strict=True)
        for answer in answers.split(" | ")
    ]
    golds, answers, _ = zip(*table, strict=True)
    found = grade(golds, answers)
    assert [row for row, verdict in zip(table, found, strict=True) if verdict is not row[2]] == []
    assert grade([gold for gold, *_ in CASES], [gold for gold, *_ in CASES]) == [True] * len(CASES)


def test_the_order_of_a_list_counts_where_the_question_asks_for_one():
    asked = "Order A, B and C from small to large."
    assert [
        v.right for v in judge(["A, C, B"] * 2, ["A, C, B", "A, B, C"], questions=[asked] * 2)
    ] == [True, False]
    assert grade(["3, 1, 2"], ["1, 2, 3"]) == [True]


@pytest.mark.parametrize(
    ("gold", "answer", "question", "right"),
    [
        ("13.18", "56.78-43.6", "What is 56.78-43.6?", False),
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


def test_german_numbers():
    golds, answers = ["3,5 km", "1.250 g", "3,5", "1.234,5"], ["3.5", "1250", "3,5 km", "12345"]
    assert [verdict.right for verdict in judge(golds, answers, locale="de")] == [
        True,
        True,
        True,
        False,
    ]
    assert grade(golds[:2], answers[:2]) == [False, False]


def test_one_text_is_not_taken_for_a_list_of_its_characters():
    for golds, answers, named in (("72", ["72"], "golds"), (["7", "2"], "72", "answers")):
        with pytest.raises(
            TypeError, match=rf"{named}: must be a list.*judge\(\[gold\], \[answer\]\)"
        ):
            judge(golds, answers)


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
        ("", None),
    ],
)  # fmt: skip
def test_final_answer(text, answer):
    assert final_answer(text) == answer


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
