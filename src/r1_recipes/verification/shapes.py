"""The type of an expression, its names, and whether an expression of its type can equal the
reference answer.
"""

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
    """Return whether the reference answer is a list of values. A pair and an interval are not."""
    text = gold.text or ""
    return (
        gold.several
        and not gold.parts
        and not RELATION.search(text)
        and (len(split(text)) > 1 or text.lstrip().startswith(r"\{"))
    )


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


def unsimplified(expression: str) -> bool:
    """Return whether a sum has three or more terms that could be added: ``a+1+a-2+a+3+a-4``,
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


def same_name(first: str, second: str) -> bool:
    """Return whether two names are equal, or one has all words of the other: "boys", "the boys"."""
    words = set(first.split()), set(second.split())
    return bool(words[0] and words[1]) and (words[0] <= words[1] or words[1] <= words[0])


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
    if (
        gold.condition
        and condition
        and gold.condition.letter != condition.letter
        and gold.condition.letter not in letters(cleaned)
    ):
        cleaned = _renamed(cleaned, condition.letter, gold.condition.letter)
    wanted, given = _FUNCTION.fullmatch(gold.text or ""), _FUNCTION.fullmatch(cleaned)
    if (
        wanted
        and given
        and wanted["name"] == given["name"]
        and wanted["of"] != given["of"]
        and wanted["of"] not in letters(given["value"])
    ):
        return (
            f"{wanted['name']}({wanted['of']})="
            f"{_renamed(given['value'], given['of'], wanted['of'])}"
        )
    left = re.match(r"\s*([A-Za-z])\s*=", gold.text or "")
    if (
        given
        and left
        and given["of"] == _argument(gold.variables - {left[1]})
        and given["name"] in ("f", left[1])
    ):
        return f"{left[1]}={given['value']}"  # y = 2x + 3, as f(x)
    if "\\binom" in (gold.text or ""):
        cleaned = _CHOOSE.sub(
            lambda match: r"\binom{{{}}}{{{}}}".format(
                *[digits for digits in match.groups() if digits]
            ),
            cleaned,
        )
    return cleaned


def _argument(variables: frozenset[str]) -> str | None:
    """Return the letter of which the reference answer is a function: x, t or n, or its only letter.
    Other letters are constants.
    """
    usual = [letter for letter in "xtn" if letter in variables]
    if usual:
        return usual[0]
    return next(iter(variables)) if len(variables) == 1 else None


def _renamed(text: str, letter: str, new: str) -> str:
    return re.sub(rf"(\\[A-Za-z]+)|{letter}", lambda match: match[1] or new, text)


def in_alphabet(names: list[str]) -> bool:
    """Return whether names have an order that a pair follows: x, y, z or a, b, c."""
    return set(names) <= set("xyz") or set(names) <= set("abc")


def in_order_of_names(named: Iterable[tuple[str, str]]) -> str:
    """Return named values as the pair that math-verify reads, sorted by name."""
    by_name = sorted((name.strip(), value.strip()) for name, value in named)
    return f"({', '.join(value for _, value in by_name)})"


def kind_of(text: str) -> str:
    r"""Return ``{`` for a set, ``(`` for a tuple or an interval, and ```` for anything else.
    math-verify would compare ``\{1,2\}`` with ``(1,2)``.
    """
    brackets = re.fullmatch(r"\s*(\\\{|[(\[]).*,.*(\\\}|[)\]])\s*", text, re.DOTALL)
    return (
        ""
        if not brackets or (min(depths(text)[1:-1], default=0) < 1 and brackets[1] != r"\{")
        else brackets[1][-1].replace("[", "(")
    )
