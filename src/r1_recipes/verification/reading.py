r"""What a text says: a gold and an answer, each reduced to expressions that math-verify can read as one value.

An answer is model output, so it is reduced to one candidate first (a hedge, a chain or a list of guesses is not an answer). Everything
here is linear in the length of the text, or reads no more than ``MAX_ANSWER_CHARS`` of it.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from dataclasses import dataclass

from r1_recipes.prompts.formats import boxed_spans, one_spelling_of_boxes
from r1_recipes.verification.numbers import Value, read_value
from r1_recipes.verification.spelling import clean, typed

# A longer answer is wrong unread: golds of MATH, GSM8K and OpenR1-Math are far shorter, and the parsers' time grows faster than the length.
MAX_ANSWER_CHARS = 1000
# More words without a box or #### are a solution or a proof, of which no part is known to be the gold.
MAX_GOLD_WORDS = 12

_ANCHOR = re.compile(r"####|\banswer[\s*_]*(?:is\b|:|：)|答案(?:是|为|:|：)", re.IGNORECASE)
# A sentence after the answer's own: "I hope it is correct." One with a number may take the answer back, and stays.
_AFTERTHOUGHT = re.compile(r"(?<=\S)[.。]\s+[^\d\W][^\d]*\Z")
_CLOSING_LINES = re.compile(r"(?:\s*(?:\$\$|\\\]|\\\)))+\s*\Z")
_THOUSANDS = re.compile(r"(?<![\d.,])([1-9]\d{0,2})((?:,\d{3})+)(?![\d,])")
# Letters that no command owns. As a word they may carry an exponent (cm^2).
_LETTERS = re.compile(r"(?<![A-Za-z\\])(?<!\\begin\{)(?<!\\end\{)([A-Za-z]{2,})(?:(?:\s*\^\{?[23]\}?|[23])(?![\d.}]))?")
# Two letters, or three beside a sign or a digit, are a product of variables unless they are one of these.
_SHORT_WORDS = re.compile(
    "mm|cm|km|ft|in|yd|mi|oz|lb|lbs|kg|mg|ml|cc|hr|hrs|min|sec|mph|kph|am|pm|usd|is|of|to|at|on|by|an|as|it|or|no|so|we|he|she|the|and|"
    "for|are|was|per|all|out|if|up|us|be|do|go|my|me|its|has|had|her|his",
    re.IGNORECASE,
)
_SQUARE_METRES = re.compile(r"(?:(?<=\s)m\s*\^\{[23]\}|(?<=\d)m[23])\s*$")
_METRES = re.compile(r"(?<=[\d\s])m\s*(?:\^\{[23]\}|[23])\s*$")
_HEDGE = re.compile(r"\b(?:or|nor|not|either|neither|maybe|perhaps)\b|\?|？|或|不是", re.IGNORECASE)
# What an answer says of its number that makes it another one; a gold's own prose may say it too.
_QUALIFIER = re.compile(
    r"\b(?:(?:less|more|greater|fewer) than|squared|cubed|(?:square |cube )?root|factorial|half of|twice)\b", re.IGNORECASE
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
# Two numbers with nothing, or nothing known, between them.
_UNSEPARATED = re.compile(r"(?:[\d.]|(?<!matrix)\})\s+[\d.]|\d_|\.\.|%\s*[^\s)}]")
_BASE = re.compile(r"[\dA-F]+_\{?(\d+)\}?")
_ALLOWED = re.compile(r"[\w\s\\{}()\[\]+\-*/^.%!|,=<>]*", re.ASCII)
_STRANGE = frozenset(("Nd", "No", "Nl", "Cs", "Cc"))
_NAMES = """
frac cdot times div sqrt pi infty circ degree approx binom angle alpha beta gamma theta lambda mu phi omega
sin cos tan cot sec csc arcsin arccos arctan log ln exp
"""
_COMMANDS = frozenset("\\" + name for name in _NAMES.split())
_COLLECTIONS = frozenset((r"\{", r"\}", r"\\", r"\cup", r"\pm", r"\begin", r"\end"))


@dataclass(frozen=True)
class Gold:
    """A gold, reduced to its expression and what that is made of."""

    text: str
    several: bool = False
    relations: int = 0
    commands: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    qualifiers: frozenset[str] = frozenset()
    words: str | None = None  # "\text{Evelyn}": a gold that is words, compared as words
    value: Value | None = None  # of a number that can be compared without a parser


def final_answer(text: str) -> str | None:
    r"""Return the final answer of a whole completion, or ``None`` if it commits to none.

    The last ``\boxed{…}``, unless boxes with other contents contradict it; without a box what follows the last "answer is",
    "answer:" or ``####``; else the last line if it is nothing but one expression. Linear in the length.
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
    cleaned = clean(line)
    return line if cleaned and "\0" not in _marked(cleaned) else None


def _letters(text: str) -> frozenset[str]:
    return frozenset(re.findall("[A-Za-z]", _COMMAND.sub(" ", text)))


def _marked(text: str, variables: frozenset[str] | None = None) -> str:
    r"""``text`` with ``\0`` in the place of its prose, by the letters that the gold has (``None``: this is the gold).

    To a gold without any, all letters that stand together are a word.
    """

    def mark(match: re.Match[str]) -> str:
        run = match[1]
        if variables is not None and (not variables or len(run) > 3):
            return "\0"
        if variables and variables.issuperset(run):
            return match[0]
        if len(run) > 3 or _SHORT_WORDS.fullmatch(run):
            return "\0"
        before, after = text[max(0, match.start() - 1) : match.start()], text[match.end(1) : match.end(1) + 1]
        alone = before in ("", " ") and after in ("", " ", ",", ";", ":")
        return "\0" if alone and len(run) == 3 else match[0]

    marked = re.sub(r"[^\x00-\x7f]+", "\0", _LETTERS.sub(mark, text))
    if variables or (variables is None and _letters(marked) - {"m"}):
        return marked
    return (_METRES if variables is not None else _SQUARE_METRES).sub("\0", marked)


