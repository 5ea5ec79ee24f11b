"""Write a text in one LaTeX-like spelling: the signs of a keyboard, no styling, no delimiters.

A rule changes how a text looks. It never drops a sign that carries meaning.
"""

import re
import unicodedata

LOCALES = ("en", "de")  # how numbers are written: 1,250.5 or 1.250,5
_STYLE = (
    r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf)|mbox|operatorname|emph|bm|boldsymbol)\*?"
)
_GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
# The characters of units in Chinese: 个, 平方厘米, 小时
_HAN_UNITS = (
    "个只人元角分本棵千克吨升毫米厘平方立公里小时钟天年月日岁名位"
    "页辆台件条张块次瓶箱度亩顷套双组盒袋颗朵支把种"
)
_DEGREES = r"\^\s*\{?\s*\\circ\s*\}?"
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sqrt|log|ln|exp|pi|infty"
# Each sign before an = stands for what follows.
_SIGNS = r"""
−–—‐‑=- ⁄∕÷=/ ×=\times ·⋅=\cdot ∞=\infty √=\sqrt ≤⩽≦=\le ≥⩾≧=\ge ≠=\ne ≈=\approx ±=\pm ∪=\cup
∈=\in ∅Ø=\emptyset °=^\circ ⌊=\lfloor ⌋=\rfloor ⌈=\lceil ⌉=\rceil ℝ=\mathbb{R} ℤ=\mathbb{Z}
π=\pi α=\alpha β=\beta γ=\gamma δ=\delta θ=\theta λ=\lambda μ=\mu ρ=\rho σ=\sigma φ=\phi ω=\omega
Δ=\Delta Ω=\Omega ٫=. ٬=,
"""
_PAIRS = [entry.split("=") for entry in _SIGNS.split()]
_TABLE = str.maketrans(
    {sign: plain if plain in "-/.," else f"{plain} " for signs, plain in _PAIRS for sign in signs}
)
_PLAIN = re.compile(r"(?a)\\?\$?(-?(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d+)?)")  # needs no rule
_SMALL = re.compile("[⁰¹²³⁴-⁹⁺⁻ⁿ]+|[¼-¾⅐-⅞]")


def _small(match: re.Match[str]) -> str:
    """Return a power, or a fraction in one sign."""
    above, slash, below = unicodedata.normalize("NFKC", match[0]).partition("⁄")
    return rf"\frac{{{above}}}{{{below}}}" if slash else f"^{{{above}}}"


