"""The range of a letter: conditions at the end of a text, and bounds as intervals."""

from __future__ import annotations

import re
from dataclasses import dataclass

from r1_recipes.verification.words import letters

_SET = r"(?:\\math(?:bb|bf|rm)\s*\{?\s*)?[NZRQ]\s*\}?\s*(?:[_^]\s*\{?\s*[*+]\s*\}?|\+)?"
_KIND = r"(?:(?:positive|natural|non-?negative)\s+)?(?:integer|real|number)s?(?:\s+numbers?)?"
# A condition at the end of a text: "k \\in \\mathbb{Z}", "k is an integer", "for all integers n",
# "n \\ge 1", "x \\ne -1".
_CONDITION = re.compile(
    r"(?P<before>(?:\s*[,;]\s*|\s*\(\s*|\s+)(?:(?:for|where|with|when|if)\b\s*|\\forall\s*|"
    r"(?:all|any|every|some)\s+(?=[^\\]*\\in))*)"
    rf"(?:(?:{_KIND}\s+)?(?P<letter>[A-Za-z])\s*\\in\s*(?P<set>{_SET})"
    rf"|(?P<named>[A-Za-z])\s+(?:is|are)\s+(?:an?\s+|any\s+)*{_KIND}"
    rf"|(?:all|any|every)\s+(?:{_KIND}\s+)?(?P<free>[A-Za-z])"
    r"|(?P<bound>[k-n])\s*(?:\\ge|>)\s*[01]"
    r"|(?P<hole>[A-Za-z])\s*\\ne\s*-?[^\s,()]+)\s*\)?\s*\Z"
)


@dataclass(frozen=True)
class Condition:
    r"""The range of a letter, such as ``k \in \mathbb{Z}``."""

    letter: str
    range: str  # ``Z``, ``N+``, ``all``, or a bound itself: ``n\\ge1``
    text: str = ""


def split_condition(text: str) -> tuple[str, Condition | None]:
    """Return a text without the condition that it ends with, and that condition or ``None``."""
    found = _CONDITION.search(text)
    if found is None:
        return text, None
    main = text[: found.start()].strip(" ,;")
    ranged = found["letter"] or found["named"] or found["free"]
    letter = ranged or found["bound"] or found["hole"]
    if letter not in letters(main):
        return text, None
    condition = found[0].strip(" ,;()")
    if ranged:
        return main, Condition(letter, _range(found["set"], found[0]), condition)
    # "x > 0, x \ne 1" is a list of conditions. "x \ne 1" with nothing before it is the answer
    # itself.
    if not found["before"].strip() or re.search(r"[<>]|\\[lg]e(?![a-z])", main):
        return text, None
    return main, Condition(letter, re.sub(r"\s", "", condition), condition)


def _range(bounds: str | None, condition: str) -> str:
    r"""Return ``Z``, ``N+`` and so on for ``\mathbb{Z}`` or for "k is a positive integer"."""
    if bounds is None or re.search("positive|natural|negative", condition):
        bounds = condition  # "positive integer k \\in \\mathbb{Z}"
    if "real" in bounds:
        return "R"
    if re.search("non-?negative", bounds):
        return "N"
    if re.search("positive|natural", bounds):
        return "N+"
    if "integer" in bounds:
        return "Z"
    if "\\in" not in bounds and "{" not in bounds and not re.fullmatch(r"\W*[NZRQ]\W*", bounds):
        return "all"
    # N* is N+. In Z*, Q* and R* the star only excludes 0.
    return re.sub(r"\\math(?:bb|bf|rm)|[\s{}_^]", "", bounds).replace("N*", "N+")


_BOUND = r"(?:[^<>=,|_A-Za-z\\]|\\(?:frac|sqrt|pi|infty)(?![A-Za-z]))+?"
_ONE_BOUND = re.compile(rf"\s*([A-Za-z])\s*(<|>|\\le|\\ge)\s*({_BOUND})\s*")
_TWO_BOUNDS = re.compile(rf"\s*({_BOUND})\s*(<|\\le)\s*([A-Za-z])\s*(<|\\le)\s*({_BOUND})\s*")
_FALLING = re.compile(rf"\s*({_BOUND})\s*(>|\\ge)\s*([A-Za-z])\s*(>|\\ge)\s*({_BOUND})\s*")
_BOUND_FIRST = re.compile(rf"\s*({_BOUND})\s*(<|>|\\le|\\ge)\s*([A-Za-z])\s*")
EITHER = re.compile(r"\s*,?\s*(?:\bor\b|\\lor(?![a-z])|\\vee(?![a-z])|或)\s*")
_TURNED = {">": "<", "\\ge": "\\le", "<": ">", "\\le": "\\ge"}
_RAYS = {
    "<": r"(-\infty,{})",
    "\\le": r"(-\infty,{}]",
    ">": r"({},\infty)",
    "\\ge": r"[{},\infty)",
}


def two_bounds(text: str) -> str:
    """Return ``1 > x > 0``, ``0 < x and x < 1`` and ``x > 0, x < 1`` as ``0 < x < 1``, and any
    other text unchanged.
    """
    chain = _FALLING.fullmatch(text)
    if chain:
        start, left, name, right, end = chain.groups()
        return f"{end} {_TURNED[right]} {name} {_TURNED[left]} {start}"
    bounds = {}
    for piece in re.split(r"\s*(?:,|\band\b|\\land(?![a-z])|且)\s*", text):
        one = _ONE_BOUND.fullmatch(piece)
        first = _BOUND_FIRST.fullmatch(piece)
        if one:
            name, sign, end = one.groups()
        elif first:
            end, sign, name = first.groups()
            sign = _TURNED[sign]
        else:
            return text
        is_upper = sign in ("<", "\\le")
        if (name, is_upper) in bounds:
            return text
        bounds[name, is_upper] = f"{sign} {end}" if is_upper else f"{end} {_TURNED[sign]}"
    low = bounds.get((name, False))
    high = bounds.get((name, True))
    if len(bounds) != 2 or low is None or high is None:
        return text
    return f"{low} {name} {high}"


def union(text: str) -> str | None:
    """Return bounds on one letter that are joined by "or", such as ``x < 2 or x > 3``, as a union
    of intervals; ``None`` for any other text.
    """
    intervals = []
    names = set()
    for piece in EITHER.split(text):
        one = _ONE_BOUND.fullmatch(piece)
        two = _TWO_BOUNDS.fullmatch(piece)
        if one:
            name, sign, end = one.groups()
            intervals.append(_RAYS[sign].format(end))
        elif two:
            start, left, name, right, end = two.groups()
            opening = "(" if left == "<" else "["
            closing = ")" if right == "<" else "]"
            intervals.append(f"{opening}{start},{end}{closing}")
        else:
            return None
        names.add(name)
    if len(intervals) < 2 or len(names) > 1:
        return None
    return r" \cup ".join(intervals)
