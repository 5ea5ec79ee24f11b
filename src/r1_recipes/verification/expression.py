r"""An answer's expression: its kind, its names and bounds and conditions, and what of it has to
equal the gold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

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
from r1_recipes.verification.lexicon import (
    Refusal,
)
from r1_recipes.verification.units import without_unit
from r1_recipes.verification.words import (
    GREEK,
    NAMED_PAIR,
    UNKNOWN,
    Condition,
    Part,
    answer_part,
    depths,
    letters,
    named_part,
    split,
    split_condition,
    strange_words,
    two_bounds,
    union,
)

_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|in|to|sim)(?![A-Za-z])|\\(?:right|left)arrow")
_MEMBER = re.compile(r"\A\s*[A-Za-z]\s*\\in(?![A-Za-z])\s*")
_PAIR = re.compile(r"\\?\{?\s*[(](.*,.*)[)]\s*\\?\}?", re.DOTALL)
_CURVE = re.compile(r"\A\s*[A-Za-z]\w?\s*:\s*(?=[^:]*=)")  # "L: y = 2x + 3"
_IS = re.compile(r"\b([A-Za-z])\s+(?:is|equals)\s+(?=[-\d\\(])")  # "the value of x is 5"
_FUNCTION = re.compile(r"\s*(?P<name>[A-Za-z])\s*\(\s*(?P<of>[A-Za-z])\s*\)\s*=(?P<value>[^=]*)")
_CHOOSE = re.compile(
    r"C\((\d+),\s*(\d+)\)|(?:\{\}|)\^?_?\{?(\d+)\}?\s*C_?\{?(\d+)\}?|C_\{?(\d+)\}?\^\{?(\d+)\}?"
)
# Towers of powers and factorials: each would cost a worker its whole time limit, and no plain gold
# is answered with one.
_TOWER = re.compile(
    r"\^[\s{(]*\d+[\s}]*\^|\^\{?\d{2,}\}?\s*\)+\s*\^\{?\d{2,}|"
    r"\)\s*\^[^()^]*\)\s*\^[^()^]*\)\s*\^|\^\{?-?\d{5,}|\d{5,}\s*!|![\s)}]*!"
)
# Two numbers with nothing, or nothing known, between them: math-verify adds or joins them, or drops
# what it cannot read.
_UNSEPARATED = re.compile(r"(?:[\d.]|(?<!matrix)\})\s+[\d.]|\.\.|%\s*[^\s)}]|---|\d['\"]+\d")
_BASE = re.compile(r"\d\s*_\s*(?:\{\s*([^{}]*?)\s*\}|(\w+)|\W)")
_RATIO = re.compile(r"\d\s*:\s*\d")
_MODULO = re.compile(
    r"\\[bp]?mod(?![A-Za-z])|\.\.\.|…|\\[lc]?dots(?![A-Za-z])"
)  # math-verify drops both
_DERIVATIVE = re.compile(r"\\frac\s*\{\s*d[^{}]*\}\s*\{\s*d")
_UNDONE = re.compile(
    r"\\(?:sum|prod|i*int|oint|lim|gcd|max|min|det|operatorname)(?![A-Za-z])|"
    r"\\frac\s*\{\s*d\s*(?:\}\s*\{\s*d|\()|\{vmatrix\}|"
    r"\\end\{pmatrix\}\s*(?:\\cdot|\\times)?\s*\\begin"
)
# A word at a command or a brace is a factor: \\sqrt{2}wxyz.
_GLUED_WORD = re.compile(
    r"(?:\}|\\pi)[A-Za-z]{4,}|(?<![A-Za-z\\])[A-Za-z]{4,}\\(?:sqrt|frac|pi|log|ln|sin|cos|tan)"
)
# A condition that an answer may have beside a gold without one.
_HARMLESS = re.compile(r"[k-n] Z|n [NZ]\+?|. all|. [k-n](?:\\ge[01]|>0)")
# Where the left side of an equation may have the gold's own letter: f(x), a_n, dy/dx.
_CALL = re.compile(
    r"(?<![A-Za-z])[A-Za-z](?:'*|\^\{?-1\}?)\s*\([A-Za-z](?:,\s*[A-Za-z])*\)|_(?:\w|\{[^{}]*\})|"
    r"\\frac\s*\{\s*d\w*\s*\}\s*\{\s*d\w\s*\}|[A-Za-z]{3,}"
)
_TASK = re.compile(r"\\(?:sum|prod|i*int|oint|lim)(?![A-Za-z])")
# An arithmetic task, and not its result, is no answer to a plain number.
_OPERATOR = re.compile(r"\\frac|\\cdot|\\times|\\div|[-+*/^]|[)}]\s*\\left|[)}]\s*\(")
MAX_OPERATIONS = 3
_INDEX = r"(?:\s*_\s*(?:\w|\{[^{}]*\}))?"
# x, x_1, \\theta, f(x), f'(x), [ABC], \\overline{AB}, \\angle A, dy/dx, a word.
_NAME = re.compile(
    rf"(?:[A-Za-z]'*{_INDEX}|"
    rf"\\(?:{'|'.join(GREEK)}){_INDEX})(?:\s*\^\s*\{{?-1\}}?)?(?:\s*\([^()=]*\))?|\[[A-Z]+\]|"
    r"\\(?:overline|angle|vec|hat|bar|widehat|triangle|overrightarrow|mathbf|mathrm|"
    r"text)\s*(?:\{[^{}]*\}|[A-Za-z]+)|\|?[A-Z]{2}\|?|"
    r"\\frac\s*\{\s*d[^{}]*\}\s*\{\s*d\w\s*\}|(?:[A-Za-z]{3,}\s*)+|\([A-Za-z,\s]+\)"
)


@dataclass(frozen=True)
class Answer:
    """An answer: what has to equal the gold, or why there is nothing."""

    sides: tuple[str, ...] = ()  # each as math-verify shall read it
    rounded: tuple[str, ...] = ()  # decimals behind a sign of approximation
    raw: str | None = None  # the answer as it stands, if that may decide as well
    verdict: bool | None = None  # if it needs no comparison
    refusal: Refusal | None = (
        None  # why there is nothing to compare; with sides: what to call it if one of them differs
    )
    ordered: bool = False  # the parts of a list are compared in their order
    pairs: tuple[
        tuple[str, str], ...
    ] = ()  # a gold's named parts, each with the answer's of that name


def read_expression(text: str, cleaned: str, gold: Gold) -> Answer:
    if _GLUED_WORD.search(cleaned) and not _GLUED_WORD.search(gold.raw):
        return Answer(refusal=Refusal.CHANGED)
    if _TOWER.search(cleaned) and not _TOWER.search(gold.raw):
        return Answer(refusal=Refusal.HOSTILE)
    # Honest answers are about as long and as deep as their gold; the parsers take seconds for the
    # rest.
    if len(cleaned) > max(300, 4 * len(gold.raw)) or max(depths(cleaned)) > max(
        10, 2 * max(depths(gold.raw))
    ):
        return Answer(refusal=Refusal.HOSTILE)
    if not gold.variables and _TASK.match(cleaned):  # "\\sum_{k=1}^{10} k = 55"
        tops = [
            index
            for index, (char, depth) in enumerate(zip(cleaned, depths(cleaned), strict=False))
            if char == "=" and not depth
        ]
        cleaned = cleaned[tops[0] + 1 :].strip() if len(tops) == 1 else cleaned
    if (bounds := _as_intervals(cleaned, gold)) is not None:
        return bounds
    cleaned = (
        two_bounds(cleaned)
        if _RELATION.search(gold.text or "") or _kind(gold.text or "")
        else cleaned
    )
    cleaned, condition = split_condition(cleaned)
    if (
        condition
        and condition.range[:1] in "NZ"
        and re.search(r"[<>]|\\[lg]e(?![a-z])", cleaned)
        and not gold.condition
    ):
        return Answer(refusal=Refusal.DIFFERENT)  # fewer numbers than the inequality has
    if condition and not _same_condition(condition, gold.condition, cleaned):
        return Answer(refusal=Refusal.DIFFERENT)
    cleaned = _as_gold_says(_IS.sub(r"\1 = ", _CURVE.sub("", cleaned)), condition, gold)
    if not gold.variables and not gold.several:
        cleaned = named_part(cleaned, strict=False).text  # "\\angle A = 60", "x_1 + x_2 = 2"
    bare = without_unit(cleaned, every=not gold.variables)
    if gold.variables and strange_words(bare, gold.variables):
        return Answer(refusal=Refusal.CHANGED)
    if gold.parts:
        return _read_named(bare, gold)
    parts = [
        answer_part(part, gold.variables)
        for part in (listed(bare) if gold.several else [bare])
        if part.strip()
    ]
    if None in parts:
        return Answer(refusal=Refusal.SEVERAL)
    kept = [part.text for part in parts if part]
    if not parts or not all(kept):
        return Answer(refusal=Refusal.UNREADABLE)
    expression = in_its_case(", ".join(kept), gold.cased)
    expression = _MEMBER.sub("", expression) if not _MEMBER.match(gold.text or "") else expression
    if pair := NAMED_PAIR.fullmatch(expression):
        names = [name.strip() for name in split(pair[1])]
        if len(names) != len(split(pair[2])) or len(set(names)) < len(names):
            return Answer(refusal=Refusal.DIFFERENT)  # (x, y) = (1, 2, 3)
        if not all(re.fullmatch(r"\\?[A-Za-z]+(?:_(?:\w|\{[^{}]*\}))?", name) for name in names):
            return Answer(refusal=Refusal.CHAIN)  # (x+1, y) = (2, 3)
        expression = (
            _in_order_of_names(zip(names, split(pair[2]), strict=False))
            if _in_alphabet(names)
            else f"({pair[2]})"
        )
    elif (
        (gold_pair := _PAIR.fullmatch(gold.text or ""))
        and "=" not in (gold.text or "")
        and "=" in expression
    ):
        named = [named_part(part) for part in split(expression)]
        if all(part.label for part in named) and len(named) == len(split(gold_pair[1])):
            values = [(part.label, part.text) for part in named]
            ordered = _in_alphabet([part.label for part in named])
            expression = (
                _in_order_of_names(values)
                if ordered
                else f"({', '.join(part.text for part in named)})"
            )
    unseparated = THOUSANDS.sub(r"\1", expression)
    if _UNSEPARATED.search(unseparated) and not _UNSEPARATED.search(gold.raw):
        return Answer(refusal=Refusal.SEVERAL)
    if (not gold.several and len(split(unseparated)) > 1) or expression.count("|") % 2:
        return Answer(refusal=Refusal.SEVERAL)
    if refusal := _mismatch(text, expression, gold):
        return Answer(refusal=refusal)
    # As it stands, 1:2:3 is a sixth.
    raw = (
        text
        if gold.value is None
        and not APPROX.search(cleaned)
        and not _RATIO.search(text + " " + gold.raw)
        else None
    )
    derivative = _DERIVATIVE.search(gold.text or "")
    if (
        derivative
        and "=" in expression
        and squeezed(expression.partition("=")[0]) != squeezed((gold.text or "").partition("=")[0])
    ):
        return Answer(
            refusal=Refusal.DIFFERENT
        )  # math-verify takes the derivative of one letter by another: 0
    if gold.relations > 1:
        sides = [EQUALS.split(one) for one in (gold.text or "", expression)]
        if len(sides[0]) != len(sides[1]):
            return Answer(refusal=Refusal.CHAIN)
        return Answer(
            (expression,),
            pairs=tuple((own.strip(), said.strip()) for own, said in zip(*sides, strict=True)),
        )
    if gold.relations == 1 and (same := _same_left_side(expression, gold.text or "")):
        return Answer((same[1],), pairs=(same,))
    solved = re.fullmatch(r"\s*([A-Za-z])\s*=([^=A-Za-z]*)", gold.text or "")
    if (
        solved
        and "=" in expression
        and solved[1] not in {side.strip() for side in expression.split("=")}
    ):
        return Answer(refusal=Refusal.UNEVALUATED)  # x + 3 = 5 for x = 2
    if (
        gold.relations == 1
        and "=" not in expression
        and _is_sum((gold.text or "").partition("=")[0])
    ):
        return Answer(refusal=Refusal.DIFFERENT)  # 4 is no answer to the curve xy = 4
    if gold.relations:
        chain = len(EQUALS.findall(expression)) > gold.relations
        return (
            Answer(refusal=Refusal.CHAIN)
            if chain
            else Answer((expression,), raw=raw, ordered=gold.ordered)
        )
    return _sides(expression, raw, gold)


def _mismatch(text: str, expression: str, gold: Gold) -> Refusal | None:
    """Why an expression cannot be the gold, whatever its value: another kind, another base, a task
    in place of its result.
    """
    target = _MEMBER.sub("", gold.text or gold.raw)
    kinds = {_kind(expression), "(" if _RELATION.search(target) else _kind(target)} - {""}
    if (
        len(kinds) > 1
        or (_MODULO.search(text) and not _MODULO.search(gold.raw))
        or (gold.value and _RELATION.search(expression))
        or (_is_list(gold) and (_RELATION.search(expression) or _kind(expression) == "("))
        or _BASE.findall(expression) != _BASE.findall(gold.text or gold.raw)
    ):
        return Refusal.DIFFERENT
    if _UNDONE.search(expression) and not _UNDONE.search(gold.raw):
        return Refusal.UNEVALUATED
    if re.search(r"[^A-Za-z\s][^\\]*\\in(?![A-Za-z])", expression) and "\\in" not in gold.raw:
        return Refusal.DIFFERENT  # x^2 \\in (1, 2)
    if _unsimplified(expression):
        return Refusal.UNEVALUATED
    if (
        gold.value is not None
        and "=" not in expression
        and len(_OPERATOR.findall(expression.lstrip("-"))) > MAX_OPERATIONS
    ):
        return Refusal.UNEVALUATED
    return None


def _is_list(gold: Gold) -> bool:
    """Whether a gold is a list of values, which no pair and no interval is."""
    text = gold.text or ""
    return (
        gold.several
        and not gold.parts
        and not _RELATION.search(text)
        and (len(split(text)) > 1 or text.lstrip().startswith(r"\{"))
    )


def _in_degrees(side: str, gold: Gold) -> str:
    """An angle in the gold's measure: 60 degrees for pi/3, and pi/3 for 60 degrees."""
    if "\\circ" in side and "\\circ" not in gold.raw and "\\pi" in gold.raw:
        number = re.fullmatch(r"(-?[\d./]+)\s*\^\s*\{?\s*\\circ\s*\}?\s*", side)
        return rf"\frac{{{number[1]}\pi}}{{180}}" if number else r"\emptyset"
    if "\\circ" in gold.raw and "\\circ" not in side and "\\pi" in side:
        return rf"\frac{{180({side})}}{{\pi}}"
    return side


