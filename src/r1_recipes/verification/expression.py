"""Read the expressions of an answer: their form, their names, bounds and conditions, and which of
them must equal the reference answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from r1_recipes.verification.beside import acts_on_list
from r1_recipes.verification.conditions import EITHER, Condition, split_condition, two_bounds, union
from r1_recipes.verification.gold import (
    APPROX,
    EQUALS,
    PLUS_MINUS,
    THOUSANDS,
    Gold,
    in_its_case,
    listed,
    squeezed,
)
from r1_recipes.verification.lexicon import Refusal
from r1_recipes.verification.shapes import (
    MEMBER,
    RELATION,
    as_gold_says,
    in_alphabet,
    in_degrees,
    in_order_of_names,
    is_sum,
    kind_of,
    mismatch,
    same_condition,
    same_name,
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
_TASK = re.compile(r"\\(?:sum|prod|i*int|oint|lim)(?![A-Za-z])")


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
    if gold.variables and strange_words(bare, gold.variables):
        raise Refused(Refusal.CHANGED)
    if not gold.variables and not in_digits(gold) and _is_beside_another(cleaned, gold):
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


def _is_beside_another(cleaned: str, gold: Gold) -> bool:
    """Return whether unknown words stand beside a value. The subject before an "is" may have any
    words, so only the text behind it counts.
    """
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
    if tower or too_long or max(depths(cleaned)) > max(10, 2 * max(depths(gold.raw))):
        raise Refused(Refusal.HOSTILE)


def _result_of_task(cleaned: str, gold: Gold) -> str:
    r"""Return 55 for ``\sum_{k=1}^{10} k = 55``, and any other text unchanged."""
    if gold.variables or not _TASK.match(cleaned):
        return cleaned
    level = zip(cleaned, depths(cleaned), strict=False)
    signs = [index for index, pair in enumerate(level) if pair == ("=", 0)]
    return cleaned[signs[0] + 1 :].strip() if len(signs) == 1 else cleaned


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
    inequality = re.search(r"[<>]|\\[lg]e(?![a-z])", main)
    if inequality and condition.range[:1] in "NZ" and not gold.condition:
        return False  # integers are fewer numbers than the inequality has
    return same_condition(condition, gold.condition, main)


def _without_words(bare: str, gold: Gold) -> str:
    """Return the expression of each part of an answer, without the words beside it."""
    if gold.several and acts_on_list(bare):
        raise Refused(Refusal.CHANGED)
    texts = listed(bare) if gold.several else [bare]
    parts = [answer_part(part, gold.variables) for part in texts if part.strip()]
    if None in parts:
        raise Refused(Refusal.SEVERAL)
    kept = [part.text for part in parts if part]
    if not parts or not all(kept):
        raise Refused(Refusal.UNREADABLE)
    expression = in_its_case(", ".join(kept), gold.cased)
    return expression if MEMBER.match(gold.text or "") else MEMBER.sub("", expression)


def _pair_as_gold(expression: str, gold: Gold) -> str:
    """Return ``(x, y) = (1, 2)`` as a pair; also ``x = 1, y = 2`` if the reference answer is a pair
    such as ``(1, 2)``.
    """
    if pair := NAMED_PAIR.fullmatch(expression):
        names, values = [name.strip() for name in split(pair[1])], split(pair[2])
        if len(names) != len(values) or len(set(names)) < len(names):
            raise Refused(Refusal.DIFFERENT)  # (x, y) = (1, 2, 3)
        if not all(_VARIABLE.fullmatch(name) for name in names):
            raise Refused(Refusal.CHAIN)  # (x+1, y) = (2, 3)
        return _in_order(names, values)
    gold_pair = _PAIR.fullmatch(gold.text or "")
    if not gold_pair or "=" in gold_pair[0] or "=" not in expression:
        return expression
    named = [named_part(part) for part in split(expression)]
    if len(named) != len(split(gold_pair[1])) or not all(part.label for part in named):
        return expression
    names = [part.label for part in named]
    if len(set(names)) < len(names):
        raise Refused(Refusal.DIFFERENT)  # x = 1, x = 2
    return _in_order(names, [part.text for part in named])


def _in_order(names: list[str], values: list[str]) -> str:
    """Return named values as a pair, in the order of x, y, z or a, b, c, or else as given."""
    if in_alphabet(names):
        return in_order_of_names(zip(names, values, strict=True))
    return f"({', '.join(values)})"


def _check_separators(expression: str, gold: Gold) -> None:
    """Refuse several values if the reference answer is one value, and unseparated numbers."""
    plain = THOUSANDS.sub(r"\1", expression)
    unseparated = _UNSEPARATED.search(plain) and not _UNSEPARATED.search(gold.raw)
    too_many = not gold.several and len(split(plain)) > 1
    if unseparated or too_many or expression.count("|") % 2:
        raise Refused(Refusal.SEVERAL)


def _as_it_stands(text: str, cleaned: str, gold: Gold) -> str | None:
    """Return the answer's original text, or ``None`` if math-verify may not compare it."""
    if gold.value is not None or APPROX.search(cleaned):
        return None
    return None if _RATIO.search(text + " " + gold.raw) else text  # math-verify reads 1:2:3 as 1/6


