r"""Read lists, tuples, intervals, matrices and equations as trees, and compare trees.

A tree is a tuple. It begins with its kind: "" for an expression, the two brackets of a tuple, a set
or an interval, the shape of a matrix, "=" for an equation, whose left side is a text.
"""

import re
from typing import Any

from r1_recipes.verification.expressions import equal, value_of
from r1_recipes.verification.numbers import read_number
from r1_recipes.verification.spelling import squeezed

Tree = tuple[Any, ...]
MAX_PARTS = 20
MAX_SIDES = 4  # of a chain of equations: x = 36 + 36 = 72
MAX_DEPTH = 12  # of brackets inside brackets
# The left side of an equation that only names its value: x_1, f^{-1}(x), AB, (x, y).
NAME = re.compile(
    r"(?:\\(?!(?:sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt|frac|pi)(?![A-Za-z]))[A-Za-z]+|[A-Za-z]+)"
    r"'*(?:_(?:\w|\{[^{}]*\}))?(?:\^\{-1\})?\s*(?:\([^()=]*\))?|"
    r"\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\)"
)
# It may also be a sum of unknowns, x_1 + x_2, with digits only as indices and powers.
_SUBJECT = re.compile(r"(?!\s*-|.*\\n(?:ot|e)\b)(?=.*[A-Za-z])(?:[^\d<>!]|[_^]\{?\d+\}?)+")
SEPARATOR = re.compile("[,;]")
_EQUALS = re.compile(r"(?<![<>!:])=|\\equiv(?![a-z])")
_UNION = re.compile(r"\\cup(?![a-z])")
_BOUND = re.compile(r"(<|>|\\le(?![a-z])|\\ge(?![a-z]))")
_TURNED = {">": "<", "\\ge": "\\le"}
_MEMBER = re.compile(r"[A-Za-z]\s*\\in(?![a-z])")
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_MATRIX = re.compile(r"(?s)\\begin\{pmatrix\}(.*)\\end\{pmatrix\}")
_GROUP = re.compile(r"[(\[{][^()\[\]{}]*[)\]}]")
_BRACKETS = re.compile(r"(?s)(\\\{|[(\[])(.*)(\\\}|[)\]])")
_VECTOR = re.compile(r"\d+x1|1x\d+|\(\)")  # kinds that may stand for each other


def split(text: str, pattern: re.Pattern[str] = SEPARATOR) -> list[str]:
    """Split a text where a pattern matches outside brackets."""
    masked, found, depth = text, int(bool(pattern.search(text))), 0
    while found:
        masked, found = _GROUP.subn(lambda group: "\0" * len(group[0]), masked)
        depth += 1
        if depth > MAX_DEPTH:
            return [text]
    parts, start = [], 0
    for match in pattern.finditer(masked):
        parts.append(text[start : match.start()].strip())
        start = match.end()
    return [*parts, text[start:].strip()]


def build(text: str) -> Tree:
    """Return the tree of a text."""
    if read_number(text):
        return ("", text)
    parts = [part for part in split(text) if part]
    if len(parts) > 1:
        items: list[Any] = []
        for tree in map(build, parts):  # 0, \pm 1 is a list of three
            items.extend(tree[1:] if tree[0] == "list" else [tree])
        return ("list", *items)
    text = _MEMBER.sub("", parts[0]).strip() if parts else ""
    left, *rest = split(text, _EQUALS)
    if left and rest and all(rest):
        return ("=", left, *map(build, rest))
    union = split(text, _UNION)
    if len(union) > 1:
        return ("union", *map(build, union))
    if len(_PLUS_MINUS.findall(text)) == 1:
        return ("list", *(build(_PLUS_MINUS.sub(sign, text)) for sign in "+-"))
    return _interval(text) or _brackets(text) or ("", text.removeprefix("+").strip())


def _brackets(text: str) -> Tree | None:
    """Return a tuple, a set, an interval or a matrix; ``None`` for any other text."""
    matrix, brackets = _MATRIX.fullmatch(text), _BRACKETS.fullmatch(text)
    if matrix:
        rows = [list(map(build, row.split("&"))) for row in matrix[1].split("\\\\") if row.strip()]
        shape = f"{len(rows)}x{len(rows[0])}" if rows else "0x0"
        return (shape, *(part for row in rows for part in row))
    if not brackets or brackets[2].count("(") != brackets[2].count(")"):
        return None
    parts = [part for part in split(brackets[2]) if part]
    kind = (brackets[1] + brackets[3]).replace("\\", "")
    return (kind, *map(build, parts)) if len(parts) > 1 or kind == "{}" else None


