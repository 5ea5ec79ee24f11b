"""The type of an expression, its names, and whether an expression of its type can equal the
reference answer.
"""

from __future__ import annotations

import collections
import re

from r1_recipes.verification.conditions import Condition
from r1_recipes.verification.gold import PLUS_MINUS, Gold, squeezed
from r1_recipes.verification.lexicon import Refusal
from r1_recipes.verification.signs import depths, split
from r1_recipes.verification.words import GREEK, UNKNOWN, Part, letters

RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|in|to|sim)(?![A-Za-z])|\\(?:right|left)arrow")


MEMBER = re.compile(r"\A\s*[A-Za-z]\s*\\in(?![A-Za-z])\s*")


_FUNCTION = re.compile(r"\s*(?P<name>[A-Za-z])\s*\(\s*(?P<of>[A-Za-z])\s*\)\s*=(?P<value>[^=]*)")


_CHOOSE = re.compile(
    r"C\((\d+),\s*(\d+)\)|(?<![\w})^_])(?:\{\}|)\^?_?\{?(\d+)\}?\s*C_?\{?(\d+)\}?|"
    r"C_\{?(\d+)\}?\^\{?(\d+)\}?"
)


_BASE = re.compile(r"\d\s*_\s*(?:\{\s*([^{}]*?)\s*\}|(\w+)|\W)")


# Signs that "(1, 2)" is an interval and not a pair: x \\in (1, 2), ]1, 2[.
_INTERVAL = re.compile(r"\\in(?![A-Za-z])|[<>]|\A\W*\]")


_MODULO = re.compile(
    r"\\[bp]?mod(?![A-Za-z])|\.\.\.|…|\\[lc]?dots(?![A-Za-z])"
)  # math-verify ignores these signs


_UNDONE = re.compile(
    r"\\(?:sum|prod|i*int|oint|lim|gcd|max|min|det|operatorname)(?![A-Za-z])|"
    r"\\frac\s*\{\s*d\s*(?:\}\s*\{\s*d|\()|\{vmatrix\}|"
    r"\\end\{pmatrix\}\s*(?:\\cdot|\\times)?\s*\\begin"
)


# A condition that an answer may have if the reference answer has none.
_HARMLESS = re.compile(r"[k-n] Z|n [NZ]\+?|. all|. [k-n](?:\\ge[01]|>0)")


# An arithmetic task without its result does not answer a plain number.
_OPERATOR = re.compile(r"\\frac|\\cdot|\\times|\\div|[-+*/^]|[)}]\s*\\left|[)}]\s*\(")


MAX_OPERATIONS = 3


_INDEX = r"(?:\s*_\s*(?:\w|\{[^{}]*\}))?"


# x, x_1, \\theta, f(x), f'(x), [ABC], \\overline{AB}, \\angle A, dy/dx, a word.
_NAME = re.compile(
    rf"(?:[A-Za-z]'*{_INDEX}|"
    rf"\\(?:{'|'.join(GREEK)}){_INDEX})(?:\s*\^\s*\{{?-1\}}?)?(?:\s*\([^()=]*\))?|[EP]?\[[A-Z]+\]|"
    r"\\(?:overline|angle|vec|hat|bar|widehat|triangle|overrightarrow|mathbf|mathrm|"
    r"text)\s*(?:\{[^{}]*\}|[A-Za-z]+)|\|?[A-Z]{2}\|?|"
    r"\\frac\s*\{\s*d[^{}]*\}\s*\{\s*d\w\s*\}|(?:[A-Za-z]{3,}\s*)+|\([A-Za-z,\s]+\)"
)


def mismatch(text: str, expression: str, gold: Gold) -> Refusal | None:
    """Return why an expression cannot equal the reference answer, whatever its value: another type,
    another base, or a task instead of its result. Return ``None`` if it can.
    """
    if _is_other_type(text, expression, gold):
        return Refusal.DIFFERENT
    if _UNDONE.search(expression) and not _UNDONE.search(gold.raw):
        return Refusal.UNEVALUATED
    if re.search(r"[^A-Za-z\s][^\\]*\\in(?![A-Za-z])", expression) and "\\in" not in gold.raw:
        return Refusal.DIFFERENT  # x^2 \\in (1, 2)
    operations = _OPERATOR.findall(expression.lstrip("-"))
    is_task = gold.value is not None and "=" not in expression and len(operations) > MAX_OPERATIONS
    return Refusal.UNEVALUATED if is_task or unsimplified(expression) else None