def _equation(text: str, cleaned: str, expression: str, gold: Gold) -> Answer:
    """Read an answer to a reference answer that is an equation, or several of them."""
    target = gold.text or ""
    left, name = target.partition("=")[0], expression.partition("=")[0]
    if _DERIVATIVE.search(target) and "=" in expression and squeezed(name) != squeezed(left):
        # math-verify computes the derivative of one letter by another, which is 0
        raise Refused(Refusal.DIFFERENT)
    if gold.relations > 1:
        return _chain(target, expression)
    if same := _same_left_side(expression, target):
        return Answer((same[1],), pairs=(same,))
    solved = re.fullmatch(r"\s*([A-Za-z])\s*=([^=A-Za-z]*)", target)
    names = {side.strip() for side in expression.split("=")}
    if solved and "=" in expression and solved[1] not in names:
        raise Refused(Refusal.UNEVALUATED)  # x + 3 = 5 does not answer x = 2
    if "=" not in expression and is_sum(left):
        raise Refused(Refusal.DIFFERENT)  # 4 does not answer the curve xy = 4
    if len(EQUALS.findall(expression)) > gold.relations:
        raise Refused(Refusal.CHAIN)
    return Answer((expression,), raw=_as_it_stands(text, cleaned, gold), ordered=gold.ordered)


def _chain(target: str, expression: str) -> Answer:
    """Read an answer to ``x = 2, x = -3``, or to a chain of equations."""
    if values := _values_of_one_name(target, expression):
        return Answer((values[1],), pairs=(values,))
    sides = EQUALS.split(target), EQUALS.split(expression)
    if len(sides[0]) != len(sides[1]):
        raise Refused(Refusal.CHAIN)
    pairs = zip(*sides, strict=True)
    stripped = tuple((wanted.strip(), given.strip()) for wanted, given in pairs)
    return Answer((expression,), pairs=stripped)


def _values_of_one_name(target: str, expression: str) -> tuple[str, str] | None:
    """Return the values of ``x = 2, x = -3`` and of ``x_1 = -3, x_2 = 2`` as two lists. Return
    ``None`` unless both texts are such lists, of the same name.
    """
    lists = []
    for text in (target, expression):
        sides = [part.partition("=") for part in split(text)]
        if len(sides) < 2 or not all(sign and "=" not in value for _, sign, value in sides):
            return None
        names = {re.sub(r"_\{?\d\}?\Z", "", squeezed(name.strip())) for name, _, _ in sides}
        lists.append((names, ", ".join(value.strip() for _, _, value in sides)))
    (target_names, wanted), (answer_names, given) = lists
    return (wanted, given) if len(target_names) == 1 and target_names == answer_names else None


def _as_intervals(cleaned: str, gold: Gold) -> Answer | None:
    """Compare bounds joined by "or" with a union of intervals, whichever of the two is the
    reference answer. Return ``None`` unless exactly one of the texts is written as a union.
    """
    wanted = gold.union
    if (
        wanted
        and re.search(r"\band\b|\\land(?![a-z])|且", cleaned)
        and re.search(r"[<>]|\\[lg]e(?![a-z])", cleaned)
    ):
        raise Refused(Refusal.DIFFERENT)
    if not gold.text or ("\\cup" in gold.text) == ("\\cup" in cleaned):
        return None
    given = MEMBER.sub("", cleaned) if "\\cup" in cleaned else union(cleaned)
    wanted = gold.text if "\\cup" in gold.text else wanted
    return Answer((given,), pairs=((MEMBER.sub("", wanted), given),)) if wanted and given else None


