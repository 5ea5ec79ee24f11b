"""The Countdown puzzle: numbers and a target, and an expression that uses every number exactly once to make it.

:func:`check` judges an answer, :func:`steps` writes a solution out, :func:`search` looks for one, :func:`draw` makes a puzzle. An answer
is model output: Python's parser reads it, four operations of its tree are computed exactly, nothing of it runs. Imports no torch.

TinyZero and GRPO-Zero, whose task this is, run ``eval`` behind a filter of characters: ``9**9**9`` hangs them, ``2**3`` and ``1.5*2`` (from
1, 5 and 2) are paid, and a quotient that is off by less than 1e-5 counts as the target.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from random import Random
from typing import Any, NamedTuple

from r1_recipes.verification.scorers import register_scorer

MAX_ANSWER_CHARS = 1000
"""A longer answer is wrong unread. Six numbers of three digits with every bracket there is take about 60."""


class Verdict(StrEnum):
    RIGHT = "right"
    WRONG = "wrong"
    MALFORMED = "malformed"


class Puzzle(NamedTuple):
    """One puzzle; the numbers in the order in which they are asked."""

    numbers: tuple[int, ...]
    target: int

    @property
    def scorer(self) -> str:
        """The dataset column ``scorer`` that lets ``accuracy`` and every reward built on it judge this puzzle's answers."""
        return json.dumps({"countdown": {"numbers": self.numbers, "target": self.target}})


def read_puzzle(numbers: Any, target: Any) -> Puzzle | None:
    """Return the puzzle that two columns of a row hold, or ``None``: at least one whole number from 0, and a whole target.

    A float such as 7.0 is a whole number.
    """
    if not isinstance(numbers, list | tuple) or not numbers:
        return None
    values = [*numbers, target]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1 for value in values):
        return None
    *whole, goal = map(int, values)
    return None if min(whole) < 0 else Puzzle(tuple(whole), goal)


@lru_cache(maxsize=4096)
def scorer_puzzle(spec: str) -> Puzzle | None:
    """Return the puzzle of a ``scorer`` column's JSON; ``None``: it is another task's scorer, or none at all.

    reasoning-gym's task ``countdown`` counts too: its own scorer hands the answer to sympy's ``parse_expr``, which runs it as Python.

    Raises:
        ValueError: it is a Countdown scorer without numbers and a target.
    """
    try:
        parsed = json.loads(spec)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict) or not ("countdown" in parsed or parsed.get("reasoning_gym") == "countdown"):
        return None
    try:
        held = parsed["countdown"] if "countdown" in parsed else parsed["entry"]["metadata"]
        puzzle = read_puzzle(held["numbers"], held["target"])
    except (KeyError, TypeError):
        puzzle = None
    if puzzle is None:
        raise ValueError(f'a Countdown scorer must be JSON {{"countdown": {{"numbers": […], "target": n}}}}, got {spec[:80]!r}')
    return puzzle


@register_scorer("countdown")
def score(spec: str, answer: str | None) -> bool:
    """Return whether the answer solves the puzzle of a ``scorer`` column."""
    puzzle = scorer_puzzle(spec)
    return puzzle is not None and answer is not None and check(answer, puzzle.numbers, puzzle.target) is Verdict.RIGHT


_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_OTHER_SIGNS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "÷": "/", "\u2212": "-", "。": "."})
_COMMANDS = {r"\\times": "*", r"\\cdot": "*", r"\\div": "/", r"\\(?:left|right)(?![A-Za-z])": ""}
_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("\\boxed{", "}"), ("**", "**"), ("`", "`"))
_STATED = re.compile(r"\s*(-?)\s*([0-9]+(?:\.[0-9]+)?)\s*")
# What Python's grammar allows beyond ours: other characters, powers, floor division, zeros in front, a minus after a unary minus.
_FOREIGN = re.compile(r"[^0-9+*/() -]|\*\*|//|(?<![0-9])0[0-9]|(?:^|[-+*/(]) ?- ?-")


