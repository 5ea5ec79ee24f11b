"""Read the expressions of an answer: their form, their names, bounds and conditions, and which of
them must equal the reference answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from r1_recipes.verification.beside import acts_on_list
from r1_recipes.verification.conditions import EITHER, Condition, split_condition, two_bounds, union
from r1_recipes.verification.gold import (
    APPROX,
    EQUALS,
    THOUSANDS,
    Gold,
    in_its_case,
    listed,
    squeezed,
    values_of_names,
)
from r1_recipes.verification.lexicon import Refusal
from r1_recipes.verification.shapes import (
    MEMBER,
    RELATION,
    as_gold_says,
    in_degrees,
    in_order_of_names,
    is_sum,
    kind_of,
    mismatch,
    same_condition,
    same_left_side,
    same_name,
    values_of_one_name,
)
from r1_recipes.verification.signs import depths, split
from r1_recipes.verification.units import without_unit
from r1_recipes.verification.words import (
    NAMED_PAIR,
    UNKNOWN,
    Part,
    answer_part,
    letters,
    named_part,
    strange_words,
)

_PAIR = re.compile(r"\\?\{?\s*[(](.*,.*)[)]\s*\\?\}?", re.DOTALL)
_LINK = re.compile(r"\b(?:is|are|was|were|equals|ist|beträgt|est|es)\b|[为是]")
_CURVE = re.compile(r"\A\s*[A-Za-z]\w?\s*:\s*(?=[^:]*=)")  # "L: y = 2x + 3"
_IS = re.compile(r"\b([A-Za-z])\s+(?:is|equals)\s+(?=[-\d\\(])")  # "the value of x is 5"
# Towers of powers and factorials. Each would use up a worker's time limit, and no correct answer to
# a plain reference answer has one.
_TOWER = re.compile(
    r"\^[\s{(]*\d+[\s}]*\^|\^\{?\d{2,}\}?\s*\)+\s*\^\{?\d{2,}|"
    r"\)\s*\^[^()^]*\)\s*\^[^()^]*\)\s*\^|\^\{?-?\d{5,}|\d{5,}\s*!|![\s)}]*!"
)
# Two numbers with nothing readable between them. math-verify adds or joins them, or drops what it
# cannot read.
_UNSEPARATED = re.compile(r"(?:[\d.]|(?<!matrix)\})\s+[\d.]|\.\.|%\s*[^\s)}]|---|\d['\"]+\d")
_RATIO = re.compile(r"\d\s*:\s*\d")
_DERIVATIVE = re.compile(r"\\frac\s*\{\s*d[^{}]*\}\s*\{\s*d")
# A word that touches a command or a brace is a factor: \\sqrt{2}wxyz.
_GLUED_WORD = re.compile(
    r"(?:\}|\\pi)[A-Za-z]{4,}|(?<![A-Za-z\\])[A-Za-z]{4,}\\(?:sqrt|frac|pi|log|ln|sin|cos|tan)"
)
# The left side of an equation may contain the variable in these forms only: f(x), a_n, dy/dx.
_CALL = re.compile(
    r"(?<![A-Za-z])[A-Za-z](?:'*|\^\{?-1\}?)\s*\([A-Za-z](?:,\s*[A-Za-z])*\)|_(?:\w|\{[^{}]*\})|"
    r"\\frac\s*\{\s*d\w*\s*\}\s*\{\s*d\w\s*\}|[A-Za-z]{3,}"
)
_VARIABLE = re.compile(r"(?:\\[A-Za-z]+|[A-Za-z](?:[A-Za-z]{2,})?)(?:_(?:\w|\{[^{}]*\}))?")
_THOUSANDS = re.compile(r"\d,\d{3}(?!\d)")  # may also be two values
_EITHER_BOUND = re.compile(r"[<>]|\\[lg]e(?![a-z])")
# A sum, or a name with its argument: P(X=1) = …
_TASK = re.compile(
    r"\\(?:sum|prod|i*int|oint|lim)(?![A-Za-z])|"
    r"(?:\\Pr|\\mathbb\{[PE]\}|[A-Za-z])\s*[(\[][^()\[\]]*[)\]]\s*="
)


@dataclass(frozen=True)
class Answer:
    """What has to equal the reference answer, or why there is nothing to compare."""

    sides: tuple[str, ...] = ()  # each as text for math-verify
    rounded: tuple[str, ...] = ()  # decimals behind a sign of approximation
    raw: str | None = None  # the original text, if math-verify may compare it, too
    verdict: bool | None = None  # set if no comparison is needed
    refusal: Refusal | None = (
        None  # why there is nothing to compare; beside ``sides``: the reason if one of them differs
    )
    ordered: bool = False  # the parts of a list are compared in their order
    pairs: tuple[
        tuple[str, str], ...
    ] = ()  # named parts of the reference answer, each with the answer's part of that name


class Refused(Exception):
    """Raised when there is nothing to compare. Its argument is the :class:`Refusal`."""


def read_expression(text: str, cleaned: str, gold: Gold) -> Answer:
    """Read an answer that is mathematics. Return what must equal the reference answer, or the
    refusal.
    """
    try:
        return _read(text, cleaned, gold)
    except Refused as refused:
        return Answer(refusal=refused.args[0])


def _read(text: str, cleaned: str, gold: Gold) -> Answer:
    _check_cost(cleaned, gold)
    cleaned = _result_of_task(cleaned, gold)
    bounds = _as_intervals(cleaned, gold)
    if bounds is not None:
        return bounds
    bare = _without_names(cleaned, gold)
    if _is_beside_strange_words(bare, cleaned, gold):
        raise Refused(Refusal.CHANGED)
    if gold.parts:
        return _read_named(bare, gold)
    expression = _pair_as_gold(_without_words(bare, gold), gold)
    _check_separators(expression, gold)
    if refusal := mismatch(text, expression, gold):
        raise Refused(refusal)
    if gold.relations:
        return _equation(text, cleaned, expression, gold)
    return _sides(expression, _as_it_stands(text, cleaned, gold), gold)


def in_digits(gold: Gold) -> bool:
    """Return whether the reference answer is a number in digits. Answers to such a number are often
    whole sentences.
    """
    return re.fullmatch(r"-?[\d.,]+%?", (gold.text or "").strip()) is not None


def _is_beside_strange_words(bare: str, cleaned: str, gold: Gold) -> bool:
    """Return whether unknown words stand beside algebra or a value. The subject of a value before
    an "is" may have any words, so only the text behind it counts.
    """
    if gold.variables:
        return bool(strange_words(bare, gold.variables))
    if in_digits(gold):
        return False
    predicate = _LINK.split(cleaned)[-1]
    return bool(strange_words(predicate, gold.variables, gold.left_out))


def _check_cost(cleaned: str, gold: Gold) -> None:
    """Refuse what would take a parser seconds. Correct answers are about as long and as deeply
    nested as the reference answer.
    """
    if _GLUED_WORD.search(cleaned) and not _GLUED_WORD.search(gold.raw):
        raise Refused(Refusal.CHANGED)
    tower = _TOWER.search(cleaned) and not _TOWER.search(gold.raw)
    too_long = len(cleaned) > max(300, 4 * len(gold.raw))
    depth, gold_depth = max(depths(cleaned)), max(depths(gold.raw))
    if tower or too_long or depth > max(10, 2 * gold_depth):
        raise Refused(Refusal.HOSTILE)


def _result_of_task(cleaned: str, gold: Gold) -> str:
    r"""Return 55 for ``\sum_{k=1}^{10} k = 55`` and for ``P(X=1) = 55``, and any other text
    unchanged.
    """
    if gold.variables or not _TASK.match(cleaned):
        return cleaned
    sides = split(cleaned, "=")
    return sides[1].strip() if len(sides) == 2 else cleaned


def _without_names(cleaned: str, gold: Gold) -> str:
    """Remove the name of a value, the unit, and a condition that the reference answer has, too."""
    if RELATION.search(gold.text or "") or kind_of(gold.text or ""):
        cleaned = two_bounds(cleaned)
    cleaned, condition = split_condition(cleaned)
    if condition and not _is_same_condition(condition, cleaned, gold):
        raise Refused(Refusal.DIFFERENT)
    cleaned = as_gold_says(_IS.sub(r"\1 = ", _CURVE.sub("", cleaned)), condition, gold)
    if not gold.variables and not gold.several:
        cleaned = named_part(cleaned, strict=False).text  # "\\angle A = 60", "x_1 + x_2 = 2"
    return without_unit(cleaned, every=not gold.variables)


def _is_same_condition(condition: Condition, main: str, gold: Gold) -> bool:
    if _EITHER_BOUND.search(main) and condition.range[:1] in "NZ" and not gold.condition:
        return False  # integers are fewer numbers than the inequality has
    return same_condition(condition, gold.condition, main)


def _without_words(bare: str, gold: Gold) -> str:
    """Return the expression of each part of an answer, without the words beside it."""
    if gold.several and acts_on_list(bare):
        raise Refused(Refusal.CHANGED)
    parts = _parts(listed(bare) if gold.several else [bare], gold)
    kept = [part.text for part in parts]
    if not parts or not all(kept):
        raise Refused(Refusal.UNREADABLE)
    expression = in_its_case(", ".join(kept), gold.cased)
    return expression if MEMBER.match(gold.text or "") else MEMBER.sub("", expression)


def _parts(pieces: list[str], gold: Gold) -> list[Part]:
    """Return the parts of an answer, without the words beside them."""
    parts = []
    for piece in filter(str.strip, pieces):
        part = answer_part(piece, gold.variables)
        if part is None:
            raise Refused(Refusal.SEVERAL)
        parts.append(part)
    return parts


def _pair_as_gold(expression: str, gold: Gold) -> str:
    """Return ``(x, y) = (1, 2)`` as a pair; also ``x = 1, y = 2`` if the reference answer is a pair
    such as ``(1, 2)``.
    """
    pair = NAMED_PAIR.fullmatch(expression)
    named = values_of_names(pair) if pair else _values_as_gold(expression, gold)
    if named is None:
        return expression
    names = [part.label for part in named]
    if not named or len(set(names)) < len(names):
        raise Refused(Refusal.DIFFERENT)  # (x, y) = (1, 2, 3), or x = 1, x = 2
    if pair and not all(_VARIABLE.fullmatch(name) for name in names):
        raise Refused(Refusal.CHAIN)  # (x+1, y) = (2, 3)
    return in_order_of_names(named)


def _values_as_gold(expression: str, gold: Gold) -> list[Part] | None:
    """Return ``x = 1, y = 2`` as parts, if the reference answer is a pair of so many values."""
    pair = _PAIR.fullmatch(gold.text or "")
    if not pair or "=" in pair[0] or "=" not in expression:
        return None
    named = [named_part(part) for part in split(expression)]
    is_named = all(part.label for part in named)
    return named if is_named and len(named) == len(split(pair[1])) else None


def _stripped(parts: Iterable[str]) -> list[str]:
    return [part.strip() for part in parts]


def _check_separators(expression: str, gold: Gold) -> None:
    """Refuse several values if the reference answer is one value, and unseparated numbers."""
    plain = THOUSANDS.sub(r"\1", expression)
    unseparated = _UNSEPARATED.search(plain) and not _UNSEPARATED.search(gold.raw)
    too_many = not gold.several and len(split(plain)) > 1
    if unseparated or too_many or expression.count("|") % 2:
        raise Refused(Refusal.SEVERAL)


def _as_it_stands(text: str, cleaned: str, gold: Gold) -> str | None:
    """Return the answer's original text, or ``None`` if math-verify may not compare it."""
    is_ratio = _RATIO.search(f"{text} {gold.raw}")  # math-verify reads 1:2:3 as 1/6
    if gold.value is not None or APPROX.search(cleaned) or is_ratio:
        return None
    return text


