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

import sympy

from r1_recipes.verification.expression import Answer
from r1_recipes.verification.numbers import (
    NUMBER,
    PRECISION,
    plain_spelling,
    rounds_constant,
    rounds_to,
)

NEAR_ZERO = 0.001  # below it, places count from the first digit: 0.0 is not 6.63e-34
DIGITS = 40  # to which exact values are evaluated
EXACTLY = 1e-25  # the relative difference that exact values may have
LONGEST_DECIMAL = 10**12  # above it, an integer or a denominator cannot be rounded to a decimal
PER_CENT = sympy.UnevaluatedExpr(sympy.Rational(1, 100))  # as math-verify reads %
MAX_PARTS = 20  # a longer list is wrong: each part is compared with each part of the other list
PARSED_REMEMBERED = 4096  # parsed expressions that a worker caches, at a few KB each


def compare(gold: str | None, raw_gold: str, answer: Answer, precision: int = PRECISION) -> bool:
    """Return whether every side of the answer equals the reference answer. If math-verify cannot
    parse these expressions, compare the two original texts instead.
    """
    if answer.pairs:
        return all(_same_texts(*pair, precision, answer.ordered) for pair in answer.pairs)
    target = parse(gold) if gold else None
    found = [parse(side) for side in answer.sides]
    near = [parse(side) for side in answer.rounded]
    if not found or any(value is None for value in (target, *found, *near)):
        raw = answer.raw
        return raw is not None and _same_texts(raw_gold, raw, precision, answer.ordered)
    if near and _decimals(target) and not _decimals(found[0]):  # 2\sqrt{2} \approx 2.83, for 2.83
        if found[0].is_Rational and rounds_constant(Fraction(str(target))):
            return False  # 22/7 is a different approximation of pi
        if not same(target, near[0], precision):
            return False
        others = [*found, *near[1:]]
        return all(_approximates(value, near[0], answer.rounded[0]) for value in others)
    if not all(same(target, value, precision, answer.ordered) for value in found):
        return False
    written = zip(near, answer.rounded, strict=True)
    return all(_approximates(target, value, typed) for value, typed in written)


def _same_texts(gold: str, answer: str, precision: int, ordered: bool = False) -> bool:
    target, found = parse(gold), parse(answer)
    if target is None or found is None:
        return False
    return same(target, found, precision, ordered)


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
    """Return whether two lists have the same parts, in any order if ``unordered``. It does not
    matter which of several equal parts is taken.
    """
    if len(gold) != len(answer) or len(gold) > MAX_PARTS:
        return False
    left = list(answer)
    for part in gold:
        candidates = left if unordered else left[:1]
        for index, candidate in enumerate(candidates):
            if same(part, candidate, precision, nested=True):
                del left[index]
                break
        else:
            return False
    return True


def _same_interval(gold: Any, answer: Any, precision: int) -> bool:
    """Return whether two intervals have the same ends. If both ends of an open reference interval
    are decimals, a closed interval may answer it.
    """
    opens = gold.left_open, gold.right_open
    others = answer.left_open, answer.right_open
    if opens != others:
        rounded = _decimals(gold.start) and _decimals(gold.end)
        if not rounded or not all(opens) or any(others):
            return False
    ends = (gold.start, answer.start), (gold.end, answer.end)
    return all(end == other or same(end, other, precision, is_end=True) for end, other in ends)


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
    gold = _as_tuple(gold, answer)
    answer = _as_tuple(answer, gold)
    if not isinstance(gold, sympy.Expr) or not isinstance(answer, sympy.Expr):
        return gold, answer
    in_gold = [symbol for symbol in gold.free_symbols if symbol.name == "i"]
    in_answer = [symbol for symbol in answer.free_symbols if symbol.name == "i"]
    if in_gold and in_answer:
        gold = gold.subs(dict.fromkeys(in_gold, sympy.I))
        answer = answer.subs(dict.fromkeys(in_answer, sympy.I))
    return gold, answer


