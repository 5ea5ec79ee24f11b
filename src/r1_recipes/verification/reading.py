r"""What a text says: a gold and an answer, each reduced to expressions that math-verify can read as one value.

An answer is model output, so it is reduced to one candidate first (a hedge, a chain or a list of guesses is not an answer). Everything
here is linear in the length of the text, or reads no more than ``MAX_ANSWER_CHARS`` of it.
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from r1_recipes.prompts.formats import boxed_spans, one_spelling_of_boxes
from r1_recipes.verification.numbers import Value, read_value

MAX_ANSWER_CHARS = 1000
"""A longer answer is wrong unread: the longest gold of MATH, GSM8K and OpenR1-Math that is one expression is far shorter, and the
parsers take time that grows faster than the length (2,000 nested fractions recurse until they die)."""

MAX_GOLD_WORDS = 12
"""More words without a box or ``####`` are a solution or a proof, of which no part is known to be the gold."""

GOLDS_REMEMBERED = 16_384
"""Golds whose reading is kept: most runs have fewer, so that each is read once."""

_ANCHOR = re.compile(r"####|\banswer[\s*_]*(?:is\b|:|：)|答案(?:是|为|:|：)", re.IGNORECASE)
# A sentence after the answer's own: "I hope it is correct." One with a number may take the answer back, and stays.
_AFTERTHOUGHT = re.compile(r"(?<=\S)[.。]\s+[^\d\W][^\d]*\Z")
_CLOSING_LINES = re.compile(r"(?:\s*(?:\$\$|\\\]|\\\)))+\s*\Z")
_SIGNS = str.maketrans(
    {
        **dict(zip("０１２３４５６７８９＋－＝，．（）％：", "0123456789+-=,.()%:", strict=True)),
        **dict.fromkeys("\u2212\u2013\u2014\u2010\u2011", "-"),
        **dict.fromkeys("\u00a0\u2009\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", None),
        **dict.fromkeys("€£¥₹₽₩", " "),
        "×": r"\times ",
        "÷": "/",
        "·": r"\cdot ",
        "⋅": r"\cdot ",
        "π": r"\pi ",
        "∞": r"\infty ",
        "°": r"^\circ ",
        "√": r"\sqrt ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
        "∅": r"\emptyset ",
        "±": r"\pm ",
        "∪": r"\cup ",
    }
)
_SUPERSCRIPT = re.compile("[⁰¹²³⁴-⁹⁺⁻]+")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_STYLED = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|emph)\s*\{([^{}]*)\}")
_DELIMITER = re.compile(r"(?<!\\)\\[()\[\]]|\\?\$")
_IGNORED = re.compile(r"\\(?:left|right|displaystyle|bigl?|bigr|Bigl?|Bigr)(?![A-Za-z])")
_THIN_SPACE = re.compile(r"(?<!\\)\\[,!;: ]|~")
_OR_EQUAL = re.compile(r"\\(le|ge|ne)q(?:slant)?(?![A-Za-z])")  # \leq is \le
_EMPHASIS = re.compile(r"(?<![\w)}])\*\*|\*\*(?![\w(\\{-])|`")
_FUNCTIONS = "arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|sqrt|log|ln|exp|pi|infty"
_BARE_FUNCTION = re.compile(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])")
_MEMBER = re.compile(r"^[A-Za-z]\s*\\in(?![A-Za-z])\s*")  # "x \in [1, 2]"
_SCIENTIFIC = re.compile(r"(?<=\d)[eE]([-+]?\d{1,3})(?![\w.])")  # str(1e-05), which LaTeX would read as Euler's number
_THOUSANDS = re.compile(r"(?<![\d.,])([1-9]\d{0,2})((?:,\d{3})+)(?![\d,])")
_MIXED = re.compile(r"(?<![\d.])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])")
# Letters that no command owns. As a word they may carry an exponent (cm^2).
_LETTERS = re.compile(r"(?<![A-Za-z\\])(?<!\\begin\{)(?<!\\end\{)([A-Za-z]{2,})(?:(?:\s*\^\{?[23]\}?|[23])(?![\d.}]))?")
# Two letters, or three beside a sign or a digit, are a product of variables unless they are one of these.
_SHORT_WORDS = frozenset(
    (
        *("mm", "cm", "km", "ft", "in", "yd", "mi", "oz", "lb", "lbs", "kg", "mg", "ml", "cc", "hr", "hrs", "min", "sec", "mph"),
        *("kph", "am", "pm", "usd"),
        *("is", "of", "to", "at", "on", "by", "an", "as", "it", "or", "no", "so", "we", "he", "she", "the", "and", "for", "are"),
        *("was", "per", "all", "out", "if", "up", "us", "be", "do", "go", "my", "me", "its", "has", "had", "her", "his"),
    )
)
_SQUARE_METRES = re.compile(r"(?:(?<=\s)m\s*\^\{[23]\}|(?<=\d)m[23])\s*$")
_METRES = re.compile(r"(?<=[\d\s])m\s*(?:\^\{[23]\}|[23])\s*$")
_FOREIGN = re.compile(r"[^\x00-\x7f]+")
_HEDGE = re.compile(r"\b(?:or|nor|not|either|neither|maybe|perhaps)\b|\?|？|或|不是", re.IGNORECASE)
# What an answer says of its number that makes it another one; a gold's own prose may say it too.
_QUALIFIER = re.compile(
    r"\b(?:(?:less|more|greater|fewer) than|squared|cubed|(?:square |cube )?root|factorial|half of|twice)\b", re.IGNORECASE
)
_MINUS = re.compile(r"(?:\b(?:minus|negative)\s+|负\s*)(?=[\d.(\\])", re.IGNORECASE)
_MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "百": 2, "千": 3, "万": 4, "亿": 8}
_MAGNITUDE = re.compile(r"(?<=\d)\s*(?:(hundred|thousand|million|billion|trillion)\b|([百千万亿]))", re.IGNORECASE)
_RATIO = re.compile(r"(?<![\d:.])\d{1,9}(?:\s*:\s*\d{1,9}){2,}(?![\d:.])")
_RECURRING = re.compile(r"(?<!\d)(\d{0,9})\.(\d{0,9})\\overline\s*\{(\d{1,9})\}")
_UNIT = re.compile(  # "\text{ m/s}" after a number; "\text{or}" is none
    r"(?<=[\d}])(?:\s|~|\\[,;: ])*\\(?:text|textrm|mathrm|mbox)\s*\{\s*(?!(?:or|an?|no)\s*\})"
    r"[A-Za-z]{1,2}(?:/[A-Za-z]{1,3})?\.?\s*\}(?:\^\{?[23]\}?)?"
)
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_SEVERAL = re.compile(r"[,;]|\\(?:pm|mp|cup|cap|begin|in|\{)(?![A-Za-z])|\b(?:or|and)\b")
_JOINT = re.compile(r"\s*(?:[,;]\s*)?\b(?:and|or)\b\s*|\s*;\s*")
_RELATION = re.compile(r"[<>]|\\(?:le|ge|leq|geq|lt|gt|ne|neq|in|to|sim)(?![A-Za-z])|\\(?:right|left)arrow")
_EQUALS = re.compile(r"(?<![<>!])=|\\approx(?![A-Za-z])")
# What may stand left of an equals sign without being a second value: x, x_1, f(2), (x, y), \angle A, total cost.
_UNKNOWN = re.compile(r"\s*(?:[A-Za-z]\w*'?\([^()]*\)|(?=[^\d]*[A-Za-z])[^\d=]+(?:_\{?\d+\}?)?)\s*")
# Towers of powers and factorials: each would cost a worker its whole time limit, and no plain gold is answered with one.
_TOWER = re.compile(r"\^[\s{(]*\d+[\s})]*\^|\^\{?-?\d{5,}|\d{5,}\s*!|![\s)}]*!")
_UNSEPARATED = re.compile(
    r"(?:[\d.]|(?<!matrix)\})\s+[\d.]|\d_|\.\.|%\s*[^\s)}]"
)  # two numbers with nothing, or nothing known, between them
_BASE = re.compile(r"[\dA-F]+_\{?(\d+)\}?")
_ALLOWED = re.compile(r"[\w\s\\{}()\[\]+\-*/^.%!|,=<>]*", re.ASCII)
_STRANGE = frozenset(("Nd", "No", "Nl", "Cs", "Cc"))
_COMMANDS = frozenset(
    "\\" + name
    for name in (
        *("frac", "cdot", "times", "div", "sqrt", "pi", "infty", "circ", "degree", "approx", "binom", "angle"),
        *("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "log", "ln", "exp"),
        *("alpha", "beta", "gamma", "theta", "lambda", "mu", "phi", "omega"),
    )
)


_COLLECTIONS = frozenset(("\\{", "\\}", "\\\\", "\\cup", "\\pm", "\\begin", "\\end"))


@dataclass(frozen=True)
class Gold:
    """A gold, reduced: its expression, whether it holds several values, and what it is made of."""

    text: str
    several: bool
    relations: int
    commands: frozenset[str]
    variables: frozenset[str]
    qualifiers: frozenset[str]
    words: str | None = None  # "\text{Evelyn}": a gold that is words, compared as words
    value: Value | None = None  # where the gold is a number that can be compared without a parser


def final_answer(text: str) -> str | None:
    r"""The final answer of a whole completion, or ``None`` where it commits to none.

    The last ``\boxed{…}``, unless boxes with other contents contradict it; without a box what follows the last "answer is",
    "answer:" or ``####``; else the last line where that is nothing but one expression. Linear in the length.
    """
    text = one_spelling_of_boxes(text)
    if "\\boxed" in text:
        boxes = {text[start:end].strip() for start, end in boxed_spans(text)}
        return boxes.pop() if len(boxes) == 1 else None
    *_, anchor = [None, *_ANCHOR.finditer(text)]
    if anchor is not None:
        line = next((line for line in text[anchor.end() :].splitlines() if line.strip(" \t*_:：$\\[]()")), "")
        return _AFTERTHOUGHT.sub("", line[:MAX_ANSWER_CHARS]).strip(" \t*_:：") or None
    line = _CLOSING_LINES.sub("", text[-MAX_ANSWER_CHARS:]).rstrip().rpartition("\n")[2]
    cleaned = _clean(line)
    return line if cleaned and "\0" not in _marked(cleaned) else None


def _typed(text: str) -> str:
    """Text in the signs of a keyboard."""
    if not text.isascii():
        text = _VULGAR.sub(lambda char: f" {unicodedata.normalize('NFKC', char[0]).replace('⁄', '/')}", text)
        text = _SUPERSCRIPT.sub(lambda run: "^{" + unicodedata.normalize("NFKC", run[0]).replace("\u2212", "-") + "}", text)
    return text.translate(_SIGNS)


def _clean(text: str) -> str:
    """Text with wrappers, styling, currency signs and typographic variants taken off, so that one LaTeX-like spelling is left."""
    text = _UNIT.sub(" ", _typed(text))
    text = _STYLED.sub(r" \1 ", text)
    text = _DELIMITER.sub(" ", text).replace("\\%", "%").replace("{,}", ",")
    text = _IGNORED.sub("", text)
    text = re.sub(r"(?<=\d)(?:\\[,!;: ])(?=\d{3}(?!\d))", ",", text)  # 1\,080
    text = _THIN_SPACE.sub(" ", text)
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = _OR_EQUAL.sub(r"\\\1", text)
    text = _EMPHASIS.sub(" ", text).replace("**", "^").strip(" \t\r\n*_\"'")
    text = re.sub(r"[.。,;:]+$", "", text).strip()
    text = re.sub(r"\A(?:(?:=|\\approx(?![A-Za-z])|#{2,})\s*)+", "", text)
    text = re.sub(r"\^\{?\\circ\s*\}?\s*[CF](?![A-Za-z])", "", text)  # degrees of temperature
    text = _MAGNITUDE.sub(lambda word: f"\\cdot 10^{{{_MAGNITUDES[(word[1] or word[2]).lower()]}}}", _MINUS.sub("-", text))
    text = _RECURRING.sub(_fraction, _RATIO.sub(_tuple, text))
    text = _SCIENTIFIC.sub(r"\\cdot 10^{\1}", text)
    text = _BARE_FUNCTION.sub(r"\\\1 ", text)
    text = re.sub(r"\\sqrt\s*(\d+(?:\.\d+)?)", r"\\sqrt{\1}", text)  # which LaTeX reads as the root of the first digit alone
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    # LaTeX reads 2^10 as 2^1 0; whoever writes it means 2^{10}.
    text = re.sub(r"(\^|\\sqrt)\s*\(([^()]*)\)", r"\1{\2}", text)
    text = _MEMBER.sub("", text)
    return re.sub(r"\^\s*(-?\d+(?:\.\d+)?)", r"^{\1}", text)


def _fraction(match: re.Match[str]) -> str:
    """A recurring decimal as a fraction."""
    whole, fixed, recurring = match.groups()
    ends = 10 ** len(fixed)
    upper = int((whole or "0") + fixed) * (10 ** len(recurring) - 1) + int(recurring)
    value = Fraction(upper, ends * (10 ** len(recurring) - 1))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _tuple(match: re.Match[str]) -> str:
    """A ratio of three or more parts in lowest terms, as a tuple: math-verify would divide them one after the other."""
    parts = [int(part) for part in match[0].split(":")]
    divisor = math.gcd(*parts) or 1
    return f"({', '.join(str(part // divisor) for part in parts)})"


def _marked(text: str, variables: frozenset[str] | None = None) -> str:
    r"""``text`` with ``\0`` in the place of its prose.

    Args:
        text: cleaned.
        variables: single letters that the gold has; of an answer to a gold without any, all letters that stand together are a word.
            ``None``: this is the gold.
    """

    def mark(match: re.Match[str]) -> str:
        run = match[1]
        if variables is not None and (not variables or len(run) > 3):
            return "\0"
        around = text[max(0, match.start() - 1) : match.start()], text[match.end(1) : match.end(1) + 1]
        return match[0] if (variables and set(run) <= variables) or _is_product(run, *around) else "\0"

    marked = _FOREIGN.sub("\0", _LETTERS.sub(mark, text))
    if variables:
        return marked
    if variables is None and set(re.findall("[A-Za-z]", _COMMAND.sub(" ", marked))) - {"m"}:
        return marked
    return (_METRES if variables is not None else _SQUARE_METRES).sub("\0", marked)


def _is_product(run: str, before: str, after: str) -> bool:
    """Whether letters that stand together are variables, as in ``2xy``, and no word or unit; by the characters around them."""
    if len(run) > 3 or run.casefold() in _SHORT_WORDS:
        return False
    return len(run) == 2 or not (before in ("", " ") and after in ("", " ", ",", ";", ":"))


def _without_words(text: str, variables: frozenset[str] | None = None) -> str | None:
    """``text`` without its prose: the one piece that says something mathematical, or ``None`` where there are several or none."""
    pieces = [piece.strip() for piece in _marked(text, variables).split("\0")]
    if len(pieces) == 1:
        return text
    telling = [piece for piece in pieces if re.search(r"\d|\\[A-Za-z]", piece)]
    if not telling and variables is not None:  # "so the answer is x + y"
        telling = [piece for piece in pieces if set(re.findall("[A-Za-z]", piece)) & variables]
    if len(telling) != 1 or telling[0].count("{") != telling[0].count("}"):
        return None
    # The slash of km/h, the hyphen of 10-year, the comma and colon of a sentence and the sign of "Total = 72" belong to the word.
    return telling[0].lstrip("= \t\r\n").strip(" \t\r\n,:;").removesuffix("/").removesuffix("-").strip()


@functools.lru_cache(GOLDS_REMEMBERED)
def read_gold(text: str) -> Gold | None:
    """The gold that ``text`` states, or ``None`` where that is not mathematics."""
    text = one_spelling_of_boxes(text)
    boxes = [text[start:end] for start, end in boxed_spans(text)]
    if boxes:
        text = boxes[-1]
    elif "####" in text:
        text = text.rpartition("####")[2]
    if len(text) > MAX_ANSWER_CHARS or len(text.split()) > MAX_GOLD_WORDS:
        return None
    cleaned = _clean(text)
    if re.search(r"\\text|\\mathrm|\\mbox", text) and re.fullmatch(r"[A-Za-z][A-Za-z\s'-]+", cleaned):
        return Gold(cleaned, False, 0, *[frozenset()] * 3, words=_words(cleaned))
    several = bool(_SEVERAL.search(_THOUSANDS.sub(r"\1", cleaned)))
    if several:
        cleaned = _JOINT.sub(", ", cleaned)
    expression = _without_words(cleaned)
    if not expression:
        return None
    return Gold(
        text=expression,
        several=several,
        relations=len(_EQUALS.findall(expression)),
        commands=frozenset(_COMMAND.findall(expression)),
        variables=frozenset(re.findall("[A-Za-z]", _COMMAND.sub(" ", expression))),
        qualifiers=_qualifiers(cleaned),
        value=read_value(expression),
    )


def _qualifiers(text: str) -> frozenset[str]:
    return frozenset(found.casefold() for found in _QUALIFIER.findall(text))


def _words(text: str) -> str:
    return " ".join(text.split()).casefold()


def read_answer(text: str, gold: Gold) -> list[str] | None:
    """The expressions that all have to equal the gold for this answer to be right; ``None`` where it is no single answer."""
    if len(text) > MAX_ANSWER_CHARS:
        return None
    text = one_spelling_of_boxes(text)
    for _ in range(3):  # A box in a box is a slip; more is a trap.
        boxes = {text[start:end].strip() for start, end in boxed_spans(text)}
        if not boxes:
            break
        if len(boxes) > 1:
            return None
        text = boxes.pop()
    if "\\boxed" in text:
        return None
    if any(map(_is_strange, _typed(text))):
        return None
    cleaned = _clean(text)
    if gold.words is not None:
        return [_words(cleaned)]
    if gold.several:
        if "?" in cleaned:
            return None
        cleaned = _JOINT.sub(", ", cleaned)
    elif _HEDGE.search(cleaned):
        return None
    if not _qualifiers(cleaned) <= gold.qualifiers:
        return None
    expression = _without_words(cleaned, gold.variables)
    if not expression or not _is_one_expression(expression, gold):
        return None
    parts = _split(expression, ",") if gold.several else [expression]
    if gold.relations:
        return [expression] if len(_EQUALS.findall(expression)) <= gold.relations else None
    sides = [[side.strip() for side in _EQUALS.split(part)] for part in parts]
    for part in sides:
        if len(part) > 1 and _UNKNOWN.fullmatch(part[0]):
            del part[0]  # "x = 72"
    if not gold.several:
        # "36 + 36 = 72" says 72 twice; "71 = 72" says two things.
        return sides[0] if all(sides[0]) and len(sides[0]) <= 4 else None
    return [", ".join(part[0] for part in sides)] if all(len(part) == 1 for part in sides) else None


def _is_one_expression(expression: str, gold: Gold) -> bool:
    """Whether a parser would have to read all of this as one value.

    latex2sympy reads as far as it understands and drops the rest, so ``2**3`` counts as 2. Hence only known signs may occur.
    """
    # Honest answers are about as long and as deep as their gold; the parsers take seconds for the rest.
    if len(expression) > max(300, 4 * len(gold.text)) or _depth(expression) > max(10, 2 * _depth(gold.text)) or "---" in expression:
        return False
    unseparated = _THOUSANDS.sub(r"\1", expression)
    if not gold.several and "," in unseparated:
        return False
    if _UNSEPARATED.search(unseparated) and not _UNSEPARATED.search(gold.text):
        return False
    if not set(_ALLOWED.sub("", expression)) <= set(gold.text):
        return False
    if not set(_COMMAND.findall(expression)) <= _COMMANDS | gold.commands | (_COLLECTIONS if gold.several else set()):
        return False
    bases = _BASE.fullmatch(expression), _BASE.fullmatch(gold.text)
    if all(bases) and bases[0][1] != bases[1][1]:
        return False  # math-verify drops the subscript of 25_8
    if _RELATION.search(expression) and not _RELATION.search(gold.text):
        return False
    return expression.count("|") % 2 == 0 and not (_TOWER.search(expression) and not _TOWER.search(gold.text))


def _depth(text: str) -> int:
    """How deeply brackets nest."""
    depth = deepest = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _is_strange(char: str) -> bool:
    """Digits of other scripts (a second value that nothing here would count), control characters and lone surrogates."""
    return unicodedata.category(char) in _STRANGE and not ("0" <= char <= "9" or char.isspace())


def _split(text: str, separator: str) -> list[str]:
    """Split at the separators that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == separator and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]