def _as_intervals(cleaned: str, gold: Gold) -> Answer | None:
    """Bounds joined by "or" against a union of intervals, either way round; ``None``: it is not
    about these.
    """
    own = gold.union
    if (
        own
        and re.search(r"\band\b|\\land(?![a-z])|且", cleaned)
        and re.search(r"[<>]|\\[lg]e(?![a-z])", cleaned)
    ):
        return Answer(refusal=Refusal.DIFFERENT)
    if not gold.text or ("\\cup" in gold.text) == ("\\cup" in cleaned):
        return None
    said = _MEMBER.sub("", cleaned) if "\\cup" in cleaned else union(cleaned)
    own = gold.text if "\\cup" in gold.text else own
    return Answer((said,), pairs=((_MEMBER.sub("", own), said),)) if own and said else None


def _same_left_side(expression: str, gold: str) -> tuple[str, str] | None:
    """The right sides of a gold ``I_{max} = …`` and of an answer that names the same, or
    nothing.
    """
    (left, sign, right), (name, equals, said) = gold.partition("="), expression.partition("=")
    if (
        not (sign and UNKNOWN.fullmatch(left))
        or "=" in right
        or "=" in said
        or _RELATION.search(gold + expression)
        or PLUS_MINUS.search(gold + expression)
    ):
        return None
    sums = _is_sum(left)
    if equals and not sums and squeezed(name) == "-" + squeezed(left):
        return right.strip(), rf"-({said.strip()})"
    if equals and squeezed(name) == squeezed(left):
        return right.strip(), said.strip()
    return (right.strip(), expression) if not equals and not sums else None


