"""Convert Unicode signs to LaTeX or to the signs of a keyboard, and find the brackets of a text."""

import itertools
import re
import unicodedata

_SIGNS = str.maketrans(
    {
        **dict(
            zip(
                "０１２３４５６７８９＋－＝，．（）％：＜＞｛｝；∶⁄",
                "0123456789+-=,.()%:<>{};:/",
                strict=True,
            )
        ),
        **dict.fromkeys("\u2212\u2013\u2014\u2010\u2011", "-"),
        "！": "!",
        "⟨": r"\langle ",
        "⟩": r"\rangle ",
        "⌊": r"\lfloor ",
        "⌋": r"\rfloor ",
        "⌈": r"\lceil ",
        "⌉": r"\rceil ",
        **dict.fromkeys("\u00a0\u2009\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", None),
        **dict.fromkeys("€£¥₹₽₩", " "),
        "÷": "/",
        "°": r"^\circ ",
        "×": r"\times ",
        "·": r"\cdot ",
        "⋅": r"\cdot ",
        "π": r"\pi ",
        "∞": r"\infty ",
        "√": r"\sqrt ",
        **dict.fromkeys("≤⩽≦", r"\le "),
        **dict.fromkeys("≥⩾≧", r"\ge "),
        **dict.fromkeys("∅øØ", r"\emptyset "),
        "≠": r"\ne ",
        "≈": r"\approx ",
        "±": r"\pm ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "∠": r"\angle ",
        **{
            letter: rf"\{(name if letter.islower() else name.capitalize())} "
            for letter in "αβγδεζηθικλμνξρστυφχψωΓΔΘΛΞΣΠΥΦΨΩ"
            for name in [
                unicodedata.name(letter).rpartition(" ")[2].lower().replace("lamda", "lambda")
            ]
        },
        **{letter: rf"\mathbb{{{plain}}} " for letter, plain in zip("ℝℤℕℚℂ", "RZNQC", strict=True)},
        **{letter: f"_{{{digit}}}" for digit, letter in enumerate("₀₁₂₃₄₅₆₇₈₉")},
    }
)
_SUPERSCRIPT = re.compile("[⁰¹²³⁴-⁹⁺⁻ⁿ]+")
_VULGAR = re.compile("[¼-¾⅐-⅞]")


def _vulgar(match: re.Match[str]) -> str:
    above, _, below = unicodedata.normalize("NFKC", match[0]).partition("⁄")
    beside = match.start() and match.string[match.start() - 1].isdigit()
    return f" {above}/{below}" if beside else rf"\frac{{{above}}}{{{below}}}"


def typed(text: str) -> str:
    """Return the text in the signs of a keyboard."""
    if not text.isascii():
        text = _VULGAR.sub(_vulgar, text)
        text = _SUPERSCRIPT.sub(
            lambda run: "^{" + unicodedata.normalize("NFKC", run[0]).replace("\u2212", "-") + "}",
            text,
        )
    return text.translate(_SIGNS)


def with_single_spaces(text: str) -> str:
    """Return the text with the first sign of each run of white space. On a long run, patterns with
    a repeated space take quadratic time.
    """
    return re.sub(r"(\s)\s+", r"\1", text)


def depths(text: str) -> list[int]:
    """Return the bracket depth before each character, and at the end."""
    return list(
        itertools.accumulate(((char in "([{") - (char in ")]}") for char in text), initial=0)
    )


def split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    commas = [
        index
        for index, (char, depth) in enumerate(zip(text, depths(text), strict=False))
        if char == "," and depth == 0
    ]
    return [text[start + 1 : end] for start, end in itertools.pairwise([-1, *commas, len(text)])]
