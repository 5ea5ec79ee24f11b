"""What is decided without a parser is what math-verify decides."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import r1_recipes.extras.countdown.puzzle  # noqa: F401 (registers its scorer)
from r1_recipes.verification import compare
from r1_recipes.verification.gold import read_gold
from r1_recipes.verification.numbers import read_value
from r1_recipes.verification.reading import read_answer, settle

VERDICTS = Path(__file__).parents[3].parent / "shared" / "data" / "verdicts" / "gsm8k_6b.jsonl"


WHOLE = st.one_of(
    st.integers(0, 12), st.integers(0, 3000), st.integers(0, 10**14), st.integers(0, 10**30)
)


@st.composite
def numbers_alike(draw):
    """Two spellings of numbers that are equal, or close enough to be taken for it."""
    value = draw(WHOLE)
    spellings = []
    for _ in range(2):
        n = draw(st.sampled_from([value, value, -value, value + 1, value * 10, value * 100]))
        m = draw(st.integers(0, 12))
        tail = draw(
            st.sampled_from(["", "0", "00", "5", "333333", "3333333", "000001", "0000001", "00001"])
        )
        shapes = [
            "{n}",
            "{n:,}",
            "+{n}",
            "- {n}",
            "00{n}",
            "-00{n}",
            ".{n}",
            "-.{n}",
            "{n}.{tail}",
            "{n:,}.{tail}",
            "{n}%",
            "{n}.{tail}%",
        ]
        shapes += [
            "{n}/{m}",
            "-{n}/{m}",
            r"\frac{{{n}}}{{{m}}}",
            r"-\frac{{{n}}}{{{m}}}",
            r"\frac{{-{n}}}{{{m}}}",
            "{d:.3f}",
            "{d:.6f}",
            "{d:.7f}",
        ]
        shape = draw(st.sampled_from(shapes))
        spellings.append(shape.format(n=abs(n), m=m, tail=tail, d=abs(n) % 10**6 / (m or 3)))
    return spellings


@settings(max_examples=300, deadline=None)
@given(numbers_alike())
def test_numbers_settled_here_are_settled_as_math_verify_does(pair):
    left, right = map(read_value, pair)
    equal = left.equals(right) if left and right else None
    if equal is not None:
        assert compare.judge(pair[0], pair[0], [pair[1]], [], None, 6, False, ()) is equal
        if not (left.decimal and right.decimal):  # of two decimals, one may be the other's rounding
            assert right.equals(left) is equal


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("1080", "1,080.00", True),
        ("-0.5", "-.5", True),
        ("7", "007", True),
        ("0.5", r"\frac{2}{4}", True),
        ("-3/4", r"-\frac{75}{100}", True),
        ("50%", "50", True),  # a per cent is a hundredth, and also its own number
        ("50%", r"\frac{100}{2}", True),
        ("50%", "0.5", True),
        ("50%", "50.0", True),
        ("5000%", "50", True),
        ("50%", "5000", False),
        ("1/3", "0.33", False),  # 0.00333… apart
        ("1/3", "0.333333", None),  # within 1e-5: a question of rounding
        ("1/0", "1/0", None),
        ("--1", "1", None),
        ("0.5%", "0.005", None),  # a per cent that is no whole number
        (
            "0.1234567890123456",
            "0.1234567890123456",
            None,
        ),  # 16 decimals are more than a float holds
        ("x", "x", None),
    ],
)
def test_settling(gold, answer, equal):
    left, right = read_value(gold), read_value(answer)
    assert (left.equals(right) if left and right else None) is equal


@pytest.mark.skipif(
    not VERDICTS.exists(),
    reason="shared/data/verdicts lies beside a checkout in the project's workplace only",
)
def test_real_rows_are_settled_as_math_verify_does():
    rows = [json.loads(line) for line in VERDICTS.read_text(encoding="utf-8").splitlines()]
    settled = 0
    for row in rows[::3]:  # a third of the rows: math-verify takes a millisecond a comparison
        gold = read_gold(row["gold"])
        answer = read_answer(row["solution"].rpartition("A:")[2], gold)
        verdict = settle(gold, answer)
        settled += verdict is not None
        if answer.sides and verdict is not None:
            assert compare.compare(gold.text, gold.raw, answer) is verdict, row
    assert settled > 0.95 * len(rows) / 3  # golds and answers of GSM8K are numbers
