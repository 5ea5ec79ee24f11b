"""What counts as one answer, what counts as equal, and what a hostile text can do."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes.verification import STATS, Refusal, final_answer, grade, judge

pytestmark = pytest.mark.slow

RIGHT = [
    # Plain spellings of 1080: currency sign, thousands comma, decimals, a unit, a full stop,
    # Markdown, a sentence.
    *(
        ("1080", text)
        for text in (
            "$1,080",
            "1080.00",
            "1,080 dollars",
            "1080.",
            "**1080**",
            "+1080",
            "1080 cm^2",
            "1080 km/h",
        )
    ),
    *(
        ("1080", text)
        for text in (
            "The total is **1,080**.",
            "一共1080个",
            "1080元",
            "１０８０",
            "TOTAL: 1080",
        )
    ),
    # LaTeX spellings.
    *(
        ("1080", text)
        for text in (
            r"\boxed{1080}",
            "$1080$",
            r"\(1080\)",
            r"\[1080\]",
            r"\text{1080 eggs}",
            r"1\,080",
            r"$1{,}080$",
        )
    ),
    # An unknown on the left is no second value; an equation whose sides are all 1080 says it twice.
    *(
        ("1080", text)
        for text in (
            "x = 1080",
            "x=1080",
            r"\text{Total} = 1080",
            "f(2) = 1080",
            "540 + 540 = 1080",
            "2*540",
        )
    ),
    ("1,080", "1080"),  # a gold with a comma
    ("18", "18 eggs"),
    ("-5", "$-5"),
    ("-5", "-$5"),
    ("025", "25"),  # AIME writes three digits
    ("25", "025"),
    ("50%", "50%"),
    ("50%", "50\\%"),
    ("50", "50%"),  # math-verify takes n% for n as well as for n/100
    ("0.5", "50%"),
    (r"\frac{1}{2}", "0.5"),
    ("0.5", r"\frac{1}{2}"),
    ("0.5", "1/2"),
    (r"\frac{3}{4}", "3/4"),
    (r"\frac{14}{3}", "4 2/3"),  # 4 + 2/3 = 14/3
    (r"1\frac{1}{2}", "1.5"),
    ("1/3", "0.333333"),  # 1/3 rounds to 0.333333 at math-verify's six places
    ("1024", "2**10"),  # both powers are 2^10, not LaTeX's 2^1 0
    ("1024", "2^10"),
    ("0.00001", "1e-05"),  # how Python writes it
    ("1500", "1.5e3"),
    (r"(3, \frac{\pi}{2})", r"\left( 3, \frac{\pi}{2} \right)"),
    (r"(3, \frac{\pi}{2})", "(3, pi/2)"),
    ("(1,2)", "(1, 2)"),
    (
        "(1,2)",
        "1,2",
    ),  # math-verify reads the gold as an open interval or a pair, and a bare pair as that pair
    ("1, 2", "x = 1 or x = 2"),  # a gold of two values; a set has no order
    ("1, 2", "2, 1"),
    (r"\{1,2\}", "{1,2}"),
    ("x=1, y=2", "x = 1 and y = 2"),
    (r"\text{(C)}", "C"),
    (r"\text{(C)}", "(C)"),
    (r"\text{Evelyn}", "Evelyn"),
    ("x^2+2x+1", "(x+1)^2"),
    ("(x+1)^4", "x^4+4x^3+6x^2+4x+1"),
    ("y=2x+3", "y = 3 + 2x"),
    ("x>3", "3<x"),
    ("25_8", "25_{8}"),
    ("[1,2]", r"x \in [1,2]"),
    (r"3\sqrt{2}", "3√2"),
    (r"\sqrt{2}", "sqrt(2)"),
    (r"90^\circ", "90°"),
    # Letters that stand together are a product, in a gold with variables; a power of one is no
    # unit.
    *((r"3x^2", text) for text in ("3*x^2", r"3\cdot x^2", "x^2*3", "3 x^2", "the answer is 3x^2")),
    (r"4\pi r^2", r"4\cdot\pi\cdot r^2"),
    *(("2xy", text) for text in ("2*x*y", "2x y", "2yx")),
    ("x^2+2xy+y^2", "(x+y)^2"),
    # A root of more than one digit.
    *((r"\sqrt{13}", text) for text in ("√13", "sqrt13", r"\sqrt13")),
    # Words that are part of the number.
    *(("-60", text) for text in ("minus 60", "negative 60", "负60")),
    ("3.14", "≈ 3.14"),
    ("100000", "10⁵"),
    (r"\emptyset", "∅"),
    (r"It is $\boxed {72}$ or $\fbox{72}$.", "72"),
    (r"10,\!080", "10,080"),
    ("11111", r"11,\! 111"),
    ("1 080", "1080"),
    (
        r"\begin{pmatrix} 1 & 2 & 3 \\ 4 & 5 & 6 \\ 7 & 8 & 9 \end{pmatrix}",
        r"\begin{pmatrix}1&2&3\\4&5&6\\7&8&9\end{pmatrix}",
    ),
    (r"so \boxed{1} and \boxed{2}", "2,1"),
    ("72", r"\boxed{72} so \boxed{72.0}"),
    (r"3 \mathrm{~m} / \mathrm{s}", "3"),
    ("5", r"5 \text{ sec}"),
    ("7", r"7 \textnormal{ miles}"),
    ("5", "5 kW"),
    ("5", "5 Nm"),
    ("23", "23 Stück"),
    (r"(5, 8) \quad \text{and} \quad (8, 5)", "(5,8),(8,5)"),
    (r"2\sqrt{3} \approx 3.46", r"2\sqrt{3}"),
    ("b > a > c", "b>a>c"),
    ("x >= 5", r"x \ge 5"),
    (r"x \ge 5", r"x \geq 5"),
    (r"x \neq 5", "x ≠ 5"),
    ("28", "28 percent"),
    (r"\{x|-2\leq x < 1\}", r"\{x|-2\leq x < 1\}"),
    (r"6.63\times10^{-34}", "6.63e-34"),
    ("72", "The number of roots is 72."),
    ("72", r"48/2=24, 48+24=72. $$\boxed{72}$$"),
    ("72", r"\(\boxed{72}\)"),
    ("72", r"\boxed{72}\%"),
    ("72", r"The answer is \boxed{72}. I hope it is correct."),
    (r"\textbf{(C)}\ 17", "17"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\left[\begin{array}{cc}1&2\\3&4\end{array}\right]"),
    ("2+3i", r"2+3\mathrm{i}"),
    ("2,3", "2和3"),
    ("B", "答案是B"),
    (r"\frac{3}{4}", r"\frac 3 4"),
]

WRONG = [
    ("72", None),
    ("72", ""),
    ("72", "71"),
    ("72", "-72"),
    # Chains: every side has to be the answer.
    ("72", "1=2=3=72"),
    ("72", r"\boxed{1=2=3=72}"),
    ("72", "71 = 72"),
    ("72", "x = 71 = 72"),
    # Several guesses, or none.
    ("72", "71 or 72"),
    ("72", "71, 72"),
    ("72", "72 / 71?"),
    ("72", "72?"),
    ("72", "not 72"),
    ("72", "71 72"),
    ("72", "72 ٧١"),  # Arabic-Indic 71
    ("72", "71或72"),
    ("72", r"\pm 72"),
    ("72", r"\boxed{71} or \boxed{72}"),
    ("72", r"\boxed{72} or \boxed{71}"),
    ("72", "5 hours 72 minutes"),
    ("1.5", "1,5"),  # for a gold of one value a comma is thousands or a list
    # math-verify's verdict: a closed interval is neither the open one nor the point.
    ("(1,2)", "[1,2]"),
    ("[1,2]", "(1,2)"),
    ("(1,2)", "(2,1)"),
    ("C", "B"),
    (r"\text{even}", "odd"),
    (r"\pi", "3.14"),
    # A gold of several values takes no more than it names, and no separator hides one.
    ("1, 2", "1, 2, 3"),
    ("1, 2", "1"),
    ("1, 2", "1, 2 # 3"),
    ("1, 2", "1, 2 | 3"),
    ("72", "7" * 1001),  # too long to be read
    *(("a^2 - b^2", text) for text in ("a^2", "a^2 - c^2")),
    ("x^2 - 9y^2", "x^2-9"),
    ("1080", "1080 x^2"),
    *(("5", text) for text in ("5 million", "minus 5", "5万", "5 hundred")),
    ("1:2:3", "1/6"),
    ("9/30", "9:30"),
    (r"\pm 72", "72"),
    (r"6.63\times10^{-34}", "0.0"),
    ("a+b", "c+d and a+b and e+f"),
    ("A", "A oder B"),
    (r"\text{(B)}", "A and B and C and D"),
    ("72", "72?"),
    ("72", "double 72"),
    ("72", "非72"),
    ("(9,1]", "(5,3]"),
    ("(1,2)", r"\{1,2\}"),
    ("72", "﹣72"),
    ("72", "＜72"),
    ("72", "72分之一"),
    ("1 < x < 5", r"\{1,5\}"),
    ("B", "B. Actually, the answer is C"),
    ("x^2+2x+1", r"x^2+2x+1 \mod 2"),
]


@pytest.mark.parametrize(
    ("cases", "verdict"), [(RIGHT, True), (WRONG, False)], ids=["right", "wrong"]
)
def test_verdicts(cases, verdict):
    golds, answers = zip(*cases, strict=True)
    verdicts = grade(golds, answers)
    assert [case for case, found in zip(cases, verdicts, strict=True) if found is not verdict] == []


def test_one_text_is_not_taken_for_a_list_of_its_characters():
    for golds, answers, named in (
        ("72", "72", "golds"),
        ("72", ["72"], "golds"),
        (["7", "2"], "72", "answers"),
    ):
        with pytest.raises(
            TypeError, match=rf"{named}: must be a list.*judge\(\[gold\], \[answer\]\)"
        ):
            judge(golds, answers)


def test_gold_that_is_empty_or_prose_is_nobodys_to_judge():
    golds = ["", "  ", None, "a" * 2000, "It is the " + "very " * 11 + "end."]
    # Whatever the answer, the identical text included: otherwise some completions of a group would
    # be judged and others not.
    for answers in (golds, [None] * 5, ["72"] * 5):
        assert [verdict.right for verdict in judge(golds, answers)] == [None] * 5


@pytest.mark.parametrize(
    ("gold", "answer", "refusal"),
    [
        ("72", None, Refusal.NO_ANSWER),
        ("72", "7" * 1001, Refusal.TOO_LONG),
        ("72", "seventy-two", Refusal.UNREADABLE),
        ("72", "71", Refusal.DIFFERENT),
        ("", "71", Refusal.GOLD),
        ("72", "72", None),
    ],
)
def test_a_refusal_says_why(gold, answer, refusal):
    assert judge([gold], [answer])[0].refusal == refusal


def test_locale_and_precision():
    assert [
        v.right for v in judge(["3,5 km", "1.250 g", "3,5"], ["3.5", "1250", "3,5 km"], locale="de")
    ] == [True] * 3
    assert [v.right for v in judge(["3,5 km", "1250"], ["3,50", "1.250 g"], locale="de")] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    "unit",
    [
        "cm",
        r"\text{ cm}^2",
        r"\mathrm{~m} / \mathrm{s}",
        "apples",
        "km/h",
        "元",
        "kWh",
        "°C",
    ],
)
@given(st.one_of(st.integers(-9999, 99999), st.decimals(-999, 999, places=2)))
@settings(max_examples=20, deadline=None)
def test_a_number_with_a_unit_is_the_number(unit, number):
    assert grade([f"{number}", f"{number} {unit}"], [f"{number} {unit}", f"{number}"]) == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"First \boxed{72}, so again \boxed{72}.", "72"),
        (
            r"\boxed{71} no, \boxed{72}",
            r"\boxed{71}, \boxed{72}",
        ),  # contradicting boxes are compared with the gold, each
        (r"\boxed{72", None),  # a box that never closes
        ("The answer is 5. Wait.\nThe final answer is: 72.\nI hope so 3", "72."),
        ("He has 48 + 24.\n#### 72", "72"),
        ("**Answer:**\n72", "72"),
        ("**Final Answer**: $72$", "$72$"),
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
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


HOSTILE = [
    "9**9**9**9",
    r"\boxed{9^{9^{9^{9}}}}",
    "1" * 200_000,
    "1" * 999,
    r"\boxed{" * 3000,
    r"\boxed{" * 3000 + "72" + "}" * 3000,
    "(" * 50_000,
    r"\frac{" * 2000 + "1" + "}{2}" * 2000,
    "a" * 100_000,
    "\ud800" * 10,
    "72\ud800",
    "\0",
    "72\0",
    "{" * 990,
    r"\sqrt{" * 100 + "2" + "}" * 100,
    "sin(" * 100 + "1" + ")" * 100,
    "+".join(["x^2y"] * 180),
    "-" * 900 + "1",
    "9!!!!",
    "(99999!)!",
    "1e999999999",
    "10^999999999",
    "$" * 900,
    "\\" * 900,
    "answer is " * 20_000,
    "<answer>" * 20_000,
    "__import__('os').system('true')",
]


def test_hostile_texts_are_wrong_within_seconds():
    grade([r"\sqrt2"], ["x"])  # start-up is not what is measured
    before, started = STATS.timeouts, time.monotonic()
    for gold in ("72", "x+1", "(1,2)", r"\frac{1}{7}"):
        assert grade([gold] * len(HOSTILE), HOSTILE) == [False] * len(HOSTILE)
        assert grade([gold] * len(HOSTILE), [*map(final_answer, HOSTILE)]) == [False] * len(HOSTILE)
    assert STATS.timeouts - before <= 12
    grade(HOSTILE, ["1"] * len(HOSTILE))  # as golds: any verdict will do
    assert time.monotonic() - started < 60


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60), st.sampled_from(["72", "x+1", "(1, 2)", r"\text{even}"]))
def test_any_text_gets_a_verdict(text, gold):
    assert grade([gold], [text])[0] in (True, False)
    assert grade([gold], [final_answer(text)])[0] in (True, False)
