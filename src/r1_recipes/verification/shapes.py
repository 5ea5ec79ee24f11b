"""What kind of expression an answer is, its names, and whether its kind can be the gold's."""

from __future__ import annotations

import re
from collections.abc import Iterable

from r1_recipes.verification.conditions import Condition
from r1_recipes.verification.gold import Gold
from r1_recipes.verification.lexicon import Refusal
from r1_recipes.verification.signs import depths, split
from r1_recipes.verification.words import GREEK, letters

RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|in|to|sim)(?![A-Za-z])|\\(?:right|left)arrow")


MEMBER = re.compile(r"\A\s*[A-Za-z]\s*\\in(?![A-Za-z])\s*")


_FUNCTION = re.compile(r"\s*(?P<name>[A-Za-z])\s*\(\s*(?P<of>[A-Za-z])\s*\)\s*=(?P<value>[^=]*)")


_CHOOSE = re.compile(
    r"C\((\d+),\s*(\d+)\)|(?<![\w})^_])(?:\{\}|)\^?_?\{?(\d+)\}?\s*C_?\{?(\d+)\}?|"
    r"C_\{?(\d+)\}?\^\{?(\d+)\}?"
)


_BASE = re.compile(r"\d\s*_\s*(?:\{\s*([^{}]*?)\s*\}|(\w+)|\W)")


# What says that "(1, 2)" is no pair: x \\in (1, 2), ]1, 2[.
_INTERVAL = re.compile(r"\\in(?![A-Za-z])|[<>]|\A\W*\]")


_MODULO = re.compile(
    r"\\[bp]?mod(?![A-Za-z])|\.\.\.|…|\\[lc]?dots(?![A-Za-z])"
)  # math-verify drops both


_UNDONE = re.compile(
    r"\\(?:sum|prod|i*int|oint|lim|gcd|max|min|det|operatorname)(?![A-Za-z])|"
    r"\\frac\s*\{\s*d\s*(?:\}\s*\{\s*d|\()|\{vmatrix\}|"
    r"\\end\{pmatrix\}\s*(?:\\cdot|\\times)?\s*\\begin"
)


# A condition that an answer may have beside a gold without one.
_HARMLESS = re.compile(r"[k-n] Z|n [NZ]\+?|. all|. [k-n](?:\\ge[01]|>0)")


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


def mismatch(text: str, expression: str, gold: Gold) -> Refusal | None:
    """Why an expression cannot be the gold, whatever its value: another kind, another base, a task
    in place of its result.
    """
    target = MEMBER.sub("", gold.text or gold.raw)
    kinds = {kind_of(expression), "(" if RELATION.search(target) else kind_of(target)} - {""}
    if (
        len(kinds) > 1
        or (_MODULO.search(text) and not _MODULO.search(gold.raw))
        or (gold.value and RELATION.search(expression))
        or (_is_list(gold) and (RELATION.search(expression) or kind_of(expression) == "("))
        or _BASE.findall(expression) != _BASE.findall(gold.text or gold.raw)
        or ("matrix}" in gold.raw and _INTERVAL.search(text))
    ):
        return Refusal.DIFFERENT
    if _UNDONE.search(expression) and not _UNDONE.search(gold.raw):
        return Refusal.UNEVALUATED
    if re.search(r"[^A-Za-z\s][^\\]*\\in(?![A-Za-z])", expression) and "\\in" not in gold.raw:
        return Refusal.DIFFERENT  # x^2 \\in (1, 2)
    if unsimplified(expression):
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
        and not RELATION.search(text)
        and (len(split(text)) > 1 or text.lstrip().startswith(r"\{"))
    )


# 20 degrees Celsius, \\sin 60^\\circ.
_NO_ANGLE = re.compile(
    r"\\circ\s*\}?\s*(?:\\[a-z]+\s*\{\s*)?[CF](?![A-Za-z])|\\(?:sin|cos|tan|cot)(?![a-z])"
)


def in_degrees(side: str, gold: Gold) -> str:
    """An angle in the gold's measure: 60 degrees for pi/3, and pi/3 for 60 degrees."""
    if "\\circ" in side and "\\circ" not in gold.raw and "\\pi" in gold.raw:
        number = re.fullmatch(r"(-?[\d./]+)\s*\^\s*\{?\s*\\circ\s*\}?\s*", side)
        return rf"\frac{{{number[1]}\pi}}{{180}}" if number else r"\emptyset"
    is_angle = "\\circ" in gold.raw and not _NO_ANGLE.search(gold.raw)
    if is_angle and "\\circ" not in side and "\\pi" in side:
        return rf"\frac{{180({side})}}{{\pi}}"
    return side


def is_sum(left: str) -> bool:
    """Whether the left side of an equation is no name, but says something itself: x + y, x_1x_2,
    |z|, \\sin x.
    """
    return _NAME.fullmatch(left.strip()) is None


def unsimplified(expression: str) -> bool:
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


def same_name(one: str, other: str) -> bool:
    """Whether two names are the same, or one has the words of the other: "boys", "the boys"."""
    words = set(one.split()), set(other.split())
    return bool(words[0] and words[1]) and (words[0] <= words[1] or words[1] <= words[0])


def same_condition(condition: Condition, gold: Condition | None, main: str) -> bool:
    """Whether an answer's condition is the gold's or, beside a gold without one, says no more than
    the letter: k is an integer.
    """
    if gold is None:
        return _HARMLESS.fullmatch(f"{condition.letter} {condition.range}") is not None
    swapped = condition.letter != gold.letter and gold.letter in letters(main)
    return gold.range == condition.range and not swapped


def as_gold_says(cleaned: str, condition: Condition | None, gold: Gold) -> str:
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
    left = re.match(r"\s*([A-Za-z])\s*=", gold.text or "")
    if (
        found
        and left
        and found["of"] == _argument(gold.variables - {left[1]})
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


def _argument(variables: frozenset[str]) -> str | None:
    """Name the letter that a gold is a function of: x, t or n, or its only one; the others are
    constants.
    """
    usual = [letter for letter in "xtn" if letter in variables]
    if usual:
        return usual[0]
    return next(iter(variables)) if len(variables) == 1 else None


def _renamed(text: str, letter: str, new: str) -> str:
    return re.sub(rf"(\\[A-Za-z]+)|{letter}", lambda match: match[1] or new, text)


def in_alphabet(names: list[str]) -> bool:
    """Whether names have an order that a pair follows: x, y, z or a, b, c."""
    return set(names) <= set("xyz") or set(names) <= set("abc")


def in_order_of_names(named: Iterable[tuple[str, str]]) -> str:
    """Named values as the pair that math-verify reads, in the order of the alphabet."""
    by_name = sorted((name.strip(), value.strip()) for name, value in named)
    return f"({', '.join(value for _, value in by_name)})"


def kind_of(text: str) -> str:
    r"""``{`` of a whole set, ``(`` of a whole tuple or interval, else ``""``: math-verify compares
    ``\{1,2\}`` with ``(1,2)``.
    """
    found = re.fullmatch(r"\s*(\\\{|[(\[]).*,.*(\\\}|[)\]])\s*", text, re.DOTALL)
    return (
        ""
        if not found or (min(depths(text)[1:-1], default=0) < 1 and found[1] != r"\{")
        else found[1][-1].replace("[", "(")
    )
