"""Compare an answer's expressions with the reference answer, inside a worker process.

math-verify parses and compares the expressions, and SymPy checks what math-verify rounds. Exact
numbers are never rounded: ``1-2^{-99}`` is not ``1-2^{-100}``. A decimal is compared at the places
that are written.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from r1_recipes.verification.expression import Answer
from r1_recipes.verification.numbers import (
    NUMBER,
    PRECISION,
    plain_spelling,
    rounds_constant,
    rounds_to,
)

NEAR_ZERO = 0.001  # below it, places count from the first digit: 0.0 is not 6.63e-34
DIGITS, EXACTLY = (
    40,
    1e-25,
)  # the digits to which exact values are evaluated, and the relative difference they may have
LONGEST_DECIMAL = 10**12  # above it, an integer or a denominator cannot be rounded to a decimal
MAX_PARTS = 20  # a longer list is wrong: each part is compared with each part of the other list
PARSED_REMEMBERED = 4096  # parsed expressions that a worker caches, at a few KB each


def compare(gold: str | None, raw_gold: str, answer: Answer, precision: int = PRECISION) -> bool:
    """Return whether every side of the answer equals the reference answer. If math-verify cannot
    parse these expressions, compare the two original texts instead.
    """
    if answer.pairs:
        return all(equal(parse(wanted), parse(given), precision) for wanted, given in answer.pairs)
    target, found = parse(gold) if gold else [], [parse(side) for side in answer.sides]
    near = [parse(side) for side in answer.rounded]
    if not (target and found and all(found) and all(near)):
        return answer.raw is not None and equal(
            parse(raw_gold), parse(answer.raw), precision, answer.ordered
        )
    if (
        near and _decimals(target[0]) and not _decimals(found[0][0])
    ):  # "2\sqrt{2} \approx 2.83" for 2.83
        if found[0][0].is_Rational and rounds_constant(Fraction(str(target[0]))):
            return False  # 22/7 is a different approximation of pi
        near, found = [*found, *near[1:]], near[:1]
        return equal(target, found[0], precision) and all(
            _approximates(values[0], found[0][0], answer.rounded[0]) for values in near
        )
    return all(equal(target, values, precision, answer.ordered) for values in found) and all(
        _approximates(target[0], values[0], side)
        for values, side in zip(near, answer.rounded, strict=True)
    )


def equal(target: list, found: list, precision: int = PRECISION, ordered: bool = False) -> bool:
    return bool(target and found) and same(target[0], found[0], precision, ordered)


def same(
    gold: Any,
    answer: Any,
    precision: int = PRECISION,
    ordered: bool = False,
    nested: bool = False,
    is_end: bool = False,
) -> bool:
    """Return whether two SymPy values are equal. Lists, pairs, sets, intervals and matrices are
    compared number by number.
    """
    import sympy

    gold, answer = _alike(gold, answer)
    if nested and isinstance(gold, sympy.Set) != isinstance(answer, sympy.Set):
        return False  # math-verify takes 2 for {2}
    # An empty interval such as (9,1] equals all empty intervals, so only the same text is right.
    if gold == sympy.EmptySet:
        return False
    if _is_number(gold) and _is_number(answer):
        return _same_number(gold, answer, precision, is_end=is_end)
    gold_parts, answer_parts = _parts(gold), _parts(answer)
    if gold_parts and answer_parts:
        unordered = isinstance(gold, sympy.FiniteSet) and isinstance(answer, sympy.FiniteSet)
        return _same_parts(gold_parts, answer_parts, precision, unordered and not ordered)
    if isinstance(gold, sympy.Interval) and isinstance(answer, sympy.Interval):
        return _same_interval(gold, answer, precision)
    if not _verify(gold, answer, precision):
        return False
    equation = isinstance(gold, sympy.core.relational.Relational)
    if equation and isinstance(answer, type(gold)) and gold.lhs == answer.lhs:
        return same(gold.rhs, answer.rhs, precision)  # 1.6e-19 is not 1.7e-19
    return _vanishes(gold, answer)


def _same_parts(gold: list, answer: list, precision: int, unordered: bool) -> bool:
    """Return whether two lists have the same parts, in any order if ``unordered``."""
    if len(gold) != len(answer) or len(gold) > MAX_PARTS:
        return False
    rows = [
        [same(part, answer_part, precision, nested=True) for answer_part in answer] for part in gold
    ]
    return _paired(rows) if unordered else all(row[index] for index, row in enumerate(rows))


def _same_interval(gold: Any, answer: Any, precision: int) -> bool:
    """Return whether two intervals have the same ends. If both ends of an open reference interval
    are decimals, a closed interval may answer it.
    """
    opens, others = [(value.left_open, value.right_open) for value in (gold, answer)]
    rounded = _decimals(gold.start) and _decimals(gold.end)
    if opens != others and not (rounded and all(opens) and not any(others)):
        return False
    ends = (gold.start, answer.start), (gold.end, answer.end)
    return all(
        gold_end == answer_end or same(gold_end, answer_end, precision, is_end=True)
        for gold_end, answer_end in ends
    )


def _paired(rows: list[list[bool]]) -> bool:
    """Return whether each part of one list can be paired with a different part of the other. It
    does not matter which of several equal parts is taken.
    """
    taken: set[int] = set()
    for row in rows:
        partner = next(
            (index for index, same_part in enumerate(row) if same_part and index not in taken), None
        )
        if partner is None:
            return False
        taken.add(partner)
    return True


def _verify(gold: Any, answer: Any, precision: int) -> bool:
    from math_verify import verify

    return verify(
        [gold],
        [answer],
        float_rounding=precision,
        timeout_seconds=None,
        allow_set_relation_comp=True,
    )


def _alike(gold: Any, answer: Any) -> tuple[Any, Any]:
    """Return two values as one type where they may mean the same. math-verify reads a pair as an
    open interval; a column may be a pair; ``i`` may be the imaginary unit.
    """
    import sympy

    values = [gold, answer]
    for index, other in ((0, 1), (1, 0)):
        value = values[index]
        if (
            isinstance(value, sympy.Interval)
            and value.left_open
            and value.right_open
            and _parts(values[other])
        ):
            values[index] = sympy.Tuple(value.start, value.end)
        column = isinstance(value, sympy.MatrixBase) and value.shape[1] == 1
        if column and isinstance(values[other], sympy.Tuple | sympy.Interval):
            values[index] = sympy.Tuple(*value)
            return _alike(*values)
    units = [
        [symbol for symbol in getattr(value, "free_symbols", ()) if symbol.name == "i"]
        for value in values
    ]
    if all(units) and all(isinstance(value, sympy.Expr) for value in values):
        values = [
            value.subs(dict.fromkeys(symbols, sympy.I))
            for value, symbols in zip(values, units, strict=True)
        ]
    return values[0], values[1]


def _parts(value: Any) -> list[Any]:
    """Return the parts of a list, a pair or a matrix, in the order in which they were written. The
    shape of a matrix is appended to its parts.
    """
    import sympy

    if isinstance(value, sympy.FiniteSet):
        return list(getattr(value, "_unsorted_args", value.args))
    if isinstance(value, sympy.MatrixBase):
        return [*value, *map(sympy.Integer, value.shape)]
    return list(value) if isinstance(value, sympy.Tuple) else []


def _is_number(value: Any) -> bool:
    return bool(getattr(value, "is_number", False))


def _decimals(value: Any) -> bool:
    """Return whether a value was written with a decimal point."""
    import sympy

    return isinstance(value, sympy.Basic | sympy.MatrixBase) and value.has(sympy.Float)


def _exact(value: Any) -> Any:
    """Return a value with its decimals replaced by the fractions that were written."""
    import sympy

    return value.xreplace(
        {number: sympy.Rational(str(number)) for number in value.atoms(sympy.Float)}
    ).doit()


def _same_number(gold: Any, answer: Any, precision: int, is_end: bool = False) -> bool:
    import sympy

    exact = [_exact(value) for value in (gold, answer)]
    if not (_decimals(gold) or _decimals(answer)):
        if gold.has(sympy.UnevaluatedExpr) or answer.has(sympy.UnevaluatedExpr):
            return _verify(gold, answer, precision)  # 50% is 50 and 1/2
        return _same_exact(gold, answer, precision, exact)
    if exact[0].is_zero:
        return _same_exact(gold, answer, precision, exact)
    scale = _scale(exact[0])
    gold, answer, exact = gold * scale, answer * scale, [value * scale for value in exact]
    if _too_long_for_decimals(gold, exact[0]) or _too_long_for_decimals(answer, exact[1]):
        return _vanishes(*exact)
    if _differ_by_rounding(gold, answer, precision, exact) or _verify(gold, answer, precision):
        return True
    typed = isinstance(answer, sympy.Float)
    return _decimals(gold) and _rounds(gold, exact[0], exact[1], typed, is_end)


def _same_exact(gold: Any, answer: Any, precision: int, exact: list) -> bool:
    """Return whether two numbers are equal to the last digit."""
    return (
        _verify(gold, answer, precision)
        and (exact[0] - exact[1]).is_zero is not False
        and _vanishes(*exact)
    )


def _scale(gold: Any) -> Any:
    """Return the power of ten that moves a reference answer below ``NEAR_ZERO`` to its first digit,
    from which its places count; 1 for any other.
    """
    import sympy

    size = abs(gold.evalf(15)) if gold.is_real else 1
    if size >= NEAR_ZERO:
        return sympy.Integer(1)
    return sympy.Integer(10) ** -int(sympy.floor(sympy.log(size, 10)))


def _too_long_for_decimals(value: Any, exact: Any) -> bool:
    """Return whether an exact number has too many digits for a decimal to be its rounding."""
    if not exact.is_Rational or _decimals(value):
        return False
    return max(abs(exact.p) if exact.q == 1 else 0, exact.q) > LONGEST_DECIMAL


def _differ_by_rounding(gold: Any, answer: Any, precision: int, exact: list) -> bool:
    """Return whether two numbers agree in all places that count. Whole numbers are not rounded."""
    difference = exact[0] - exact[1]
    if difference.is_zero or not difference.is_Rational:
        return bool(difference.is_zero)
    pairs = zip((gold, answer), exact, strict=True)
    whole = any(number.is_Integer and not _decimals(value) for value, number in pairs)
    return not whole and abs(difference) * 2 * 10**precision < 1


def _vanishes(gold: Any, answer: Any) -> bool:
    """Return whether the difference is zero, also in the digits that math-verify cuts off.
    Variables are replaced by fixed fractions.
    """
    import sympy

    if not (isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr)):
        return True
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    points = {symbol: sympy.Rational(31 + 7 * index, 29) for index, symbol in enumerate(symbols)}
    gold_value, answer_value = (
        _exact(value).subs(points).evalf(DIGITS) for value in (gold, answer)
    )
    if not (
        gold_value.is_number
        and answer_value.is_number
        and gold_value.is_finite
        and answer_value.is_finite
    ):
        return True
    difference = _exact(gold).subs(points) - _exact(answer).subs(points)
    if difference.is_Rational and not symbols:
        return bool(difference == 0)
    difference = difference.evalf(DIGITS)
    tolerance = EXACTLY if not (_decimals(gold) or _decimals(answer)) else 1e-6
    return bool(abs(difference) <= tolerance * max(abs(gold_value), abs(answer_value)))


def _rounds(typed_gold: Any, gold: Any, answer: Any, typed: bool, is_end: bool) -> bool:
    """Return whether a decimal reference answer is a rounding of the answer. An exact fraction must
    be equal instead, and 12.5% is only 0.125.
    """
    import sympy

    if typed_gold.has(sympy.UnevaluatedExpr):
        return False
    if not (gold.is_Rational and answer.is_real) or (answer.is_Rational and not typed):
        return False
    near = answer if answer.is_Rational else answer.round(25)
    return rounds_to(Fraction(int(gold.p), int(gold.q)), Fraction(str(near)), typed, is_end)


def _approximates(exact: Any, near: Any, typed_near: str) -> bool:
    r"""Return whether a decimal is the exact value, rounded to the places that are written: 3.46
    for 2\sqrt{3}, but not 3.0 for \sqrt{10}.
    """
    import sympy

    if not (
        _is_number(exact)
        and getattr(exact, "is_real", False)
        and isinstance(near, sympy.Float | sympy.Integer)
    ):
        return False
    typed = Fraction(str(near))
    decimals = re.search(r"\.(\d+)", typed_near)
    places = len(decimals[1]) if decimals else 0
    return abs(float(exact.evalf(15)) - float(typed)) <= 0.5000001 * 10**-places


@functools.lru_cache(PARSED_REMEMBERED)
def parse(text: str) -> list:
    """Return what math-verify makes of a plain number or of LaTeX.

    Units are not removed here: math-verify's list of units contains "t" and "less", and only
    :mod:`~r1_recipes.verification.reading` knows the reference answer.
    """
    import math_verify
    from latex2sympy2_extended import NormalizationConfig

    plain = NUMBER.fullmatch(text)
    text = plain_spelling(plain) if plain else f"${text.strip().strip('$')}$"
    reading = NormalizationConfig(
        basic_latex=True,
        units=False,
        malformed_operators=True,
        nits=True,
        boxed="none",
        equations=False,
    )
    config = (
        math_verify.ExprExtractionConfig()
        if plain
        else math_verify.LatexExtractionConfig(normalization_config=reading)
    )
    return math_verify.parse(text, [config], fallback_mode="no_fallback", parsing_timeout=None)


def judge(
    gold: str | None,
    raw_gold: str,
    sides: Sequence[str],
    rounded: Sequence[str],
    raw: str | None,
    precision: int,
    ordered: bool,
    pairs: Sequence[Sequence[str]],
) -> bool:
    """Call :func:`compare`. Any exception makes the answer wrong."""
    try:
        named = tuple((wanted, given) for wanted, given in pairs)
        return compare(
            gold,
            raw_gold,
            Answer(tuple(sides), tuple(rounded), raw, ordered=ordered, pairs=named),
            precision,
        )
    except Exception:  # SymPy may raise RecursionError and MemoryError on a hostile text.
        return False