def _without_words(text: str, variables: frozenset[str] | None = None) -> str | None:
    """The one piece of ``text`` that says something mathematical; ``None``: there are several or none."""
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


@functools.lru_cache(16_384)  # Most runs have fewer golds, so that each is read once.
def read_gold(text: str) -> Gold | None:
    """Return the gold that ``text`` states, or ``None`` if that is not mathematics."""
    text = one_spelling_of_boxes(text)
    boxes = [text[start:end] for start, end in boxed_spans(text)]
    if boxes:
        text = boxes[-1]
    elif "####" in text:
        text = text.rpartition("####")[2]
    if len(text) > MAX_ANSWER_CHARS or len(text.split()) > MAX_GOLD_WORDS:
        return None
    cleaned = clean(text)
    if re.search(r"\\text|\\mathrm|\\mbox", text) and re.fullmatch(r"[A-Za-z][A-Za-z\s'-]+", cleaned):
        return Gold(cleaned, words=_words(cleaned))
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
        variables=_letters(expression),
        qualifiers=_qualifiers(cleaned),
        value=read_value(expression),
    )


def read_answer(text: str, gold: Gold) -> list[str] | None:
    """Return the expressions that all have to equal the gold; ``None``: this is no single answer."""
    if len(text) > MAX_ANSWER_CHARS:
        return None
    text = one_spelling_of_boxes(text)
    for _ in range(3):  # A box in a box is a slip; more is a trap.
        boxes = {text[start:end].strip() for start, end in boxed_spans(text)}
        if len(boxes) > 1:
            return None
        text = boxes.pop() if boxes else text
    if "\\boxed" in text or any(map(_is_strange, typed(text))):
        return None
    cleaned = clean(text)
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
    if gold.relations:
        return [expression] if len(_EQUALS.findall(expression)) <= gold.relations else None
    parts = _split(expression) if gold.several else [expression]
    sides = [[side.strip() for side in _EQUALS.split(part)] for part in parts]
    for part in sides:
        if len(part) > 1 and _UNKNOWN.fullmatch(part[0]):
            del part[0]  # "x = 72"
    if not gold.several:
        # "36 + 36 = 72" says 72 twice; "71 = 72" says two things.
        return sides[0] if all(sides[0]) and len(sides[0]) <= 4 else None
    return [", ".join(part[0] for part in sides)] if all(len(part) == 1 for part in sides) else None


def _qualifiers(text: str) -> frozenset[str]:
    return frozenset(found.casefold() for found in _QUALIFIER.findall(text))


def _words(text: str) -> str:
    return " ".join(text.split()).casefold()


def _is_strange(char: str) -> bool:
    """Digits of other scripts (a second value that nothing here would count), control characters and lone surrogates."""
    return unicodedata.category(char) in _STRANGE and not ("0" <= char <= "9" or char.isspace())


def settle(gold: Gold, sides: list[str] | None) -> bool | None:
    """Return the verdict if it needs no parser; ``None``: ask a worker."""
    if gold.words is not None:
        return sides == [gold.words]
    if gold.value is None:
        return None
    if sides is None:
        return False
    values = [read_value(side) for side in sides]
    equal = [None if value is None else gold.value.equals(value) for value in values]
    if False in equal:
        return False
    return None if None in equal else True


def _is_one_expression(expression: str, gold: Gold) -> bool:
    """Whether a parser would have to read all of this as one value.

    latex2sympy reads as far as it understands and drops the rest, so ``2**3`` counts as 2. Hence only known signs may occur.
    """
    unseparated = _THOUSANDS.sub(r"\1", expression)
    known = _COMMANDS | gold.commands | (_COLLECTIONS if gold.several else frozenset())
    base, gold_base = _BASE.fullmatch(expression), _BASE.fullmatch(gold.text)
    return (
        # Honest answers are about as long and as deep as their gold; the parsers take seconds for the rest.
        len(expression) <= max(300, 4 * len(gold.text))
        and max(_depths(expression)) <= max(10, 2 * max(_depths(gold.text)))
        and "---" not in expression
        and (gold.several or "," not in unseparated)
        and set(_ALLOWED.sub("", expression)) <= set(gold.text)
        and known.issuperset(_COMMAND.findall(expression))
        # math-verify drops the subscript of 25_8.
        and (base is None or gold_base is None or base[1] == gold_base[1])
        and expression.count("|") % 2 == 0
        and not (_UNSEPARATED.search(unseparated) and not _UNSEPARATED.search(gold.text))
        and not any(sign.search(expression) and not sign.search(gold.text) for sign in (_RELATION, _TOWER))
    )


def _depths(text: str) -> list[int]:
    """Bracket depth before each character, and at the end."""
    return list(itertools.accumulate(((char in "([{") - (char in ")]}") for char in text), initial=0))


def _split(text: str) -> list[str]:
    """Split at the commas that stand in no bracket."""
    commas = [index for index, (char, depth) in enumerate(zip(text, _depths(text), strict=False)) if char == "," and depth == 0]
    return [text[start + 1 : end] for start, end in itertools.pairwise([-1, *commas, len(text)])]
