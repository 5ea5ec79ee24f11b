r"""Numbers that can be compared without a parser: integers, decimals, whole per cents, and
fractions of integers.

Whatever is decided here, math-verify 0.9 decides the same way: a decimal is compared after
rounding; ``50%`` is 50/100, and against an integer also 50, but against ``50.0`` only 50/100. What
is not clear is left to it.
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
    r"(?P<sign>-?)(?:\\frac\{(?P<upper>-?\d+)\}\{(?P<lower>\d+)\}|(?P<left>\d+)/(?P<right>\d+))",
    re.ASCII,
)

# Places that decimals are compared by, unless the key ``precision`` says otherwise: math-verify's
# own
PRECISION = 6
# A longer decimal or fraction is left to sympy: up to here its floating-point numbers hold every
# digit
_MAX_CHARS = 16


@dataclass(frozen=True)
class Value:
    """A number as math-verify would hold it: exactly, as a floating-point decimal, or as a multiple
    of one per cent.
    """

    number: Fraction
    decimal: bool = False
    percent: bool = False

    def equals(self, other: Value, precision: int = PRECISION) -> bool | None:
        """Whether another number equals this gold; ``None`` if math-verify's rounding decides."""
        if self.decimal and other.decimal and rounds_to(self.number, other.number):
            return True
        gaps = [abs(self._amount - other._amount)]
        if self.percent != other.percent and not (self.decimal or other.decimal):
            plain = other if self.percent else self
            if plain.number.denominator == 1:
                gaps.append(abs(self.number - other.number))
        if not all(gaps):
            return True
        # Between this and equality, rounding decides.
        return False if min(gaps) > Fraction(10) ** (1 - precision) else None

    @property
    def _amount(self) -> Fraction:
        return self.number / 100 if self.percent else self.number


def rounds_to(gold: Fraction, answer: Fraction, typed: bool = True, is_end: bool = False) -> bool:
    """Whether a decimal gold is what an answer becomes when it is rounded to the gold's places:
    0.59 for 0.5941, 125.663 for 40\\pi.

    A gold of fewer than two places is taken as typed, and so is a rounding of pi or e, since 22/7
    and 3.1416 are others. An interval's end of one place takes what is nearer: 5.89 for 5.9, not
    5.86. What differs from the gold by less than a hundredth of its last place is another number
    and no rounding.

    An answer that is no decimal itself (not ``typed``) has to agree in five digits, since fewer
    agree by accident; such a gold may also be cut off instead of rounded.
    """
    places = max(_order(gold.denominator, 2), _order(gold.denominator, 5))
    unit = Fraction(1, 10**places)
    gap = abs(gold - answer)
    if rounds_constant(gold):
        return False
    if typed:
        if places > 1:
            return unit / 100 <= gap <= unit / 2
        return is_end and places == 1 and unit / 100 <= gap <= unit / 4
    return abs(gold) >= 10**4 * unit and gap <= (unit if abs(answer) > abs(gold) else unit / 2)


def rounds_constant(gold: Fraction) -> bool:
    """Whether a decimal is a rounding of pi or e to two places or more."""
    places = max(_order(gold.denominator, 2), _order(gold.denominator, 5))
    return places > 1 and any(
        2 * abs(gold - Fraction(constant)) <= Fraction(1, 10**places)
        for constant in (math.pi, math.e)
    )


def _order(number: int, prime: int) -> int:
    """How often a prime divides a number."""
    times = 0
    while number % prime == 0:
        number, times = number // prime, times + 1
    return times


def plain_spelling(match: re.Match[str]) -> str:
    """A match of ``NUMBER`` in the one spelling that math-verify reads in every case; it cannot
    read ``-.5`` and ``-007``.
    """
    digits = match["digits"].replace(",", "").removesuffix(".").lstrip("0")
    if not digits or digits.startswith("."):
        digits = "0" + digits
    return ("-" if match["sign"] == "-" else "") + digits + match["percent"]


def read_value(text: str) -> Value | None:
    """The value of an expression that is one of these numbers and nothing else."""
    if match := NUMBER.fullmatch(text):
        spelling = plain_spelling(match)
        percent = bool(match["percent"])
        decimal = "." in spelling
        if (decimal and (percent or len(spelling) > _MAX_CHARS)) or len(spelling) > 4 * _MAX_CHARS:
            return None
        return Value(Fraction(spelling.removesuffix("%")), decimal, percent)
    if len(text) > 2 * _MAX_CHARS or not (match := _FRACTION.fullmatch(text)):
        return None
    upper, lower = match["upper"] or match["left"], match["lower"] or match["right"]
    if not int(lower) or (match["sign"] and upper.startswith("-")):
        return None
    value = Fraction(int(upper), int(lower))
    return Value(-value if match["sign"] else value)
