r"""Compare plain numbers exactly: ``1080.00``, ``2\frac{1}{3}``, ``7 \cdot 10^{-3}``, ``50%``."""

import functools
import re
from dataclasses import dataclass
from fractions import Fraction

PLACES = 6  # by which a decimal is compared with an exact value, as in math-verify
_DECIMAL = re.compile(
    r"(?a)([-+]?)\s*(\d{1,200}\.?\d{0,200}|\.\d{1,200})"
    r"(?:\s*(?:\\cdot|\\times|\*)\s*10\^\{(-?\d{1,3})\})?\s*(%?)"
)
_FRACTION = re.compile(
    r"(?a)([-+]?)\s*(\d{0,9})\s*(?:\\frac\s*\{\s*(-?\d{1,99})\s*\}\s*\{\s*(\d{1,99})\s*\}|"
    r"(?<!\d)(-?\d{1,99})\s*/\s*(\d{1,99}))\s*(%?)"
)


@dataclass(frozen=True)
class Number:
    """A number as it was written."""

    value: Fraction
    is_decimal: bool = False
    is_percent: bool = False
    places: int = 0

    def equals(self, other: "Number") -> bool:
        """Return whether an answer equals this reference answer. 50 % is 50 and 0.5."""
        value = other.value
        if self.is_percent != other.is_percent and not (self.value == value and abs(value) >= 1):
            value *= Fraction(1, 100) if other.is_percent else 100
        if self.is_decimal and (
            other.places > self.places or not (other.is_decimal or value.denominator == 1)
        ):
            return self.rounds(value)
        is_near = self.is_near(value) and other.is_near(self.value)
        return self.value == value or (is_near and (self.is_decimal or other.is_decimal))

    def is_near(self, value: Fraction) -> bool:
        """Return whether this decimal stands for a value: 0.333333 for 1/3. No integer does."""
        if self.value == value or self.value.denominator == 1:
            return self.value == value
        return abs(self.value - value) * 10**PLACES * 2 < min(1, 1000 * abs(value))

    def rounds(self, value: Fraction) -> bool:
        """Return whether this decimal, of two places and digits, rounds a value: 0.59 of 0.5941."""
        unit = Fraction(1, 10) ** self.places
        if self.places >= 2 and abs(self.value) >= 10 * unit:
            return 2 * abs(self.value - value) <= unit
        return self.is_near(value)


@functools.lru_cache(16_384)
def read_number(text: str) -> Number | None:
    """Return the number that a text is, or ``None``."""
    if decimal := _DECIMAL.fullmatch(text):
        sign, digits, exponent, percent = decimal.groups()
        value = Fraction(digits.rstrip(".") or "0") * Fraction(10) ** int(exponent or 0)
        places = len(digits.partition(".")[2]) - int(exponent or 0)
        return Number(-value if sign == "-" else value, "." in digits, bool(percent), places)
    if not (fraction := _FRACTION.fullmatch(text)):
        return None
    sign, whole, *parts, percent = fraction.groups()
    above, below = (int(part) for part in parts if part)
    if not below or (whole and above < 0):
        return None
    value = int(whole or 0) + Fraction(above, below)
    return Number(-value if sign == "-" else value, is_percent=bool(percent))
