"""Read a reference answer: a number, an expression, a list, a choice, a date or words.

Only three things are removed from a reference answer: a unit, a name in front of an expression, and
a word behind a number. If other words stand in its mathematics, only the same text is right.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace

from r1_recipes.verification.conditions import Condition, split_condition, union
from r1_recipes.verification.lexicon import refusals
from r1_recipes.verification.locate import MAX_ANSWER_CHARS, boxes_of, one_spelling_of_boxes
from r1_recipes.verification.moments import moment
from r1_recipes.verification.numbers import Value, read_value
from r1_recipes.verification.signs import depths, split
from r1_recipes.verification.spelling import clean
from r1_recipes.verification.units import units_of, without_unit
from r1_recipes.verification.words import (
    JOINT,
    NAMED_PAIR,
    UNKNOWN,
    Part,
    gold_part,
    is_expression,
    letters,
    named_part,
    plain_words,
    prose,
)

# A text with more words and without a box or #### is a solution or a proof. Which part of it is the
# reference answer is not known.
MAX_GOLD_WORDS = 12
_PLAIN = re.compile(r"(?a)-?(?:\d{1,99}|[1-9]\d{0,2}(?:,\d{3}){1,33})(?:\.\d{1,99})?")
# math-verify reads these as products of letters: an angle, a derivative, vectors, matrices, a
# permutation, a square of a chessboard or another label (e4, B12).
_ONLY_TEXT = re.compile(
    r"\\(?:angle|triangle)\s*[A-Z]{2,}\s*\Z|\\nabla|\\(?:mathbf|boldsymbol|"
    r"bm)\s*\{\w\}\s*\\(?:times|cdot)|"
    r"\A\d+\s*-\s*\d+(?:\s|\Z)|:[^:()]+:|‰|"
    r"(?<![A-Za-z])[NS]\s*\d+\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)?\s*[EW](?![A-Za-z])|"
    r"(?<![A-Za-z])([A-Z])([A-Z])(?![A-Za-z])[-+ ]+\2\1(?![A-Za-z])|\\partial|"
    r"\\frac\s*\{\s*d\s*\w*\s*\}|\\vec|\\overrightarrow|"
    r"[A-Z]\s*\^\s*\{?(?:-1|T|\\top)\}?\s*[A-Z]|"
    r"(?<![A-Za-z])[A-Z]{2,}\s*\^\s*\{?-1|\A\(\d(?: \d)+\)\Z|"
    r"\A\s*\(?(?!ln|lg|pi)[A-Za-z]{1,2}\s*\d+(?:[A-Za-z]\d*)*\)?\s*\Z|"
    r",\s*(?:\\[lc]?dots|\.\.\.|…)(?![A-Za-z])|!!|\b[fghFGH]\s*\^\s*\{?-1\}?\s*\(|\b[EP]\s*\[|"
    r"\\circ\s*\}?\s*\d+\s*'"
)
# A function in letters, of which math-verify would read the argument: \text{diag}(1,2,3).
_FUNCTION = re.compile(
    r"\\(?:text|mathrm|operatorname)\s*\{[a-z]{3,}\}\s*(?:\\left\s*)?(?:\(|\\\{)"
)
_NAMED_BY_PRIME = re.compile(r"\s*([A-Za-z])'+\s*(?:\([A-Za-z]\))?\s*=([^']*)")
_GREEK_CAPITAL = re.compile(
    r"\\(Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega)(?![A-Za-z])(?!\s*_)"
)
_QUANTITY = re.compile(
    r"([-+]?[\d.,]+)\s*(?!(?:abcd|efgh|wxyz|xyzw|sin|cos|tan|cot|sec|csc|ln|log|lg|exp|arc)\w*)"
    r"(?=[a-zA-Z]*[aeiouAEIOU]|[^\x00-\x7f])([^\W\d_]{4,})\.?"
)  # "12hours"
_SEVERAL = re.compile(r"[,;]|\\(?:pm|mp|cup|cap|in|\{)(?![A-Za-z])|\b(?:or|and)\b")
THOUSANDS = re.compile(r"(?<![\d.,])([1-9]\d{0,2})((?:,\d{3})+)(?![\d,])")
EQUALS = re.compile(r"(?<![<>!])=|\\equiv(?![A-Za-z])")
APPROX = re.compile(r"\\approx(?![A-Za-z])")
PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")


@dataclass(frozen=True)
class Gold:
    raw: str  # the original text
    # Its expression. None if it was not understood here: math-verify may read ``raw``.
    text: str | None = None
    plain: str = ""  # cleaned, without white space: an answer with the same text is right
    # Parts of a list that have names: each is compared with the answer's part of that name.
    parts: tuple[Part, ...] = ()
    # Capitals that also occur as small letters: math-verify reads both as the same letter.
    cased: frozenset[str] = frozenset()
    several: bool = False
    ordered: bool = False
    relations: int = 0
    variables: frozenset[str] = frozenset()
    condition: Condition | None = None
    # Words that would refuse an answer, but occur in the reference answer.
    excused: frozenset[str] = frozenset()
    words: str | None = None  # for example "No solution", which is compared as words
    moment: tuple[object, ...] | None = None  # a date or a time of day
    letter: str | None = None  # for example "(B)", which is compared as a choice
    letters: str | None = None  # "ABD": several choices
    # Words in it are neither a name nor a unit, so only the same text is right.
    only_text: bool = False
    union: str | None = None  # of bounds joined by "or", as intervals: x < 2 or x > 3
    # Text that is not compared: the word behind a number, or a condition that an answer may omit.
    left_out: str = ""
    units: tuple[str, ...] = ()  # "m1 s-1": an answer with a different unit is wrong
    value: Value | None = None  # set for a number that can be compared without a parser


@functools.lru_cache(16_384)  # Most runs have fewer reference answers.
def read_gold(text: str, locale: str = "en", ordered: bool = False) -> Gold | None:
    """Read a reference answer. Return ``None`` if it is empty, too long, prose or a question."""
    if locale == "en" and _PLAIN.fullmatch(text):
        # The reference answers of GSM8K: the same result as below in a tenth of the time.
        return Gold(raw=text, text=text, plain=text, value=read_value(text))
    text = one_spelling_of_boxes(text)
    # The contents of a solution's boxes, or the text behind ####.
    text = ", ".join(boxes_of(text)) or text.rpartition("####")[2]
    if len(text) > MAX_ANSWER_CHARS or text.rstrip().endswith(("?", "？")):
        return None
    cleaned = clean(text, locale)
    if not cleaned or len(prose(cleaned)) > MAX_GOLD_WORDS:
        return None
    excused = frozenset(refusals(cleaned))
    gold = Gold(raw=text.strip(), plain=squeezed(cleaned), excused=excused)
    return (
        _choice(cleaned, gold, ordered)
        or _words(text, cleaned, gold)
        or _mathematics(cleaned, gold, ordered)
    )


def _choice(cleaned: str, gold: Gold, ordered: bool) -> Gold | None:
    """Read ``(B)``, ``(C) 17``, ``ABD`` and ``A, B, D``."""
    choice = re.fullmatch(r"\(?\s*([A-J])\s*\)?", cleaned)
    if choice:
        return replace(gold, letter=choice[1], words=choice[1].casefold())
    option = re.fullmatch(r"\(([A-J])\)\s*(\S.*)", cleaned)  # AMC: the letter or the value is right
    if option:
        value = read_gold(option[2], "en", ordered)
        if value and value.letter is None:
            return replace(value, letter=option[1])
    named = re.findall("[A-J]", cleaned)
    together = re.fullmatch("[A-J]{2,}", cleaned) and named == sorted(set(named))
    if not together and not re.fullmatch(r"[A-J](?:\s*,\s*[A-J])+", cleaned):
        return None
    in_order = ordered or named != sorted(named)
    return replace(gold, letters="".join(named), ordered=in_order, words=plain_words(cleaned))


def _words(text: str, cleaned: str, gold: Gold) -> Gold | None:
    """Read a date, a time, words, or capitals that are not a product: HHT, XL, PQR."""
    when = moment(cleaned) or moment(text)
    if when is None and not _is_wordy(text, cleaned) and not re.fullmatch(r"[A-Z]{2,5}", cleaned):
        return None
    return replace(gold, moment=when, words=plain_words(cleaned))


def _mathematics(cleaned: str, gold: Gold, ordered: bool) -> Gold:
    """Read an expression, a list or an equation. If it contains words, only the same text
    is right.
    """
    gold = replace(gold, union=union(cleaned))
    same_text = replace(gold, words=squeezed(cleaned), only_text=True, variables=letters(cleaned))
    only_text = _ONLY_TEXT.search(cleaned.rpartition("=")[2]) or _FUNCTION.search(gold.raw)
    if only_text or _has_primes(cleaned):
        return same_text
    cleaned, condition = split_condition(without_unit(cleaned))
    quantity = _QUANTITY.fullmatch(cleaned)
    if quantity:
        cleaned = quantity[1]
    several = bool(_SEVERAL.search(THOUSANDS.sub(r"\1", cleaned)))
    parts = _parts(cleaned, several)
    if parts is None:
        return same_text
    gold = replace(
        gold, several=several, ordered=ordered, condition=condition, units=units_of(gold.raw)
    )
    expression = ", ".join(part.text for part in parts)
    named = [part if part.label else named_part(part.text) for part in parts]
    names = [part.label for part in named]
    # x_1 and x_2 are values of x, unless the question names them.
    roots = {re.sub(r"\A([xyz])_\d\Z", r"\1", name) for name in names}
    is_named = len(set(names)) == len(names) and (ordered or len(roots) > 1)
    if len(parts) > 1 and all(names) and is_named:
        return replace(gold, text=expression, parts=tuple(named), variables=letters(cleaned))
    if several and any(part.label for part in parts[:-1]):
        return same_text  # some parts have a name; behind the last part it is the unit of all
    left_out = " ".join(part.label for part in parts if part.label)
    if condition and not left_out:
        left_out = condition.text
    elif quantity and not left_out:
        left_out = quantity[2]
    return _expression(expression, replace(gold, left_out=left_out))


def _parts(cleaned: str, several: bool) -> list[Part] | None:
    """Return the parts of a list, or the one expression. Return ``None`` if words change a part.

    ``(a, b) = (2, 3)`` is a list of two parts that have names.
    """
    parts = []
    for text in listed(cleaned) if several else [cleaned]:
        part = gold_part(text)
        if part is None or not part.text or refusals(part.label):
            return None
        parts.append(part)
    pair = NAMED_PAIR.fullmatch(parts[0].text)
    if len(parts) > 1 or pair is None or min(depths(f"({pair[2]})")[1:-1]) < 1:
        return parts
    return values_of_names(pair) or parts


def values_of_names(pair: re.Match[str]) -> list[Part]:
    """Return the parts of ``(x, y) = (1, 2)``, and no parts of ``(x, y) = (1, 2, 3)``."""
    names, values = split(pair[1]), split(pair[2])
    if len(names) != len(values):
        return []
    return [Part(value.strip(), name.strip()) for name, value in zip(names, values, strict=True)]


def _expression(expression: str, gold: Gold) -> Gold:
    r"""Read one expression, or the exact side of "x = 2\sqrt{3} \approx 3.46"."""
    sides = [side.strip() for side in APPROX.split(expression)]
    left = sides[0]
    if len(sides) > 1 and (not left or UNKNOWN.fullmatch(left)):
        left = sides[1]
    text = left or expression
    used = letters(text)
    cased = frozenset(letter for letter in used if letter.isupper() and letter.lower() in used)
    return replace(
        gold,
        text=in_its_case(text, cased),
        cased=cased,
        relations=len(EQUALS.findall(left)),
        variables=letters(left),
        value=read_value(left),
    )


def in_its_case(text: str, capitals: frozenset[str]) -> str:
    r"""Return an expression with an index on these capitals and on Greek capitals. Without it
    math-verify would read ``\frac{M}{m}`` as 1.
    """

    def mark(match: re.Match[str]) -> str:
        letter, index, braced = match.groups(default="")
        if letter not in capitals:
            return match[0]
        return f"{letter}_{{77{index}{braced}}}"

    text = _GREEK_CAPITAL.sub(lambda match: rf"\{match[1].lower()}_{{77}}", text)
    if not capitals:
        return text
    return re.sub(r"\\[A-Za-z]+|([A-Z])(?:_(\w)|_\{([^{}]*)\})?", mark, text)


def _has_primes(text: str) -> bool:
    """Return whether a reference answer has derivatives, whose primes math-verify ignores. In
    ``f'(x) = 2x`` the prime belongs to the name.
    """
    if not re.search(r"[A-Za-z)]'", text):
        return False
    named = _NAMED_BY_PRIME.fullmatch(text)
    return named is None or named[1] in letters(named[2])


def _is_wordy(text: str, cleaned: str) -> bool:
    """Return whether a reference answer is words and not mathematics."""
    if re.fullmatch(r"[A-Za-z]{3,}-\d+|[A-Za-z]{4,}-[a-z]{4,}", cleaned):
        return True  # carbon-14, beta-blocker
    if re.search(r"\d|\\|[-+*/^=<>|]\s|[-+*/^=<>|]|\$[^$]*[=<>]", cleaned):
        return False
    styled = re.search(r"\\(?:text|mathrm|mbox)", text)
    if styled and re.fullmatch(r"[A-Za-z][A-Za-z\s'-]+", cleaned):
        return True
    if not is_expression(cleaned):
        return True
    short = re.fullmatch("(?i)no|[a-z]{3}", cleaned)
    return bool(short and re.search("[aeiouAEIOU]", cleaned))


def squeezed(text: str) -> str:
    """Return a text without white space, except between two letters or digits: 7 2 is not 72."""
    text = re.sub(r"\\[lc]?dots(?![A-Za-z])|\.\.\.", "…", text)
    text = re.sub(r"\{\\circ\}", r"\\circ ", text)
    text = re.sub(r"(?<!\w) | (?!\w)", "", " ".join(text.split()))
    return re.sub(r"([_^])\{(\w)\}", r"\1\2", text)


def listed(text: str) -> list[str]:
    """Return the parts of a list. A part with a plus-minus sign becomes two parts."""
    parts = []
    for part in split(JOINT.sub(", ", text)):
        if len(PLUS_MINUS.findall(part)) == 1:
            parts += [PLUS_MINUS.sub(sign, part) for sign in "+-"]
        else:
            parts.append(part)
    return parts