def _equation(text: str, cleaned: str, expression: str, gold: Gold) -> Answer:
    """Read an answer to a reference answer that is an equation, or several of them."""
    target = gold.text or ""
    left = target.partition("=")[0]
    name, sign, _ = expression.partition("=")
    if _DERIVATIVE.search(target) and sign and squeezed(name) != squeezed(left):
        # math-verify computes the derivative of one letter by another, which is 0
        raise Refused(Refusal.DIFFERENT)
    values = values_of_one_name(target, expression)
    if values and not _THOUSANDS.search(gold.raw):
        return Answer((values[1],), pairs=(values,), ordered=gold.ordered)
    if gold.relations > 1:
        return _chain(target, expression)
    if same := same_left_side(expression, target):
        return Answer((same[1],), pairs=(same,))
    solved = re.fullmatch(r"\s*([A-Za-z])\s*=([^=A-Za-z]*)", target)
    if solved and sign and solved[1] not in _stripped(expression.split("=")):
        raise Refused(Refusal.UNEVALUATED)  # x + 3 = 5 does not answer x = 2
    if not sign and is_sum(left):
        raise Refused(Refusal.DIFFERENT)  # 4 does not answer the curve xy = 4
    if len(EQUALS.findall(expression)) > gold.relations:
        raise Refused(Refusal.CHAIN)
    return Answer((expression,), raw=_as_it_stands(text, cleaned, gold), ordered=gold.ordered)