_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # Numbers in groups of three digits: 10,\!080, 10{,}080, 10\,080.
        (r"\\!\s*", ""),
        (r"\{,\}", ","),
        # White space, sizes of brackets, styles, delimiters of mathematics, currency, Markdown.
        (r"(?<!\\)\\[,;: >]|\\q?quad(?![A-Za-z])|~", " "),
        (r"\\(?:left|right|[bB]igg?)[lrm]?(?![A-Za-z])\s*\.?(?!\d)|\\displaystyle", ""),
        (rf"{_STYLE}\s*\{{([^{{}}]*)\}}", r" \1 "),
        (r"(?<!\\)\\[()\[\]]|\\?\$|[€£¥₹\u200b-\u200d\u2060\ufeff]", " "),
        (r"\\([%#&_*])", r"\1"),
        (r"(?<=[\w)}])\s*\*\*\s*(?=[\w(\\{-])(?![^*]*\*\*)", "^"),  # Python's power
        (r"\*\*|`|^#+|^[\s*_\"]+|[\s*_\"]+$", " "),
        # Sets, fractions, matrices and systems of equations.
        (r"(?<![\w\\}^])\{([^{}\\]*[,;][^{}\\]*)\}", r"\\{\1\\}"),  # a set without its backslashes
        (r"\A\s*\\?\{\s*[a-z]\s*(?:\\mid|\||:)([^{}]*(?:[<>]|\\[lg]e)[^{}]*?)\\?\}[\s.]*\Z", r"\1"),
        (r"\\[dtc](frac|binom)(?![A-Za-z])", r"\\\1"),
        (rf"\\frac\s*(?:(\w)|{_GROUP})\s*(\w)(?!\d)", r"\\frac{\1\2}{\3}"),
        (r"\\begin\{cases\}(.*?)\\end\{cases\}", lambda m: m[1].replace(r"\\", ", ")),
        (r"\\(begin|end)\{(?:array\}\s*\{[^{}]*|array|(?:b|B|small)?matrix)\}", r"\\\1{pmatrix}"),
        (r"[\[(]\s*(\\begin\{pmatrix\}.*?\\end\{pmatrix\})\s*[\])]", r"\1"),
        # Relations, names of constants and functions.
        (r"<=|\\le(?:q(?:slant)?)?(?![A-Za-z])", r"\\le "),
        (r">=|=>|\\ge(?:q(?:slant)?)?(?![A-Za-z])", r"\\ge "),
        (r"\\([lg])t(?![A-Za-z])", lambda m: "<" if m[1] == "l" else ">"),
        (r"!=|\\neq(?![A-Za-z])", r"\\ne "),
        (r"\\(?:varnothing|oslash)(?![A-Za-z])", r"\\emptyset"),
        # The side A B = 5, and \triangle A B C
        (r"\b([A-Z]) ([A-Z])(?: ([A-Z]))?(?=\s*=)", r"\1\2\3"),
        (
            r"(\\(?:triangle|angle|overline|overrightarrow|vec)\b[\s{]*[A-Z])"
            r" ([A-Z])\b(?: ([A-Z])\b)?",
            r"\1\2\3",
        ),
        (r"\\mathbb\s*([A-Z])", r"\\mathbb{\1}"),
        (r"(?<![\\A-Za-z])inf(?:inity)?(?=\s*(?:[,;)\]]|\Z))", r"\\infty "),
        (rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])", r"\\\1 "),
        # 72(个), 72 (clips)
        (rf"(?<=[\d}}])(?:\s*\(([{_HAN_UNITS}]+)\)|\s+\(([a-z]{{3,}}(?: [a-z]+)*)\))", r" \1\2"),
        # Numbers: 10 080, 10,080, -3 in words, 5e-3, 6.63 x 10^3, 2 1/3; roots and powers.
        (r"(?<![\d.,/^_{])([1-9]\d{0,2}(?: \d{3})+)(?![\d/])", lambda m: m[1].replace(" ", "")),
        # 10,080, and 12,50,000 of India
        (
            r"(?<![\d.,])([1-9]\d{0,2}(?:,\d{3})+|[1-9]\d?(?=[\d,]*,0)(?:,\d\d)+,\d{3})(?![\d,])",
            lambda m: m[1].replace(",", ""),
        ),
        (r"\A\s*(?:(?:USD?|EUR|GBP|CHF|CNY|INR|Rs\.?)\s*|(?i:about|approx\.|ca\.)\s+)(?=\d)", ""),
        (r"(?i)\b(?:minus|negative)\s+(?=[\d.(\\])|负(?=\d)", "-"),
        (r"(?<=[\d.])[eE]([-+]?\d{1,3})(?![\w.])", r"\\cdot 10^{\1}"),
        (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r"\\times "),
        (r"(?<![\d.])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])", r"\1\\frac{\2}{\3}"),
        (r"(?<![\w.}])(\d+)/(\d+)(?=\s*[A-Za-z\\])", r"\\frac{\1}{\2}"),  # 1/2 x
        (r"\\sqrt\s*(\[\d+\])?\s*(\d+(?:\.\d+)?)", r"\\sqrt\1{\2}"),
        (r"(\\sqrt|\^)\s*\(([^()]*)\)", r"\1{\2}"),
        (r"\^\s*(-?\d+(?:\.\d+)?)", r"^{\1}"),
        (rf"(\\(?:sin|cos|tan|cot|sec|csc)\s*\(?)(\d+)\s*{_DEGREES}", r"\1(\\frac{\2\\pi}{180})"),
        (rf"\\degree(?![A-Za-z])|{_DEGREES}(?:\s*[CF](?![A-Za-z]))?", " "),
        (r"\A(?:\s|=>?|\\approx(?![A-Za-z])|:)+|(?:[\s。,;:\"]|(?<!\.)\.{1,2}(?!\.))+\Z", ""),
        (rf"\A{_GROUP}\Z", r"\1"),  # of \boxed{{72}}
    )
]


def clean(text: str, locale: str = "en") -> str:
    """Return the text after all rules. In locale ``de``, ``1.250,5`` is 1250.5."""
    if locale == "en" and (plain := _PLAIN.fullmatch(text)):
        return plain[1].replace(",", "")
    if not text.isascii():
        text = re.sub(r"\d", lambda digit: str(int(digit[0])), text)  # Arabic, Devanagari, …
        text = _SMALL.sub(_small, text).translate(_TABLE)
        text = unicodedata.normalize("NFKC", text).translate(_TABLE)
    text = re.sub(r"(\s)\s+", r"\1", text)
    if locale == "de":
        # Not 0.125. LaTeX writes 3{,}14.
        text = re.sub(
            r"(?<![\d.,])[1-9]\d{0,2}(\.\d{3})+(?!\d)", lambda m: m[0].replace(".", ""), text
        )
        text = re.sub(r"(?<=\d)(?:,|\{,\})(?=\d)", ".", text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


def squeezed(text: str) -> str:
    """Return a text without white space, except between two letters or digits: 7 2 is not 72."""
    text = re.sub(r"(?<!\w) | (?!\w)", "", " ".join(text.split()))
    return re.sub(r"([_^])\{(\w)\}", r"\1\2", text)
