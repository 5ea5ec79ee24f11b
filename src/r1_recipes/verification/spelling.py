r"""One LaTeX-like spelling of an expression: wrappers, styling, currency signs and typographic variants are taken off."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction

_SIGNS = str.maketrans(
    {
        **dict(zip("０１２３４５６７８９＋－＝，．（）％：", "0123456789+-=,.()%:", strict=True)),
        **dict.fromkeys("\u2212\u2013\u2014\u2010\u2011", "-"),
        **dict.fromkeys("\u00a0\u2009\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", None),
        **dict.fromkeys("€£¥₹₽₩", " "),
        **dict(zip("÷°", ("/", r"^\circ "), strict=True)),
        **dict(zip("×·⋅π∞√", (r"\times ", r"\cdot ", r"\cdot ", r"\pi ", r"\infty ", r"\sqrt "), strict=True)),
        **dict(zip("≤≥≠≈∅±∪", (r"\le ", r"\ge ", r"\ne ", r"\approx ", r"\emptyset ", r"\pm ", r"\cup "), strict=True)),
    }
)
_SUPERSCRIPT = re.compile("[⁰¹²³⁴-⁹⁺⁻]+")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "百": 2, "千": 3, "万": 4, "亿": 8}
_FUNCTIONS = "arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|sqrt|log|ln|exp|pi|infty"


def _power_of_ten(match: re.Match[str]) -> str:
    return rf"\cdot 10^{{{_MAGNITUDES[match[1].lower()]}}}"


def _tuple(match: re.Match[str]) -> str:
    # In lowest terms; math-verify would divide the parts one after the other.
    parts = [int(part) for part in match[0].split(":")]
    divisor = math.gcd(*parts) or 1
    return f"({', '.join(str(part // divisor) for part in parts)})"


def _recurring(match: re.Match[str]) -> str:
    whole, fixed, recurring = match.groups()
    nines = 10 ** len(recurring) - 1
    value = Fraction(int((whole or "0") + fixed) * nines + int(recurring), 10 ** len(fixed) * nines)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


RULES: tuple[tuple[str, re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (name, re.compile(pattern), replacement)
    for name, pattern, replacement in (
        (
            "a unit after a number",  # "\text{ m/s}"; "\text{or}" is none
            r"(?<=[\d}])(?:\s|~|\\[,;: ])*\\(?:text|textrm|mathrm|mbox)\s*\{\s*(?!(?:or|an?|no)\s*\})"
            r"[A-Za-z]{1,2}(?:/[A-Za-z]{1,3})?\.?\s*\}(?:\^\{?[23]\}?)?",
            " ",
        ),
        ("styled text", r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|emph)\s*\{([^{}]*)\}", r" \1 "),
        ("delimiters", r"(?<!\\)\\[()\[\]]|\\?\$", " "),
        ("per cent", r"\\%", "%"),
        ("comma in braces", r"\{,\}", ","),
        ("sizes", r"\\(?:left|right|displaystyle|bigl?|bigr|Bigl?|Bigr)(?![A-Za-z])", ""),
        ("thin space between thousands", r"(?<=\d)(?:\\[,!;: ])(?=\d{3}(?!\d))", ","),  # 1\,080
        ("thin space", r"(?<!\\)\\[,!;: ]|~", " "),
        ("styles of fractions", r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        ("or equal", r"\\(le|ge|ne)q(?:slant)?(?![A-Za-z])", r"\\\1"),
        ("emphasis", r"(?<![\w)}])\*\*|\*\*(?![\w(\\{-])|`", " "),
        ("Python's power", r"\*\*", "^"),
        ("quotes around it", r"""\A[ \t\r\n*_"']+|(?<![ \t\r\n*_"'])[ \t\r\n*_"']+\Z""", ""),
        ("end of a sentence", r"[.。,;:]+$", ""),
        ("space around it", r"\A\s+|(?<!\s)\s+\Z", ""),
        ("sign before it", r"\A(?:(?:=|\\approx(?![A-Za-z])|#{2,})\s*)+", ""),
        ("degrees of temperature", r"\^\{?\\circ\s*\}?\s*[CF](?![A-Za-z])", ""),
        ("minus in words", r"(?i)(?:\b(?:minus|negative)\s+|负\s*)(?=[\d.(\\])", "-"),
        ("magnitude in words", r"(?i)(?<=\d)\s*((?:hundred|thousand|million|billion|trillion)\b|[百千万亿])", _power_of_ten),
        ("ratio", r"(?<![\d:.])\d{1,9}(?:\s*:\s*\d{1,9}){2,}(?![\d:.])", _tuple),
        ("recurring decimal", r"(?<!\d)(\d{0,9})\.(\d{0,9})\\overline\s*\{(\d{1,9})\}", _recurring),
        # str(1e-05), which LaTeX would read as Euler's number
        ("scientific notation", r"(?<=\d)[eE]([-+]?\d{1,3})(?![\w.])", r"\\cdot 10^{\1}"),
        ("function without a backslash", rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])", r"\\\1 "),
        # LaTeX reads \sqrt13 as the root of 1, and 2^10 as 2^1 0.
        ("root of a number", r"\\sqrt\s*(\d+(?:\.\d+)?)", r"\\sqrt{\1}"),
        ("mixed number", r"(?<![\d.])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])", r"\1\\frac{\2}{\3}"),
        ("argument in brackets", r"(\^|\\sqrt)\s*\(([^()]*)\)", r"\1{\2}"),
        ("member of a set", r"^[A-Za-z]\s*\\in(?![A-Za-z])\s*", ""),  # "x \in [1, 2]"
        ("power of a number", r"\^\s*(-?\d+(?:\.\d+)?)", r"^{\1}"),
    )
)
"""What :func:`clean` replaces, in this order, so that one LaTeX-like spelling is left."""


def typed(text: str) -> str:
    """Return the text in the signs of a keyboard."""
    if not text.isascii():
        text = _VULGAR.sub(lambda char: f" {unicodedata.normalize('NFKC', char[0]).replace('⁄', '/')}", text)
        text = _SUPERSCRIPT.sub(lambda run: "^{" + unicodedata.normalize("NFKC", run[0]).replace("\u2212", "-") + "}", text)
    return text.translate(_SIGNS)


def clean(text: str) -> str:
    """Return the text after every rule; each rule is linear in its length, or reads at most nine digits."""
    text = typed(text)
    for _, pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return text