def _is_sum(left: str) -> bool:
    """Whether the left side of an equation is no name, but says something itself: x + y, x_1x_2,
    |z|, \\sin x.
    """
    return _NAME.fullmatch(left.strip()) is None


def _unsimplified(expression: str) -> bool:
    """Whether a sum has three terms or more that could be added at once: ``a+1+a-2+a+3+a-4``,
    ``76-(…)+13-2``.
    """
    level = depths(expression)
    marked = "".join(
        "\0" if char in "+-" and not depth else char
        for char, depth in zip(expression, level, strict=False)
    )
    terms = [term.strip() for term in marked.split("\0") if term.strip()]
    numbers = [
        term
        for term in terms
        if re.fullmatch(r"[\d.\s]+|\((?:[-\d.\s+*/]|\\cdot|\\times)+\)", term)
    ]
    return len(numbers) > 2 or any(terms.count(term) > 2 for term in terms)


def _sides(expression: str, raw: str | None, gold: Gold) -> Answer:
    """What has to equal the gold: each side of a chain of equations, behind a name; a
    list as one.
    """
    sides: list[str] = []
    rounded: list[str] = []
    for part in split(expression) if gold.several else [expression]:
        exact, *near = [side.strip() for side in APPROX.split(part)]
        if near and exact != "e" and (UNKNOWN.fullmatch(exact) or not exact):
            exact, *near = near  # "x \\approx 3.46"
        equal = [side.strip() for side in EQUALS.split(exact)]
        if len(equal) > 1 and gold.variables & letters(_CALL.sub("", equal[0])):
            return Answer(refusal=Refusal.CHAIN)  # "x = 2x"
        if len(equal) > 1 and (
            UNKNOWN.fullmatch(equal[0])
            or (len(equal) == 2 and not gold.variables and named_part(exact, strict=False).label)
        ):
            del equal[0]  # "x = 72"
        equal = [_in_degrees(side, gold) for side in equal]
        # "36 + 36 = 72" says 72 twice; "71 = 72" says two things.
        if not all(equal) or len(equal) > (1 if gold.several else 4) or (gold.several and near):
            return Answer(refusal=Refusal.CHAIN)
        sides += equal
        rounded += near
    listed = (", ".join(sides),) if gold.several else tuple(sides)
    return Answer(listed, tuple(rounded), raw if len(sides) == 1 else None, ordered=gold.ordered)