def _interval(text: str) -> Tree | None:
    """Return bounds on a name as an interval; ``None`` for any other text."""
    pieces = [piece.strip() for piece in _BOUND.split(text)]
    if len(pieces) == 1 or not all(pieces):
        return None
    if pieces[1] in _TURNED:
        pieces = [_TURNED.get(piece, piece) for piece in reversed(pieces)]
    if len(pieces) == 3:
        is_above = NAME.fullmatch(pieces[0])
        pieces = ["-\\infty", "<", *pieces] if is_above else [*pieces, "<", "\\infty"]
    if len(pieces) != 5 or pieces[3] in _TURNED or not NAME.fullmatch(pieces[2]):
        return None
    kind = ("(" if pieces[1] == "<" else "[") + (")" if pieces[3] == "<" else "]")
    return (kind, build(pieces[0]), build(pieces[4]))


def same(gold: Tree, answer: Tree, ordered: bool = False) -> bool:
    """Return whether an answer equals the reference answer."""
    if gold[0] == "=":
        return _same_equation(gold, answer)
    if answer[0] == "=":
        return _same_sides(gold, answer[1:], ordered)
    if gold[0] and answer[0]:
        return _same_parts(gold, answer, ordered)
    return gold[0] == answer[0] and _same_value(gold[1], answer[1])


def _same_equation(gold: Tree, answer: Tree) -> bool:
    _, left, value, *more = gold
    is_name = NAME.fullmatch(left) is not None
    if answer[0] != "=":
        return is_name and same(value, answer)
    if len(gold) == len(answer) and _name_of(left) == _name_of(answer[1]):
        return all(map(same, gold[2:], answer[2:]))
    if more or len(answer) != 3 or value[0] or answer[2][0]:
        return False
    if is_name and value_of(value[1]) is not None:
        return False  # 2x+3=7 does not answer x=2
    sides = (f"({left})-({value[1]})", f"({answer[1]})-({answer[2][1]})")
    return equal(*sides, up_to_factor=True)


def _name_of(left: str) -> str:
    """Return the name on the left of an equation, ``y`` for ``f(x)`` and ``y(x)``."""
    return re.sub(r"\A[fy]\([a-z]\)\Z", "y", squeezed(left))


def _same_sides(gold: Tree, sides: Tree, ordered: bool) -> bool:
    """Compare each side of ``x = 36 + 36 = 72``, but no name that lacks the gold's letters."""
    name, *values = sides
    letters = re.sub(r"\\[A-Za-z]+|\([^()]*\)|_(?:\w|\{[^{}]*\})", "", name)
    known = "" if gold[0] else re.sub(r"\\[A-Za-z]+", "", gold[1])
    is_name = NAME.fullmatch(name) or _SUBJECT.fullmatch(name)
    if not is_name or set(re.findall("[A-Za-z]", letters)) & set(known):
        values.append(build(name))
    return len(values) <= MAX_SIDES and all(same(gold, side, ordered) for side in values)


def _same_parts(gold: Tree, answer: Tree, ordered: bool) -> bool:
    """Compare lists, sets and unions in any order unless ``ordered``, other parts in theirs."""
    kinds, parts, others = {gold[0], answer[0]}, list(gold[1:]), list(answer[1:])
    if len(parts) != len(others) or len(parts) > MAX_PARTS:
        return False
    named, given = _named(parts), _named(others)
    names = {
        re.sub(r"_\d\Z", "", _name_of(part[1]))
        if part[0] == "=" and len(part) == 3 and NAME.fullmatch(part[1])
        else ""
        for part in (*parts, *others)
    }
    # x_1 = 2, x_2 = 3 is x = 2 or x = 3.
    if not (named and given) and len(names) == 1 and names != {""}:
        named, parts, others = {}, [part[2] for part in parts], [part[2] for part in others]
    if kinds == {"list", "()"} and (named or gold[0] == "()"):
        parts, others, ordered = [*named.values()] or parts, [*given.values()] or others, True
    elif kinds <= {"list", "{}"} or (gold[0] == "union" and kinds <= {"union", "list"}):
        ordered = ordered or bool(named and not given)
    elif len(kinds) == 1 or ("()" in kinds and all(map(_VECTOR.fullmatch, kinds))):
        ordered = True
    else:
        return False
    for part in parts:
        candidates = others[:1] if ordered else others
        found = next((other for other in candidates if same(part, other)), None)
        if found is None:
            return False
        others.remove(found)
    return True


def _named(parts: list[Tree]) -> dict[str, Tree]:
    """Return the values of ``x = 1, y = 2`` by name, none if a part has no name of its own."""
    named = {_name_of(part[1]): part[2] for part in parts if part[0] == "="}
    return dict(sorted(named.items())) if len(named) == len(parts) else {}


def _same_value(gold: str, answer: str) -> bool:
    """Return whether two expressions have the same text, are the same number or have one value."""
    number, other = read_number(gold), read_number(answer)
    if number and other:
        return number.equals(other)
    if squeezed(gold) == squeezed(answer) or equal(gold, answer):
        return True
    exact, decimal = (answer, number) if number else (gold, other)
    value = value_of(exact) if decimal and decimal.is_decimal else None
    if decimal is None or value is None:
        return False
    return decimal.rounds(value) if number else decimal.is_near(value)
