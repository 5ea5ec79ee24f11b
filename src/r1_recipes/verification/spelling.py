"""Rewrite expressions in one LaTeX-like spelling. Wrappers, styling, currency signs and typographic
variants are removed.
"""

import math
import re
from collections.abc import Callable
from fractions import Fraction

from r1_recipes.verification.number_words import NUMBER_WORDS
from r1_recipes.verification.signs import table, typed, with_single_spaces
from r1_recipes.verification.units import STYLE, STYLED_UNIT, TIMES

LOCALES = ("en", "de")  # how numbers are written: 1,250.5 or 1.250,5
_MAGNITUDES = table(
    "hundred=2 thousand=3 lakh=5 million=6 crore=7 billion=9 trillion=12 "
    "百=2 千=3 万=4 萬=4 亿=8 億=8"
)
# 千 before a unit means kilo.
_MAGNITUDE = (
    r"(?<=\d)\s*((?ai:hundred|thousand|lakh|million|crore|billion|trillion)"
    r"\b(?!\s*(?i:[a-z]+ths?)\b)|(?:[百千](?![米克瓦赫卡焦帕伏安牛升分字])|[万亿萬億])(?!\d))"
)
BASES = {word: base for base, word in enumerate(NUMBER_WORDS) if base > 1} | {"sixteen": 16}
_FUNCTIONS = "arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|sqrt|log|ln|exp|pi|infty"


def _exponent(match: re.Match[str]) -> str:
    return rf"\cdot 10^{{{int(match[1] or match[2])}}}"


def _in_radians(match: re.Match[str]) -> str:
    """Return degrees inside a sine or another trigonometric function as radians. The parser would
    drop the degree sign.
    """
    before = match.string[: match.start()]
    trigonometric = re.search(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])", before)
    return rf"\frac{{{match[1]}\pi}}{{180}}" if trigonometric else match[0]


def _power_of_ten(match: re.Match[str]) -> str:
    return rf"\cdot 10^{{{_MAGNITUDES[match[1].lower()]}}}"