def _read_named(bare: str, gold: Gold) -> Answer:
    """Read an answer to a list whose parts have names: by name, or without any names in the gold's
    order.
    """
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
            return Answer(refusal=Refusal.SEVERAL)
        named = [
            part if part.label and "=" not in part.text else named_part(part.text)
            for part in found
            if part
        ]
    if len(named) != len(gold.parts) or any("=" in part.text for part in named):
        return Answer(refusal=Refusal.DIFFERENT)
    if any(part.label for part in named):
        by_name = [
            [part for part in named if _same_name(part.label, own.label)] for own in gold.parts
        ]
        if any(len(found) != 1 for found in by_name):
            return Answer(refusal=Refusal.DIFFERENT)
        named = [found[0] for found in by_name]
    return Answer(
        tuple(part.text for part in named),
        pairs=tuple((own.text, part.text) for own, part in zip(gold.parts, named, strict=True)),
    )


def _same_name(one: str, other: str) -> bool:
    """Whether two names are the same, or one has the words of the other: "boys", "the boys"."""
    words = set(one.split()), set(other.split())
    return bool(words[0] and words[1]) and (words[0] <= words[1] or words[1] <= words[0])


def _same_condition(condition: Condition, gold: Condition | None, main: str) -> bool:
    """Whether an answer's condition is the gold's or, beside a gold without one, says no more than
    the letter: k is an integer.
    """
    if gold is None:
        return _HARMLESS.fullmatch(f"{condition.letter} {condition.range}") is not None
    swapped = condition.letter != gold.letter and gold.letter in letters(main)
    return gold.range == condition.range and not swapped


