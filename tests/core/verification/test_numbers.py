"""Numbers in many spellings: equal to what Python's fractions say, without a parser."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes.verification import grade

WHOLE = st.one_of(st.integers(-3000, 3000), st.integers(-(10**14), 10**14))
SHAPES = ["{n}", "{n:,}", "${n}$", "\\boxed{{{n}}}", "{n}.0", "x = {n}"]


@settings(max_examples=200, deadline=None)
@given(WHOLE, WHOLE, st.sampled_from(SHAPES), st.sampled_from(SHAPES))
def test_whole_numbers(left, right, of_gold, of_answer):
    gold, answer = of_gold.format(n=left), of_answer.format(n=right)
    assert grade([gold], [answer]) == [left == right]
    assert grade([gold], [of_answer.format(n=left)]) == [True]


@settings(max_examples=200, deadline=None)
@given(st.integers(-99, 99), st.integers(1, 99), st.integers(-99, 99), st.integers(1, 99))
def test_fractions(a, b, c, d):
    gold, answer = rf"\frac{{{a}}}{{{b}}}", f"{c}/{d}"
    assert grade([gold], [answer]) == [Fraction(a, b) == Fraction(c, d)]
    assert grade([gold], [f"{a}/{b}"]) == [True]
