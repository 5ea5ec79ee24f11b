"""Compare numbers without a parser: integers, decimals, whole per cents, and fractions of integers.

The verdicts are those of math-verify 0.9. A decimal is compared after rounding. ``50%`` is 50 and
50/100. Unclear cases are left to math-verify.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

NUMBER = re.compile(
    r"(?P<sign>[-+]?)\s*(?P<digits>(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d*)?|"
    r"\.\d+)\s*(?P<percent>%?)",
    re.ASCII,
)
_FRACTION = re.compile(
    r"(?P<sign>-?)(?P<latex>\\frac\{)?(?P<upper>-?\d+)(?(latex)\}\{|/)(?P<lower>\d+)(?(latex)\})",
    re.ASCII,
)

# The places by which decimals are compared, unless the key ``precision`` says otherwise. This is
# math-verify's default.
PRECISION = 6
# A longer decimal or fraction is left to SymPy. Up to this length its floating-point numbers hold
# every digit.
_MAX_CHARS = 16


@dataclass(frozen=True)
class Value:
    """A number as math-verify holds it: exact, a floating-point decimal, or a multiple of one per
    cent.
    """

    number: Fraction
    decimal: bool = False
    percent: bool = False

    def equals(self, other: Value, precision: int = PRECISION) -> bool | None:
        """Return whether another number equals this one; ``None`` if math-verify has to decide."""
        if self.decimal and other.decimal and rounds_to(self.number, other.number):
            return True
        if self == other:
            return True  # most right answers, in less time than a difference of fractions
        gap = abs(self._amount - other._amount)
        if self.percent != other.percent:
            gap = min(gap, abs(self.number - other.number))
        if not gap:
            return True
        # A smaller difference is left to math-verify, which rounds.
        return False if gap * 10**precision > 10 else None

    @property
    def _amount(self) -> Fraction:
        return self.number / 100 if self.percent else self.number


def rounds_to(gold: Fraction, answer: Fraction, typed: bool = True, is_end: bool = False) -> bool:
    r"""Return whether rounding an answer to the places of a decimal reference answer gives that
    decimal: 0.59 for 0.5941, 125.663 for 40\pi.

    A reference answer with fewer than two places, or with one significant digit, is compared as
    written. So is a rounding of pi or e, because 22/7 and 3.1416 are different approximations. An
    interval's end with one place accepts what is nearer: 5.89 for 5.9, but not 5.86. An answer that
    differs by less than a hundredth of the last place is a different number and not a rounding. A
    tie may be rounded away from zero or to an even digit.

    An answer that is not a decimal itself (``typed`` is false) has to agree in five digits, because
    fewer may agree by accident. In this case the reference answer may also be cut off instead of
    rounded.
    """
    places = _places(gold)
    unit = Fraction(1, 10**places)
    gap = abs(gold - answer)
    if rounds_constant(gold):
        return False
    away_from_zero = abs(answer) > abs(gold)
    if not typed:
        widest = unit if away_from_zero else unit / 2
        return abs(gold) >= 10**4 * unit and gap <= widest
    if gap < unit / 100:
        return False
    if places < 2:
        return is_end and places == 1 and gap <= unit / 4
    if abs(gold) < 10 * unit:
        return False
    if gap == unit / 2:
        return not away_from_zero or gold / unit % 2 == 0
    return gap < unit / 2


def rounds_constant(gold: Fraction) -> bool:
    """Return whether a decimal is a rounding of pi or e to two places or more."""
    places = _places(gold)
    if places < 2:
        return False
    gaps = [abs(gold - Fraction(constant)) for constant in (math.pi, math.e)]
    return 2 * min(gaps) <= Fraction(1, 10**places)


def _places(decimal: Fraction) -> int:
    return max(_order(decimal.denominator, 2), _order(decimal.denominator, 5))


def _order(number: int, prime: int) -> int:
    """Return how often a prime divides a number."""
    times = 0
    while number % prime == 0:
        number //= prime
        times += 1
    return times


def plain_spelling(match: re.Match[str]) -> str:
    """Return a match of ``NUMBER`` as math-verify can read it. It cannot read ``-.5`` and
    ``-007``.
    """
    digits = match["digits"].replace(",", "").removesuffix(".").lstrip("0")
    if not digits or digits.startswith("."):
        digits = "0" + digits
    sign = match["sign"].strip("+")
    return sign + digits + match["percent"]


def read_value(text: str) -> Value | None:
    """Return the value of an expression that is nothing but one of these numbers, or ``None``."""
    if match := NUMBER.fullmatch(text):
        spelling = plain_spelling(match)
        percent = bool(match["percent"])
        decimal = "." in spelling
        if decimal and percent:
            return None
        if len(spelling) > (_MAX_CHARS if decimal else 4 * _MAX_CHARS):
            return None
        digits = spelling.removesuffix("%")
        # A Fraction of an integer takes a fifth of the time of a Fraction of a text.
        return Value(Fraction(digits if decimal else int(digits)), decimal, percent)
    match = _FRACTION.fullmatch(text)
    if len(text) > 2 * _MAX_CHARS or match is None:
        return None
    upper, lower = match["sign"] + match["upper"], int(match["lower"])
    if lower == 0 or upper.startswith("--"):
        return None
    return Value(Fraction(int(upper), lower))