def _as_tuple(value: Any, other: Any) -> Any:
    """Return an open interval or a column as a tuple, where the other value may be one."""
    if isinstance(value, sympy.Interval):
        is_pair = value.left_open and value.right_open and _parts(other)
        return sympy.Tuple(value.start, value.end) if is_pair else value
    is_column = isinstance(value, sympy.MatrixBase) and value.shape[1] == 1
    if is_column and isinstance(other, sympy.Tuple | sympy.Interval):
        return sympy.Tuple(*value)
    return value


def _parts(value: Any) -> list[Any]:
    """Return the parts of a list, a pair or a matrix, in the order in which they were written. The
    shape of a matrix is appended to its parts.
    """
    if isinstance(value, sympy.FiniteSet):
        return list(getattr(value, "_unsorted_args", value.args))
    if isinstance(value, sympy.MatrixBase):
        return [*value, *map(sympy.Integer, value.shape)]
    return list(value) if isinstance(value, sympy.Tuple) else []


def _is_number(value: Any) -> bool:
    return bool(getattr(value, "is_number", False))


def _decimals(value: Any) -> bool:
    """Return whether a value was written with a decimal point."""
    return isinstance(value, sympy.Basic | sympy.MatrixBase) and value.has(sympy.Float)


def _exact(value: Any) -> Any:
    """Return a value with its decimals replaced by the fractions that were written."""
    fractions = {decimal: sympy.Rational(str(decimal)) for decimal in value.atoms(sympy.Float)}
    return value.xreplace(fractions).doit()


def _same_number(gold: Any, answer: Any, precision: int, is_end: bool = False) -> bool:
    if (PER_CENT in gold.args) != (PER_CENT in answer.args):  # 12.5% is 12.5 and 0.125
        amounts = {_exact(value.xreplace({PER_CENT: sympy.S.One})) for value in (gold, answer)}
        if len(amounts) == 1 and abs(amounts.pop()) >= 1:
            return True
    exact_gold, exact_answer = _exact(gold), _exact(answer)
    decimal = _decimals(gold) or _decimals(answer)
    if not decimal or exact_gold.is_zero:
        if not _verify(gold, answer, precision) or (exact_gold - exact_answer).is_zero is False:
            return False
        return _vanishes(exact_gold, exact_answer)
    scale = _scale(exact_gold)
    gold, answer = gold * scale, answer * scale
    exact_gold, exact_answer = exact_gold * scale, exact_answer * scale
    if _too_long_for_decimals(gold, exact_gold) or _too_long_for_decimals(answer, exact_answer):
        return _vanishes(exact_gold, exact_answer)
    whole = _is_whole(gold, exact_gold) or _is_whole(answer, exact_answer)
    if _agree_in_places(exact_gold - exact_answer, whole, precision):
        return True
    if _verify(gold, answer, precision):
        return True
    typed = isinstance(answer, sympy.Float)
    return _decimals(gold) and _rounds(gold, exact_gold, exact_answer, typed, is_end)


def _scale(gold: Any) -> Any:
    """Return the power of ten that moves a reference answer below ``NEAR_ZERO`` to its first digit,
    from which its places count; 1 for any other.
    """
    size = abs(gold.evalf(15)) if gold.is_real else 1
    if size >= NEAR_ZERO:
        return sympy.Integer(1)
    return sympy.Integer(10) ** -int(sympy.floor(sympy.log(size, 10)))


def _too_long_for_decimals(value: Any, exact: Any) -> bool:
    """Return whether an exact number has too many digits for a decimal to be its rounding."""
    if not exact.is_Rational or _decimals(value):
        return False
    longest = abs(exact.p) if exact.q == 1 else exact.q
    return longest > LONGEST_DECIMAL


def _is_whole(value: Any, exact: Any) -> bool:
    """Return whether a value was written as a whole number, which is not rounded."""
    return exact.is_Integer and not _decimals(value)


def _agree_in_places(difference: Any, whole: bool, precision: int) -> bool:
    """Return whether two numbers with this difference agree in all places that count."""
    if difference.is_zero or not difference.is_Rational:
        return bool(difference.is_zero)
    return not whole and abs(difference) * 2 * 10**precision < 1