def _is_other_type(text: str, expression: str, gold: Gold) -> bool:
    """Return whether an answer has another type or another base than the reference answer."""
    target = gold.text or gold.raw
    bare = MEMBER.sub("", target)
    kind, gold_kind = kind_of(expression), kind_of(bare)
    if RELATION.search(bare):
        gold_kind = "("
    if kind and gold_kind and kind != gold_kind:
        return True
    if _MODULO.search(text) and not _MODULO.search(gold.raw):
        return True
    relation = RELATION.search(expression)
    if gold.value and relation:
        return True
    if (relation or kind == "(") and _is_list(gold):
        return True
    if "matrix}" in gold.raw and _INTERVAL.search(text):
        return True
    return _BASE.findall(expression) != _BASE.findall(target)


def _is_list(gold: Gold) -> bool:
    """Return whether the reference answer is a list of values. A pair and an interval are not."""
    text = gold.text or ""
    if not gold.several or gold.parts or RELATION.search(text):
        return False
    return len(split(text)) > 1 or text.lstrip().startswith(r"\{")


# Not an angle to convert: 20 degrees Celsius, \\sin 60^\\circ.
_NO_ANGLE = re.compile(
    r"\\circ\s*\}?\s*(?:\\[a-z]+\s*\{\s*)?[CF](?![A-Za-z])|\\(?:sin|cos|tan|cot)(?![a-z])"
)


def in_degrees(side: str, gold: Gold) -> str:
    """Return an angle in the measure of the reference answer: 60 degrees as pi/3, or pi/3 as 60
    degrees.
    """
    if "\\circ" in side and "\\circ" not in gold.raw and "\\pi" in gold.raw:
        number = re.fullmatch(r"(-?[\d./]+)\s*\^\s*\{?\s*\\circ\s*\}?\s*", side)
        return rf"\frac{{{number[1]}\pi}}{{180}}" if number else r"\emptyset"
    is_angle = "\\circ" in gold.raw and not _NO_ANGLE.search(gold.raw)
    if is_angle and "\\circ" not in side and "\\pi" in side:
        return rf"\frac{{180({side})}}{{\pi}}"
    return side


def is_sum(left: str) -> bool:
    r"""Return whether the left side of an equation is an expression and not a name: x + y, x_1x_2,
    |z|, \sin x.
    """
    return _NAME.fullmatch(left.strip()) is None


_ADDEND = re.compile(r"[\d.\s]+|\((?:[-\d.\s+*/]|\\cdot|\\times)+\)")


def unsimplified(expression: str) -> bool:
    """Return whether a sum has three or more terms that could be added: ``a+1+a-2+a+3+a-4``,
    ``76-(…)+13-2``.
    """
    terms = [term.strip() for term in split(expression, "+-")]
    counts = collections.Counter(terms)
    del counts[""]
    numbers = [term for term in terms if _ADDEND.fullmatch(term)]
    return len(numbers) > 2 or max(counts.values(), default=0) > 2


def same_name(first: str, second: str) -> bool:
    """Return whether two names are equal, or one has all words of the other: "boys", "the boys"."""
    words, others = set(first.split()), set(second.split())
    if not words or not others:
        return False
    return words <= others or others <= words


def same_condition(condition: Condition, gold: Condition | None, main: str) -> bool:
    """Return whether an answer's condition is that of the reference answer. If the reference answer
    has none, the condition may only say what is usual: k is an integer.
    """
    if gold is None:
        return _HARMLESS.fullmatch(f"{condition.letter} {condition.range}") is not None
    swapped = condition.letter != gold.letter and gold.letter in letters(main)
    return gold.range == condition.range and not swapped


def as_gold_says(cleaned: str, condition: Condition | None, gold: Gold) -> str:
    r"""Return the answer with the names of functions and parameters in the reference answer. For
    example ``f(x)=x`` becomes ``f(n)=n``, and ``n\pi`` becomes ``k\pi``.
    """
    if gold.condition and condition and gold.condition.letter not in letters(cleaned):
        cleaned = _renamed(cleaned, condition.letter, gold.condition.letter)
    target = gold.text or ""
    given = _FUNCTION.fullmatch(cleaned)
    function = _as_function(given, target, gold) if given else None
    if function:
        return function
    return _CHOOSE.sub(_binomial, cleaned) if "\\binom" in target else cleaned