def _same_left_side(expression: str, gold: str) -> tuple[str, str] | None:
    """Return the right sides of a reference answer ``I_{max} = …`` and of an answer with the same
    left side or without one. Return ``None`` for anything else.
    """
    (left, sign, right), (name, equals, value) = gold.partition("="), expression.partition("=")
    if (
        not (sign and UNKNOWN.fullmatch(left))
        or "=" in right
        or "=" in value
        or RELATION.search(gold + expression)
        or PLUS_MINUS.search(gold + expression)
    ):
        return None
    sums = is_sum(left)
    if equals and not sums and squeezed(name) == "-" + squeezed(left):
        return right.strip(), rf"-({value.strip()})"
    if equals and squeezed(name) == squeezed(left):
        return right.strip(), value.strip()
    return (right.strip(), expression) if not equals and not sums else None


def _sides(expression: str, raw: str | None, gold: Gold) -> Answer:
    """Return what must equal the reference answer: each side of a chain of equations, without a
    name in front. A list is one side.
    """
    sides: list[str] = []
    rounded: list[str] = []
    for part in split(expression) if gold.several else [expression]:
        exact, *near = [side.strip() for side in APPROX.split(part)]
        if near and exact != "e" and (UNKNOWN.fullmatch(exact) or not exact):
            exact, *near = near  # "x \\approx 3.46"
        equal = [side.strip() for side in EQUALS.split(exact)]
        if len(equal) > 1 and gold.variables & letters(_CALL.sub("", equal[0])):
            raise Refused(Refusal.CHAIN)  # "x = 2x"
        if len(equal) > 1 and (
            UNKNOWN.fullmatch(equal[0])
            or (len(equal) == 2 and not gold.variables and named_part(exact, strict=False).label)
        ):
            del equal[0]  # "x = 72"
        equal = [in_degrees(side, gold) for side in equal]
        # Both sides of "36 + 36 = 72" must equal 72, so "71 = 72" is wrong.
        if not all(equal) or len(equal) > (1 if gold.several else 4) or (gold.several and near):
            raise Refused(Refusal.CHAIN)
        sides += equal
        rounded += near
    listed = (", ".join(sides),) if gold.several else tuple(sides)
    return Answer(listed, tuple(rounded), raw if len(sides) == 1 else None, ordered=gold.ordered)


def _read_named(bare: str, gold: Gold) -> Answer:
    """Read an answer to a list whose parts have names. Parts are matched by name, or by position if
    the answer has no names.
    """
    if EITHER.search(bare) and not EITHER.search(gold.raw):
        raise Refused(Refusal.HEDGE)  # x = 1 or y = 2
    if (pair := NAMED_PAIR.fullmatch(bare)) and len(split(pair[1])) == len(split(pair[2])):
        named = [
            Part(value.strip(), name.strip())
            for name, value in zip(split(pair[1]), split(pair[2]), strict=False)
        ]
    else:
        inside = _PAIR.fullmatch(bare)
        pieces = split(inside[1]) if inside and len(split(bare)) == 1 else listed(bare)
        found = [answer_part(piece, gold.variables) for piece in pieces if piece.strip()]
        if None in found or not all(part.text for part in found if part):
            raise Refused(Refusal.SEVERAL)
        named = [
            part if part.label and "=" not in part.text else named_part(part.text)
            for part in found
            if part
        ]
    if len(named) != len(gold.parts) or any("=" in part.text for part in named):
        raise Refused(Refusal.DIFFERENT)
    if any(part.label for part in named):
        by_name = [
            [part for part in named if same_name(part.label, target.label)] for target in gold.parts
        ]
        if any(len(found) != 1 for found in by_name):
            raise Refused(Refusal.DIFFERENT)
        named = [found[0] for found in by_name]
    return Answer(
        tuple(part.text for part in named),
        pairs=tuple(
            (target.text, part.text) for target, part in zip(gold.parts, named, strict=True)
        ),
    )