def check(answer: str, numbers: Sequence[int], target: int) -> Verdict:
    r"""Judge an answer to a puzzle.

    An expression is made of whole numbers in the digits 0 to 9, ``+ - * /``, unary minus and round brackets. ``×``, ``·``, ``⋅``,
    ``÷``, U+2212 and LaTeX's ``\times``, ``\cdot`` and ``\div`` are signs. White space is free. Around it, up to three pairs of ``$…$``,
    ``$$…$$``, ``\(…\)``, ``\[…\]``, ``\boxed{…}``, ``**…**`` or backticks and a full stop at the end are dropped; behind it,
    ``= value`` may stand, a whole or decimal number.

    A unary minus may follow another sign (``3--5`` is 8, ``3*-5`` is -15) but not a unary minus (``--5``); there is no unary plus. Powers,
    ``//``, names, calls, decimals, ``2(3)``, ``1_000``, ``0x10``, ``1e3``, leading zeros, digits and signs of other scripts, any word
    around the expression, and more than 200 brackets within each other are malformed.

    Returns:
        ``RIGHT``: the expression uses each number as often as it is given and no other, and its exact value, like the value behind an
        equals sign, is ``target``. ``MALFORMED``: there is no such expression. ``WRONG``: everything else, such as a division by zero, or
        an answer of more than :data:`MAX_ANSWER_CHARS` characters.
    """
    if len(answer) > MAX_ANSWER_CHARS:
        return Verdict.WRONG
    expression, stated = _unwrap(answer)
    postfix = _parse(expression)
    if postfix is None or stated is None:
        return Verdict.MALFORMED
    # The numbers before any sum: what is computed is made of the puzzle's own.
    used = sorted(token for token in postfix if isinstance(token, int))
    if (stated and Fraction(stated) != target) or used != sorted(numbers):
        return Verdict.WRONG
    return Verdict.RIGHT if _value(postfix) == target else Verdict.WRONG


def _unwrap(answer: str) -> tuple[str, str | None]:
    """Return the expression in plain signs, and the number behind its equals sign (``""``: no equals sign, ``None``: no number)."""
    text = answer.translate(_OTHER_SIGNS).strip().removesuffix(".").rstrip()
    for _ in range(3):
        around = next((pair for pair in _WRAPPERS if text.startswith(pair[0]) and text[len(pair[0]) :].endswith(pair[1])), None)
        if around is None:
            break
        text = text[len(around[0]) : -len(around[1])].strip().removesuffix(".").rstrip()
    for command, sign in _COMMANDS.items():
        text = re.sub(command, sign, text)
    expression, equals, value = text.partition("=")
    expression = " ".join(expression.split())
    if not equals:
        return expression, ""
    stated = _STATED.fullmatch(value)
    return expression, "".join(stated.groups()) if stated else None


def _parse(text: str) -> list[int | str] | None:
    """Return an expression as postfix: numbers, and signs after their operands; ``None``: malformed."""
    if _FOREIGN.search(text):
        return None
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two: too deep for the parser
        return None
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
    postfix: list[int | str] = []
    # An operand ends before the operation that it is part of, or begins after it. A recursion could be too deep.
    for node in sorted(nodes, key=lambda node: (node.end_col_offset or 0, -node.col_offset)):
        match node:
            case ast.Constant(value=int(number)):
                postfix.append(number)
            case ast.UnaryOp(op=ast.USub()):
                postfix.append("negated")
            case ast.BinOp(op=operation) if type(operation) in _SIGNS:
                postfix.append(_SIGNS[type(operation)])
            case _:
                return None
    return postfix


def _value(postfix: list[int | str], lines: list[str] | None = None) -> Fraction | None:
    """Return the exact value, or ``None`` if something is divided by zero; append each operation to ``lines``."""
    values: list[Fraction] = []
    for token in postfix:
        if isinstance(token, int):
            values.append(Fraction(token))
        elif token == "negated":
            values[-1] = -values[-1]
        else:
            right, left = values.pop(), values.pop()
            if token == "/" and not right:
                return None
            values.append(_OPERATIONS[token](left, right))
            if lines is not None:
                first, second = (str(value) if value >= 0 and value.denominator == 1 else f"({value})" for value in (left, right))
                lines.append(f"{first} {token} {second} = {values[-1]}")
    return values[0]