def _as_function(given: re.Match[str], target: str, gold: Gold) -> str | None:
    """Return an answer ``f(x) = …`` with the reference answer's letters, or ``None``."""
    name, of, value = given.group("name", "of", "value")
    wanted = _FUNCTION.fullmatch(target)
    if wanted and wanted["name"] == name and wanted["of"] not in letters(value) | {of}:
        return f"{name}({wanted['of']})={_renamed(value, of, wanted['of'])}"
    left = re.match(r"\s*([A-Za-z])\s*=", target)
    if left is None or name not in ("f", left[1]):
        return None
    is_same = of == _argument(gold.variables - {left[1]})
    return f"{left[1]}={value}" if is_same else None  # y = 2x + 3, as f(x)


def _binomial(match: re.Match[str]) -> str:
    upper, lower = [digits for digits in match.groups() if digits]
    return rf"\binom{{{upper}}}{{{lower}}}"


def _argument(variables: frozenset[str]) -> str | None:
    """Return the letter of which the reference answer is a function: x, t or n, or its only letter.
    Other letters are constants.
    """
    for letter in "xtn":
        if letter in variables:
            return letter
    return next(iter(variables)) if len(variables) == 1 else None


def _renamed(text: str, letter: str, new: str) -> str:
    return re.sub(rf"(\\[A-Za-z]+)|{letter}", lambda match: match[1] or new, text)


def in_order_of_names(named: list[Part]) -> str:
    """Return named values as the pair that math-verify reads, in the order of x, y, z or a, b, c,
    or else as given.
    """
    names = {part.label for part in named}
    if names <= set("xyz") or names <= set("abc"):
        named = sorted(named, key=lambda part: part.label)
    values = [part.text for part in named]
    return f"({', '.join(values)})"


def values_of_one_name(target: str, expression: str) -> tuple[str, str] | None:
    """Return the values of ``x = 2, x = -3`` and of ``x_1 = -3, x_2 = 2``, ``x = 2, -3`` or ``2,
    -3`` as two lists. Return ``None`` unless both texts are such lists, of the same name.
    """
    wanted, given = _values_of_name(target), _values_of_name(expression)
    if wanted is None or given is None or not wanted[0]:
        return None
    is_same = given[0] == wanted[0] or (not given[0] and not is_sum(wanted[0]))
    return (wanted[1], given[1]) if is_same else None


def _values_of_name(text: str) -> tuple[str, str] | None:
    """Return the name in ``x_1 = -3, x_2 = 2`` and its values as a list, or ``None``. A part
    without a name has that of the part before it.
    """
    if RELATION.search(text):
        return None
    names: list[str] = []
    values = []
    for part in split(re.sub(r"\A\s*\\\{(.*)\\\}\s*\Z", r"\1", text)):
        name, sign, value = part.rpartition("=")
        if "=" in name:
            return None
        if sign or not names:
            names.append(re.sub(r"_\{?\d\}?\Z", "", squeezed(name.strip())))
        values.append(value.strip())
    if len(values) < 2 or len(set(names)) > 1:
        return None
    return names[0], ", ".join(values)


def same_left_side(expression: str, gold: str) -> tuple[str, str] | None:
    """Return the right sides of a reference answer ``I_{max} = …`` and of an answer with the same
    left side or without one. Return ``None`` for anything else.
    """
    left, sign, right = gold.partition("=")
    name, equals, value = expression.partition("=")
    if not sign or not UNKNOWN.fullmatch(left) or "=" in right or "=" in value:
        return None
    both = gold + expression
    if RELATION.search(both) or PLUS_MINUS.search(both):
        return None
    right, value = right.strip(), value.strip()
    is_name = not is_sum(left)
    if not equals:
        return (right, expression) if is_name else None
    if squeezed(name) == squeezed(left):
        return right, value
    is_negative = is_name and squeezed(name) == "-" + squeezed(left)
    return (right, f"-({value})") if is_negative else None


def kind_of(text: str) -> str:
    r"""Return ``{`` for a set, ``(`` for a tuple or an interval, and ```` for anything else.
    math-verify would compare ``\{1,2\}`` with ``(1,2)``.
    """
    brackets = re.fullmatch(r"\s*(\\\{|[(\[]).*,.*(?:\\\}|[)\]])\s*", text, re.DOTALL)
    if not brackets:
        return ""
    if brackets[1] == r"\{":
        return "{"
    is_one = min(depths(text)[1:-1]) > 0  # not (1, 2) + (3, 4)
    return "(" if is_one else ""