def _vanishes(gold: Any, answer: Any) -> bool:
    """Return whether the difference is zero, also in the digits that math-verify cuts off.
    Variables are replaced by fixed fractions.
    """
    if not (isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr)):
        return True
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    points = {symbol: sympy.Rational(31 + 7 * index, 29) for index, symbol in enumerate(symbols)}
    exact_gold, exact_answer = _exact(gold).subs(points), _exact(answer).subs(points)
    values = exact_gold.evalf(DIGITS), exact_answer.evalf(DIGITS)
    if not all(value.is_number and value.is_finite for value in values):
        return True
    difference = exact_gold - exact_answer
    if difference.is_Rational and not symbols:
        return bool(difference == 0)
    tolerance = 1e-6 if _decimals(gold) or _decimals(answer) else EXACTLY
    largest = max(abs(value) for value in values)
    return bool(abs(difference.evalf(DIGITS)) <= tolerance * largest)


def _rounds(typed_gold: Any, gold: Any, answer: Any, typed: bool, is_end: bool) -> bool:
    """Return whether a decimal reference answer is a rounding of the answer. An exact fraction must
    be equal instead, and 12.5% is only 0.125.
    """
    if typed_gold.has(sympy.UnevaluatedExpr) or not gold.is_Rational or not answer.is_real:
        return False
    if not answer.is_Rational:
        answer = answer.round(25)
    elif not typed:
        return False
    return rounds_to(Fraction(str(gold)), Fraction(str(answer)), typed, is_end)


def _approximates(exact: Any, near: Any, typed_near: str) -> bool:
    r"""Return whether a decimal is the exact value, rounded to the places that are written: 3.46
    for 2\sqrt{3}, but not 3.0 for \sqrt{10}.
    """
    if not isinstance(near, sympy.Float | sympy.Integer):
        return False
    if not _is_number(exact) or not getattr(exact, "is_real", False):
        return False
    decimals = re.search(r"\.(\d+)", typed_near)
    places = len(decimals[1]) if decimals else 0
    difference = float(exact.evalf(15)) - float(Fraction(str(near)))
    return abs(difference) <= 0.5000001 * 10**-places


@functools.lru_cache(PARSED_REMEMBERED)
def parse(text: str) -> Any:
    """Return what math-verify makes of a plain number or of LaTeX, or ``None``.

    Units are not removed here: math-verify's list of units contains "t" and "less", and only
    :mod:`~r1_recipes.verification.reading` knows the reference answer.
    """
    import math_verify
    from latex2sympy2_extended import NormalizationConfig

    if per_cent := re.fullmatch(r"(-?\d*\s*\\frac\{\d+\}\{\d+\})\s*%", text):
        return parse(per_cent[1]) * PER_CENT  # math-verify reads only digits before the sign
    plain = NUMBER.fullmatch(text)
    if plain:
        text = plain_spelling(plain)
        config = math_verify.ExprExtractionConfig()
    else:
        text = f"${text.strip().strip('$')}$"
        normalization = NormalizationConfig(
            basic_latex=True,
            units=False,
            malformed_operators=True,
            nits=True,
            boxed="none",
            equations=False,
        )
        config = math_verify.LatexExtractionConfig(normalization_config=normalization)
    found = math_verify.parse(text, [config], fallback_mode="no_fallback", parsing_timeout=None)
    return found[0] if found else None


def judge(
    gold: str | None,
    raw_gold: str,
    sides: Sequence[str],
    rounded: Sequence[str],
    raw: str | None,
    precision: int,
    ordered: bool,
    pairs: Sequence[tuple[str, str]],
) -> bool:
    """Call :func:`compare`. Any exception makes the answer wrong."""
    try:
        answer = Answer(tuple(sides), tuple(rounded), raw, ordered=ordered, pairs=tuple(pairs))
        return compare(gold, raw_gold, answer, precision)
    except Exception:  # SymPy may raise RecursionError and MemoryError on a hostile text.
        return False
