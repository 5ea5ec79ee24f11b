"""Convert Unicode signs to LaTeX or to the signs of a keyboard, and find the brackets of a text."""

import re
import unicodedata


def table(text: str) -> dict[str, str]:
    """Return the entries ``key=value`` of a text."""
    return dict(entry.split("=") for entry in text.split())


# Each sign before an = stands for the command behind it.
_COMMANDS = r"""
⟨=\langle ⟩=\rangle ⌊=\lfloor ⌋=\rfloor ⌈=\lceil ⌉=\rceil °=^\circ ×=\times ·⋅=\cdot π=\pi ∞=\infty
√=\sqrt ≤⩽≦=\le ≥⩾≧=\ge ∅øØ=\emptyset ≠=\ne ≈=\approx ±=\pm ∪=\cup ∩=\cap ∈=\in ∠=\angle
"""
_PLAIN_SIGNS = {
    "\u2212\u2013\u2014\u2010\u2011": "-",
    "\u200b\u200c\u200d\u2060\ufeff": "",
    "€£¥₹₽₩": " ",
    "∶": ":",
    "⁄÷": "/",
}
_FULL_WIDTH = "０１２３４５６７８９＋－＝，．（）％：＜＞｛｝；！\u00a0\u2009\u202f\u3000"
_GREEK = "αβγδεζηθικλμνξρστυφχψωΓΔΘΛΞΣΠΥΦΨΩ"


def _plain(text: str) -> str:
    """Return the keyboard's signs for variants of them: 2 for ², ₂ and ２."""
    return unicodedata.normalize("NFKC", text)


def _greek(letter: str) -> str:
    name = unicodedata.name(letter).rpartition(" ")[2].lower().replace("lamda", "lambda")
    return rf"\{name} " if letter.islower() else rf"\{name.capitalize()} "


def _replacements() -> dict[int, str]:
    """Return the signs that :func:`typed` replaces."""
    written: dict[str, str] = {}
    for signs, plain in _PLAIN_SIGNS.items():
        written |= dict.fromkeys(signs, plain)
    for signs, command in table(_COMMANDS).items():
        written |= dict.fromkeys(signs, f"{command} ")
    for sign in _FULL_WIDTH:
        written[sign] = _plain(sign)
    for letter in _GREEK:
        written[letter] = _greek(letter)
    for letter in "ℝℤℕℚℂ":
        written[letter] = rf"\mathbb{{{_plain(letter)}}} "
    for digit in "₀₁₂₃₄₅₆₇₈₉":
        written[digit] = f"_{{{_plain(digit)}}}"
    return str.maketrans(written)


_SIGNS = _replacements()
_SUPERSCRIPT = re.compile("[⁰¹²³⁴-⁹⁺⁻ⁿ]+")
_VULGAR = re.compile("[¼-¾⅐-⅞]")


def _vulgar(match: re.Match[str]) -> str:
    above, _, below = _plain(match[0]).partition("⁄")
    before = match.string[match.start() - 1 : match.start()]
    return f" {above}/{below}" if before.isdigit() else rf"\frac{{{above}}}{{{below}}}"


def _superscript(match: re.Match[str]) -> str:
    digits = _plain(match[0]).replace("\u2212", "-")
    return f"^{{{digits}}}"


def typed(text: str) -> str:
    """Return the text in the signs of a keyboard."""
    if not text.isascii():
        text = _VULGAR.sub(_vulgar, text)
        text = _SUPERSCRIPT.sub(_superscript, text)
    return text.translate(_SIGNS)


def with_single_spaces(text: str) -> str:
    """Return the text with the first sign of each run of white space. On a long run, patterns with
    a repeated space take quadratic time.
    """
    return re.sub(r"(\s)\s+", r"\1", text)


def depths(text: str) -> list[int]:
    """Return the bracket depth before each character, and at the end."""
    depth = 0
    found = [depth]
    for char in text:
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        found.append(depth)
    return found


def split(text: str, signs: str = ",") -> list[str]:
    """Split at these signs outside brackets."""
    parts = []
    start = 0
    for index, depth in enumerate(depths(text)[:-1]):
        if depth == 0 and text[index] in signs:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return parts
