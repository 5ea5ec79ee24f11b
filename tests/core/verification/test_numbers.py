"""What is decided without a parser is what math-verify decides."""

from hypothesis import given, settings
from hypothesis import strategies as st

import r1_recipes.extras.countdown.puzzle  # noqa: F401 (registers its scorer)
from r1_recipes.verification import compare
from r1_recipes.verification.numbers import read_value

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