def _chain(target: str, expression: str) -> Answer:
    """Read an answer to a chain of equations."""
    wanted, given = _stripped(EQUALS.split(target)), _stripped(EQUALS.split(expression))
    if len(wanted) != len(given):
        raise Refused(Refusal.CHAIN)
    return Answer((expression,), pairs=tuple(zip(wanted, given, strict=True)))


def _as_intervals(cleaned: str, gold: Gold) -> Answer | None:
    """Compare bounds joined by "or" with a union of intervals, whichever of the two is the
    reference answer. Return ``None`` unless exactly one of the texts is written as a union.
    """
    is_both = re.search(r"\band\b|\\land(?![a-z])|且", cleaned)
    if gold.union and is_both and _EITHER_BOUND.search(cleaned):
        raise Refused(Refusal.DIFFERENT)
    target = gold.text or ""
    if not target or ("\\cup" in target) == ("\\cup" in cleaned):
        return None
    wanted, given = gold.union, MEMBER.sub("", cleaned)
    if "\\cup" in target:
        wanted, given = target, union(cleaned) or ""
    if not wanted or not given:
        return None
    return Answer((given,), pairs=((MEMBER.sub("", wanted), given),))


def _sides(expression: str, raw: str | None, gold: Gold) -> Answer:
    """Return what must equal the reference answer: each side of a chain of equations, without a
    name in front. A list is one side.
    """
    sides: list[str] = []
    rounded: list[str] = []
    for part in split(expression) if gold.several else [expression]:
        exact, *near = _stripped(APPROX.split(part))
        if near and exact != "e" and (UNKNOWN.fullmatch(exact) or not exact):
            exact, *near = near  # "x \\approx 3.46"
        equal = [in_degrees(side, gold) for side in _equal_sides(exact, gold)]
        # Both sides of "36 + 36 = 72" must equal 72, so "71 = 72" is wrong.
        too_many = len(equal) > 1 or near if gold.several else len(equal) > 4
        if too_many or not all(equal):
            raise Refused(Refusal.CHAIN)
        sides += equal
        rounded += near
    whole = raw if len(sides) == 1 else None
    if gold.several:
        sides = [", ".join(sides)]
    return Answer(tuple(sides), tuple(rounded), whole, ordered=gold.ordered)