def steps(expression: str) -> list[str]:
    """Work an expression out: one line an operation, innermost first, and at the end the whole with its value.

    ``steps("(8 - 2) * 4")`` is ``["8 - 2 = 6", "6 * 4 = 24", "(8 - 2) * 4 = 24"]``. Negative numbers and fractions stand in brackets.

    Raises:
        ValueError: it is malformed or divides by zero.
    """
    text, _ = _unwrap(expression)
    postfix = _parse(text)
    lines: list[str] = []
    value = None if postfix is None else _value(postfix, lines)
    if value is None:
        raise ValueError(f"not an expression that can be worked out: {expression[:80]!r}")
    whole = f"{text} = {value}"
    if whole.replace(" ", "") == "".join(lines).replace(" ", ""):
        return lines  # a single operation is the whole
    return [*lines, whole]


class _Part(NamedTuple):
    """An expression on the way to a solution."""

    value: int
    text: str
    binding: int = 3  # of its outermost sign; 3: a number


def _joined(left: _Part, sign: str, right: _Part) -> _Part:
    binding = 1 if sign in "+-" else 2
    first = left.text if left.binding >= binding else f"({left.text})"
    # "7 - (3 - 2)" needs its brackets, "7 + (3 - 2)" does not.
    bare = right.binding > binding or (right.binding == binding and sign in "+*")
    second = right.text if bare else f"({right.text})"
    return _Part(int(_OPERATIONS[sign](Fraction(left.value), right.value)), f"{first} {sign} {second}", binding)


def search(numbers: Sequence[int], target: int) -> tuple[list[str], str] | None:
    """Look for a solution; return the tries, one a line, and the expression found; ``None``: there is none.

    Two numbers at a time are joined by +, -, * and /, those in front first; a difference is taken the way round that is not
    negative, a quotient only if it divides. A line says what is left, or whether it is the target. For 3, 5 and the target 15:
    ``3 + 5 = 8, no``, ``5 - 3 = 2, no``, ``3 * 5 = 15, yes``.
    """
    lines: list[str] = []
    found = _searched([_Part(number, str(number)) for number in numbers], target, lines)
    return None if found is None else (lines, found)


def _searched(parts: list[_Part], target: int, lines: list[str]) -> str | None:
    for first, second in combinations(parts, 2):
        rest = [part for part in parts if part is not first and part is not second]
        high, low = (first, second) if first.value >= second.value else (second, first)
        tries = [(first, "+", second), (high, "-", low), (first, "*", second)]
        if low.value and high.value % low.value == 0:
            tries.append((high, "/", low))
        for left, sign, right in tries:
            joined = _joined(left, sign, right)
            line = f"{left.value} {sign} {right.value} = {joined.value}, "
            if rest:
                lines.append(f"{line}left {', '.join(str(part.value) for part in (joined, *rest))}")
                found = _searched([joined, *rest], target, lines)
            else:
                lines.append(line + ("yes" if joined.value == target else "no"))
                found = joined.text if joined.value == target else None
            if found is not None:
                return found
    return None


def draw(rng: Random, settings: Mapping[str, int]) -> tuple[Puzzle, str] | None:
    """Try once to make a random puzzle: draw numbers, and join them two by two with random signs until one value is left.

    Every value on the way is a whole number from 1, so every puzzle has a solution in whole positive steps. ``settings`` holds
    ``min_`` and ``max_`` of ``numbers`` (how many), ``value`` (of each, from 1) and ``target``.

    Returns:
        The puzzle and a solution; ``None`` if the value is no target.
    """
    count = rng.randint(settings["min_numbers"], settings["max_numbers"])
    numbers = tuple(rng.randint(settings["min_value"], settings["max_value"]) for _ in range(count))
    parts = [_Part(number, str(number)) for number in numbers]
    while len(parts) > 1:
        left, right = (parts.pop(rng.randrange(len(parts))) for _ in range(2))
        if left.value < right.value:
            left, right = right, left
        signs = ["+", "*"]
        if left.value > right.value:
            signs.append("-")
        if left.value % right.value == 0:
            signs.append("/")
        sign = rng.choice(signs)
        if sign in "+*" and rng.random() < 0.5:
            left, right = right, left
        parts.append(_joined(left, sign, right))
    if not settings["min_target"] <= parts[0].value <= settings["max_target"]:
        return None
    return Puzzle(numbers, parts[0].value), parts[0].text