def _ratio(match: re.Match[str]) -> str:
    # Reduce the ratio to lowest terms as a tuple: math-verify would divide the parts.
    parts = [int(part) for part in match[0].split(":")]
    divisor = math.gcd(*parts) or 1
    reduced = [str(part // divisor) for part in parts]
    return f"({', '.join(reduced)})"


_CASES = (
    r"\\begin\{cases\}([^&]*?)\\end\{cases\}|"
    r"\\left\s*\\\{\s*\\begin\{array\}\{[^{}]*\}([^&]*?)\\end\{array\}\s*\\right\s*\."
)
_BASE_WORDS = "|".join(BASES)


def _listed(match: re.Match[str]) -> str:
    """Return the rows of a system of equations, separated by commas."""
    rows = (match[1] or match[2]).split("\\\\")
    return ", ".join(row.strip(" ,") for row in rows if row.strip())


def _mixed(match: re.Match[str]) -> str:
    whole, above, below = map(int, match.groups())
    return rf"\frac{{{whole * below + above}}}{{{below}}}"


_FORMULA_AFTER = re.compile(r"\s*(?:[A-Za-z(^_]|\\(?:frac|sqrt|sin|cos|tan|theta|mathrm\s*\{\w\}))")
_LETTER = re.compile(r"(?<![\\A-Za-z{])[A-Za-z](?![A-Za-z}])")


def _unit(match: re.Match[str]) -> str:
    r"""Return a space instead of a styled unit, or the text itself in a formula. In ``\frac{1}{2}
    \mathrm{m} v^2`` the styled letter is a variable.
    """
    if re.search(r"\\(?:boldsymbol|bm|underline|mathit|mathbf)", match[0]):
        return match[0]  # a letter in these is a variable
    if not re.fullmatch(rf"\s*{STYLE}\s*\{{\s*\w+\s*\}}\s*", match[0]):
        return " "
    before, after = match.string[: match.start()], match.string[match.end() :]
    if _FORMULA_AFTER.match(after) or _LETTER.search(before):
        return match[0]
    return " "


def _base(match: re.Match[str]) -> str:
    word = match[1] or match[2]
    return f"_{{{BASES.get(word, word)}}}"


def _recurring(match: re.Match[str]) -> str:
    whole, fixed, recurring = match.groups("0")
    nines = 10 ** len(recurring) - 1
    above = int(f"0{whole}{fixed}") * nines + int(recurring)
    value = Fraction(above, 10 ** len(fixed) * nines)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


RULES: tuple[tuple[str, re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (name, re.compile(pattern), replacement)
    for name, pattern, replacement in (
        ("negative thin space", r"\\!\s*", ""),  # 10,\!080
        ("bold", r"(?<![\w)}*])\*\*(?![\s*])([^*]+?)\*\*(?!\*)", r" \1 "),
        ("empty box", r"\\(?:h|v)?phantom\s*\{[^{}]*\}", ""),
        ("braces of a set", r"(?<![\w\\}^])\{([^{}\\]*,[^{}\\]*)\}", r"\\{\1\\}"),
        ("left brace", r"\\lbrace(?![A-Za-z])", r"\\{"),
        ("right brace", r"\\rbrace(?![A-Za-z])", r"\\}"),
        (
            "angle brackets",
            r"\\langle(?![A-Za-z])([^()]*?,[^()]*?)\\rangle(?![A-Za-z])",
            r"(\1)",
        ),  # without a comma, angle brackets are a mean
        ("a star that is escaped", r"\\\*", "*"),
        ("colon", r"\\colon(?![A-Za-z])", ":"),
        ("rows of cases", _CASES, _listed),
        (
            "a styled argument",
            rf"(\^|_|\\sqrt|\\[dtc]?frac)\s*{STYLE}\s*\{{([^{{}}]*)\}}",
            r"\1{\2}",
        ),
        (
            "a styled unit after a number",
            rf"(?:(?<=[\d}}])|(?<=\\pi))(?:\s|~|\\[,;: "
            rf"])*(?:\\mu\s*)?{STYLED_UNIT}(?:{TIMES}*{STYLED_UNIT})*",
            _unit,
        ),
        ("styled text", rf"{STYLE}\s*\{{([^{{}}]*)\}}", r" \1 "),
        ("delimiters", r"(?<!\\)\\[()\[\]]|\\?\$", " "),
        ("per cent", r"\\%", "%"),
        ("comma between thousands", r"(?<=\d)\{,\}(?=\d{3}(?!\d))", ""),
        ("comma in braces", r"\{,\}", ","),
        ("no delimiter", r"\\(?:left|right|[bB]igg?[lr]?)\s*\.", " "),
        ("sizes", r"\\(?:left|right|displaystyle|bigl?|bigr|Bigl?|Bigr)(?![A-Za-z])", ""),
        ("thin space between thousands", r"(?<=\d)\\[,;: ]\s*(?=\d{3}(?!\d))", ""),  # 1\,080
        ("space", r"(?<!\\)\\(?:[,;: ]|q?quad(?![A-Za-z]))|~", " "),
        (
            "thousands apart",
            r"(?<![\d.,/^_{])[1-9]\d{0,2}(?: \d{3})+(?![\d/])",
            lambda match: match[0].replace(" ", ""),
        ),  # 1 080
        ("array", r"[\[(]?\s*\\begin\{array\}\{[^{}]*\}", r"\\begin{pmatrix}"),
        ("end of an array", r"\\end\{array\}\s*[\])]?", r"\\end{pmatrix}"),
        ("new row", r"\\cr(?![A-Za-z])", r"\\\\"),
        (
            "brackets turned outwards",
            r"\A\s*\]([^\[\]]*,[^\[\]]*)\[\s*\Z",
            r"(\1)",
        ),
        ("first bracket turned outwards", r"\A\s*\]([^\[\]]*,[^\[\]]*\])\s*\Z", r"(\1"),
        ("last bracket turned outwards", r"\A\s*\[([^\[\]]*,[^\[\]]*)\[\s*\Z", r"[\1)"),
        (
            "turned row",
            r"[\[(]([^\[\](),]*(?:,[^\[\](),]*)+)[\])]\s*\^\s*\{?\s*(?:T|\\top)\s*\}?",
            r"(\1)",
        ),
        ("brackets of a matrix", r"\\(begin|end)\{[bB]?matrix\}", r"\\\1{pmatrix}"),
        (
            "imaginary unit",
            r"(?<=\d)\s*(?:\\cdot\s*|\*\s*)?\bi(?![A-Za-z])|(?<=\d)\s+i(?![A-Za-z])",
            "i",
        ),
        ("fraction of digits", r"\\[dtc]?frac\s*(\d)\s*(\d)(?!\d)", r"\\frac{\1}{\2}"),
        (
            "fraction over a digit",
            r"\\[dtc]?frac\s*(\{(?:[^{}]|\{[^{}]*\})*\})\s*(\d)(?!\d)",
            r"\\frac\1{\2}",
        ),
        ("degree", r"\\degree(?![A-Za-z])", r"^\\circ "),
        ("styles of fractions", r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        ("or equal", r"\\(le|ge|ne)q(?:slant)?(?![A-Za-z])", r"\\\1 "),
        (
            "or equal, typed",
            r"(?<![<>=!])([<>!])=(?!=)",
            lambda match: {"<": r"\le ", ">": r"\ge ", "!": r"\ne "}[match[1]],
        ),
        ("equal or less", r"(?<=[\w)}])\s*=<\s*(?=[-\d\w\\])", r"\\le "),
        ("equal or greater", r"(?<=[\w)}])\s*=>\s*(?=[-\d\w\\])", r"\\ge "),
        ("less", r"\\lt(?![A-Za-z])", "<"),
        ("greater", r"\\gt(?![A-Za-z])", ">"),
        ("natural logarithm", r"\\log\s*_\s*\{?\s*e(?![A-Za-z])\s*\}?", r"\\ln "),
        ("logarithm to base ten", r"\\lg(?![A-Za-z])\s*", r"\\log_{10}"),
        ("logarithm of a number", r"\\log\s*_\s*\{?(\d+)\}?\s+(?=\d)", r"\\log_{\1}"),
        ("base of digits in brackets", r"(?<![\w})])\((\d+)\)(?=\s*_)", r"\1"),
        ("blackboard letter", r"\\mathbb\s*([A-Z])", r"\\mathbb{\1}"),
        (
            "degrees in words",
            r"(?i)(?<=\d)\s*degrees?\b(?!\s*[CF]|\s*celsius|\s*fahrenheit)",
            r"^\\circ ",
        ),
        ("empty set", r"\\(?:varnothing|oslash)(?![A-Za-z])", r"\\emptyset"),
        ("Python's power", r"(?<=[\w)}])\s*\*\*\s*(?=[\w(\\{-])", "^"),
        ("emphasis", r"\*\*(?!\s*[+.]\s*[\w(\\])|`", " "),
        ("quoted", r"""\A[ *_]*'([^']*)'[ *_]*\Z""", r"\1"),
        ("quotes around it", r"""\A[ \t\r\n*_"']+|(?<![ \t\r\n*_"^])[ \t\r\n*_"]+\Z""", ""),
        ("end of a sentence", r"(?<![.,;])[.。,;:]$", ""),
        ("space around it", r"\A\s+|(?<!\s)\s+\Z", ""),
        (
            "sign before it",
            r"\A(?:(?:=>?|\\(?:approx|therefore|implies|Rightarrow)(?![A-Za-z])|#{2,})\s*)+",
            "",
        ),
        ("degrees of temperature", r"\^\{?\\circ\s*\}?\s*[CF](?![A-Za-z])", ""),
        ("minus in words", r"(?i)(?:\b(?:minus|negative)\s*|负\s*)(?=[\d.(\\])", "-"),
        (
            "magnitude in words",
            _MAGNITUDE,
            _power_of_ten,
        ),
        ("two signs", r"\+\s*-(?=\s*[\d.(\\A-Za-z])", "-"),
        ("times in letters", r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r"\\times "),
        (
            "base in words",
            rf"(?<=\d)\s*(?:_\s*\{{?\s*({_BASE_WORDS})\s*\}}?|\(?\s*(?:in )?base[ "
            rf"-]({_BASE_WORDS}|\d+)\s*\)?)",
            _base,
        ),
        (
            "ratio in words",
            r"(?<![\d.])(?<!from )\d+(?:\s+to\s+\d+)+(?![\d.]|\s*[A-Za-z])",
            lambda match: re.sub(r"\s+to\s+", ":", match[0]),
        ),
        (
            "set-builder",
            r"\A\\?\{\s*([A-Za-z])\s*(?:\\mid|\||:)(?=[^{}]*(?:[<>]|\\(?:[lg]e|"
            r"in)(?![a-z])))(?=[^{}]*(?<![A-Za-z\\])\1(?![A-Za-z]))(.*?)\\?\}\Z",
            r"\2",
        ),
        # A time of day such as 2:10:30 is not a ratio.
        (
            "ratio",
            r"(?<![\d:.])(?!\d{1,2}:\d\d:\d\d(?!\d))\d{1,9}(?:\s*:\s*\d{1,9}){2,}(?![\d:.])",
            _ratio,
        ),
        (
            "dots of a recurring decimal",
            r"\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?",
            r"\\overline{\1\2\3}",
        ),
        (
            "recurring decimal",
            r"(?<!\d)(\d{0,9})\.(\d{0,9})\\overline\s*\{(\d{1,9})\}(?!\s*[\d.])",
            _recurring,
        ),
        (
            "scientific notation below a stroke",
            r"/\s*(\d+(?:\.\d+)?[eE][-+]?\d+)(?![\w.])",
            r"/(\1)",
        ),
        # In str(1e-05), LaTeX would read the e as Euler's number.
        (
            "scientific notation",
            r"(?<=\d)[eE]([-+]?\d{2,3}|\d)(?![\w.])|(?:(?<=\.\d)|(?<=\A1))[eE]([-+]?\d)(?![\w.])",
            _exponent,
        ),
        ("e of a program", r"(?i)\bmath\.e\b", "e"),
        ("pi of a program", r"(?i)\bmath\.pi\b", r"\\pi "),
        ("index in a command", r"_\s*\{\s*\\(max|min)\s*\}", r"_{\1}"),
        ("index of the sun", r"_\s*\{\s*\\odot\s*\}", "_{sn}"),
        ("index of the earth", r"_\s*\{\s*\\oplus\s*\}", "_{ea}"),
        ("infinity in letters", r"(?<![\\A-Za-z])inf(?:inity)?(?=\s*[,)\]])", r"\\infty "),
        ("function without a backslash", rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])", r"\\\1 "),
        # LaTeX reads \sqrt13 as the root of 1, and 2^10 as 2^1 0.
        ("root of a number", r"\\sqrt\s*(\[\d+\])?\s*(\d+(?:\.\d+)?)", r"\\sqrt\1{\2}"),
        (
            "mixed number before a letter",
            r"(?<![\d.])(\d+)\s+(\d+)\s*/\s*(\d+)(?=\s*[A-Za-z(\\])(?!\s+[A-Za-z]{2})",
            _mixed,
        ),
        (
            "fraction before a letter",
            r"(?<![\d.)}/^])(\d+)/(\d+)(?=\s+[A-Za-z(\\]|\s*\\(?:pi|sqrt|ln|log|sin|cos))",
            r"\\frac{\1}{\2}",
        ),
        (
            "mixed fraction before a letter",
            r"(?<![\d.}])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}(?=\s*[a-z])(?!\s+[a-z]{2})",
            _mixed,
        ),
        ("sine of degrees", r"(\d+)\s*\^\s*\{?\s*\\circ\s*\}?", _in_radians),
        ("mixed number", r"(?<![\d.])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])", r"\1\\frac{\2}{\3}"),
        (
            "unit vectors",
            r"\\hat\s*(?:\{\s*(?:\\mathbf\s*\{)?\s*([ijk])\s*\}?\s*\}|([ijk])(?![A-Za-z]))",
            r" \1\2 ",
        ),
        ("modulus", r"(?<=\\equiv)([^,;]*?)\\(?:bmod|mod)\s*\{?(\d+)\}?", r"\1\\pmod{\2}"),
        ("argument in brackets", r"(\^|\\sqrt)\s*\(([^()]*)\)", r"\1{\2}"),
        ("argument in brackets, outside", r"(\^|\\sqrt)\s*\(([^()]*)\)", r"\1{\2}"),
        (
            "words in brackets after a number",
            r"(?<=\d)(?:\s+\(\s*([^\W\d_]{2,}(?:[ -][^\W\d_]+)*)|\s*\(([^\x00-\x7f]+))\s*\)"
            r"(?!\s*[\^_!'])",
            r" \1\2 ",
        ),  # "9 (apples)"
        (
            "per cent in words",
            r"(?<=[\d})])\s*(?:(?i:per\s?cent(?:age)?)|pct|PCT)(?![A-Za-z])\.?",
            "%",
        ),
        ("power of a number", r"\^\s*(-?\d+(?:\.\d+)?)", r"^{\1}"),
    )
)
"""The replacements of :func:`clean`, in order: name, pattern, replacement."""


def clean(text: str, locale: str = "en") -> str:
    """Return the text after applying all rules. Each rule takes linear time or reads at most nine
    digits. In locale ``de``, ``1.250,5`` is 1250.5.
    """
    text = with_single_spaces(typed(text))
    if locale == "de":
        text = re.sub(r"(?<=\d)\.(?=\d{3}(?!\d))", "", text)
        text = re.sub(r"(?<=\d),(?=\d)", ".", text)
    for _, pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return with_single_spaces(text)
