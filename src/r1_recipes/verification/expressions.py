r"""Compare two expressions with math-verify.

math-verify drops what it cannot read, writes letters in lower case, and rounds. So it only gets
expressions whose signs are all known, with each letter under a name that it keeps (``{a}`` for
``F_N``), and values are compared once more, exactly or to 40 digits. Only the workers of
:mod:`.pool` call it, as it may never end. In the trainer's process, :class:`Undecided` is raised.
"""

import functools
import re
from fractions import Fraction
from typing import Any

from r1_recipes.verification.numbers import read_number

sympy: Any = None  # the libraries of a worker
math_verify: Any = None
latex2sympy2: Any = None

_GREEK = "alpha|beta|gamma|delta|epsilon|theta|lambda|mu|nu|rho|sigma|tau|phi|psi|omega|Delta|Omega"
_FUNCTIONS = (
    "frac|sqrt|pi|infty|cdot|times|div|binom|sinh?|cosh?|tanh?|cot|sec|csc|arcsin|arccos|arctan|"
    "ln|log|exp|lfloor|rfloor|lceil|rceil"
)
_KNOWN = re.compile(
    rf"(?:[-+*/^_!|(){{}}\[\].\sA-Za-z0-9]|\\(?:{_FUNCTIONS}|{_GREEK})(?![A-Za-z]))*"
)
# Numbers side by side, powers of powers, exponents and factorials of five digits, nine brackets.
_TOO_LARGE = re.compile(
    r"(?<!_)\d\s+\d|\^[\s{(]*\d+[\s}]*\^|\^[\s{(]*-?\d{5,}|\d{5,}[\s)}]*!|"
    r"(?:\\?[a-z]*[(\[{|]\s*){9}"
)
# A command, or a letter with its index.
_LETTER = re.compile(
    rf"\\(?!(?:{_GREEK})(?![A-Za-z]))[A-Za-z]+|"
    r"((?:\\[A-Za-z]+|[A-Za-z])(?:\s*_\s*(?:\w|\{[\w, ]+\}))?)"
)
_NAMES = "abcfghjklmnopqrstuvwxyz"  # e and i are constants, and d stands in derivatives
_DIGITS = 40
_EXACTLY = 1e-25  # relative difference of two values that are equal to 40 digits


class Undecided(Exception):
    """Raised in the trainer's process where only math-verify can decide."""


def enter_worker() -> None:
    """Let this process call math-verify, with ANTLR's mode SLL, which takes a tenth of the time."""
    global sympy, math_verify, latex2sympy2
    import math_verify
    import sympy
    from antlr4.atn.PredictionMode import PredictionMode
    from latex2sympy2_extended import latex2sympy2

    class FastParser(latex2sympy2.PSParser):
        def math(self) -> Any:
            self._interp.predictionMode = PredictionMode.SLL
            return super().math()

    latex2sympy2.PSParser = FastParser
    # Fill the tables of parser and SymPy, so that the first answer takes no longer than the next.
    for text in (r"\frac{1}{2}+3\sqrt{5}", r"\sin(2x)-\pi", "x^{2}-3xy+1", r"e^{x}\ln(x)(x-2)"):
        for up_to_factor in (False, True):
            equal(text, f"{text}+0", up_to_factor)


def _name(letter: re.Match[str]) -> str:
    return re.sub(r"[\s{}]", "", letter[1] or "")


@functools.lru_cache(16_384)
def letters_of(text: str) -> list[str] | None:
    """Return the letters of an expression, ``None`` if it has a sign that is not known."""
    if not _KNOWN.fullmatch(text) or _TOO_LARGE.search(text):
        return None
    return sorted(set(map(_name, _LETTER.finditer(text))) - {"", "e", "i"})


@functools.lru_cache(4096)
def _parse(text: str) -> Any:
    """Return an expression of SymPy, ``None`` if math-verify's parser cannot read the text."""
    if sympy is None:
        raise Undecided
    names = dict(zip(letters_of(text) or (), _NAMES, strict=False))
    renamed = _LETTER.sub(lambda m: f"{{{names[_name(m)]}}}" if _name(m) in names else m[0], text)
    # The parser reads {\pi}^2 and no \pi^2.
    renamed = re.sub(r"(\\pi|(?<![A-Za-z\\])i)(?=\s*\^)", r"{\1}", renamed)
    try:
        value = latex2sympy2.latex2sympy(renamed, is_real=True, normalization_config=None)
    except Exception:  # a hostile text may raise anything in a parser
        return None
    if not isinstance(value, sympy.Expr):
        return None
    exact = {decimal: sympy.Rational(str(decimal)) for decimal in value.atoms(sympy.Float)}
    value = value.xreplace({**exact, sympy.Symbol("i", real=True): sympy.I})
    return value if {symbol.name for symbol in value.free_symbols} == {*names.values()} else None


def equal(gold: str, answer: str, up_to_factor: bool = False) -> bool:
    """Return whether two expressions have the same letters and the same value. ``up_to_factor``,
    one may be a multiple of the other: ``2x-y+3`` and ``y-2x-3`` make the same equation.
    """
    if letters_of(gold) is None or letters_of(gold) != letters_of(answer):
        return False
    one, other = _parse(gold), _parse(answer)
    if one is None or other is None:
        return False
    if up_to_factor:
        factor = sympy.simplify(one / other)
        return bool(factor.is_number and factor.is_finite and letters_of(gold))
    return not _differ(one, other) and math_verify.verify([one], [other], timeout_seconds=None)


def _differ(one: Any, other: Any) -> bool:
    """Return whether two values differ where each letter is a fixed fraction."""
    symbols = sorted(one.free_symbols, key=str)
    points = {symbol: sympy.Rational(31 + 7 * index, 29) for index, symbol in enumerate(symbols)}
    x, y = one.subs(points).doit(), other.subs(points).doit()
    if x.is_Rational and y.is_Rational:
        return bool(x != y)
    x, y = x.evalf(_DIGITS), y.evalf(_DIGITS)
    if not (x.is_finite and y.is_finite):
        return False  # there is nothing to compare, so math-verify decides alone
    return bool(abs(x - y) > _EXACTLY * max(abs(x), abs(y)))


@functools.lru_cache(4096)
def value_of(text: str) -> Fraction | None:
    """Return the value of an expression without letters, exact or to 40 digits."""
    if number := read_number(text):
        return None if number.is_percent else number.value
    value = _parse(text) if letters_of(text) == [] else None
    if value is None:
        return None
    value = value.doit()
    value = value if value.is_Rational else value.evalf(_DIGITS)
    return Fraction(str(value)) if value.is_Rational or value.is_Float else None