def _equal_sides(exact: str, gold: Gold) -> list[str]:
    """Return the sides of an equation, without a name in front: "x = 72"."""
    equal = _stripped(EQUALS.split(exact))
    if len(equal) == 1:
        return equal
    if gold.variables & letters(_CALL.sub("", equal[0])):
        raise Refused(Refusal.CHAIN)  # "x = 2x"
    if UNKNOWN.fullmatch(equal[0]):
        return equal[1:]
    is_named = len(equal) == 2 and not gold.variables and named_part(exact, strict=False).label
    return equal[1:] if is_named else equal


def _read_named(bare: str, gold: Gold) -> Answer:
    """Read an answer to a list whose parts have names. Parts are matched by name, or by position if
    the answer has no names.
    """
    if EITHER.search(bare) and not EITHER.search(gold.raw):
        raise Refused(Refusal.HEDGE)  # x = 1 or y = 2
    pair = NAMED_PAIR.fullmatch(bare)
    named = (values_of_names(pair) if pair else []) or _named_parts(bare, gold)
    if len(named) != len(gold.parts) or any("=" in part.text for part in named):
        raise Refused(Refusal.DIFFERENT)
    if any(part.label for part in named):
        named = [_part_with_name(target.label, named) for target in gold.parts]
    given = tuple(part.text for part in named)
    wanted = [target.text for target in gold.parts]
    return Answer(given, pairs=tuple(zip(wanted, given, strict=True)))


def _named_parts(bare: str, gold: Gold) -> list[Part]:
    """Return the parts of a list or of a pair, each with its name if it has one."""
    inside = _PAIR.fullmatch(bare)
    pieces = split(inside[1]) if inside and len(split(bare)) == 1 else listed(bare)
    named = []
    for part in _parts(pieces, gold):
        if not part.text:
            raise Refused(Refusal.SEVERAL)
        has_name = part.label and "=" not in part.text
        named.append(part if has_name else named_part(part.text))
    return named


def _part_with_name(label: str, named: list[Part]) -> Part:
    found = [part for part in named if same_name(part.label, label)]
    if len(found) != 1:
        raise Refused(Refusal.DIFFERENT)
    return found[0]