def _as_gold_says(cleaned: str, condition: Condition | None, gold: Gold) -> str:
    """The answer with the gold's name for a function or a parameter: ``f(x) = x`` for ``f(n) = n``,
    ``n\\pi`` for ``k\\pi``.
    """
    if (
        gold.condition
        and condition
        and gold.condition.letter != condition.letter
        and gold.condition.letter not in letters(cleaned)
    ):
        cleaned = _renamed(cleaned, condition.letter, gold.condition.letter)
    own, found = _FUNCTION.fullmatch(gold.text or ""), _FUNCTION.fullmatch(cleaned)
    if (
        own
        and found
        and own["name"] == found["name"]
        and own["of"] != found["of"]
        and own["of"] not in letters(found["value"])
    ):
        return f"{own['name']}({own['of']})={_renamed(found['value'], found['of'], own['of'])}"
    left = re.match(r"\s*([a-z])\s*=", gold.text or "")
    if (
        found
        and left
        and found["of"] in gold.variables - {left[1]}
        and found["name"] in ("f", left[1])
    ):
        return f"{left[1]}={found['value']}"  # y = 2x + 3, as f(x)
    if "\\binom" in (gold.text or ""):
        cleaned = _CHOOSE.sub(
            lambda match: r"\binom{{{}}}{{{}}}".format(
                *[digits for digits in match.groups() if digits]
            ),
            cleaned,
        )
    return cleaned


def _renamed(text: str, letter: str, new: str) -> str:
    return re.sub(rf"(\\[A-Za-z]+)|{letter}", lambda match: match[1] or new, text)


def _in_alphabet(names: list[str]) -> bool:
    """Whether names have an order that a pair follows: x, y, z or a, b, c."""
    return set(names) <= set("xyz") or set(names) <= set("abc")


def _in_order_of_names(named: Iterable[tuple[str, str]]) -> str:
    """Named values as the pair that math-verify reads, in the order of the alphabet."""
    by_name = sorted((name.strip(), value.strip()) for name, value in named)
    return f"({', '.join(value for _, value in by_name)})"


def _kind(text: str) -> str:
    r"""``{`` of a whole set, ``(`` of a whole tuple or interval, else ``""``: math-verify compares
    ``\{1,2\}`` with ``(1,2)``.
    """
    found = re.fullmatch(r"\s*(\\\{|[(\[]).*,.*(\\\}|[)\]])\s*", text, re.DOTALL)
    return (
        ""
        if not found or (min(depths(text)[1:-1], default=0) < 1 and found[1] != r"\{")
        else found[1][-1].replace("[", "(")
    )
