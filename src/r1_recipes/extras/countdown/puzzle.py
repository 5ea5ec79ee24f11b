"""The Countdown puzzle: numbers and a target, and an expression that uses every number exactly once
to make it.

An answer is model output: Python's parser reads it, four operations of its tree are computed
exactly, nothing of it runs. TinyZero and GRPO-Zero, whose task this is, run ``eval`` behind a
filter of characters: ``9**9**9`` hangs them, ``2**3`` and ``1.5*2`` (from 1, 5 and 2) are paid, and
a quotient that is off by less than 1e-5 counts as the target.
"""

import ast
import json
import operator
import re
import warnings
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from random import Random
from typing import Any, NamedTuple

from r1_recipes.verification.scorers import register_scorer

# Python's parser warns about "1is 2". A filter by the name that compute() gives its text works in
# every thread, catch_warnings does not.
warnings.filterwarnings("ignore", category=SyntaxWarning, module="<expression>")

# A longer answer is wrong unread. Six numbers of three digits with every bracket there is take
# about 60.
MAX_ANSWER_CHARS = 1000


class Puzzle(NamedTuple):
    """One puzzle; the numbers in the order in which they are asked."""

    numbers: tuple[int, ...]
    target: int

    @property
    def scorer(self) -> str:
        """The dataset column ``scorer`` that lets ``accuracy`` and every reward built on it judge
        this puzzle's answers.
        """
        return json.dumps({"countdown": {"numbers": self.numbers, "target": self.target}})


def read_puzzle(numbers: Any, target: Any) -> Puzzle | None:
    """Return the puzzle that two columns of a row hold: whole numbers from 0, and a whole target
    (7.0 is one); else ``None``.
    """
    values = [*numbers, target] if isinstance(numbers, list | tuple) else []
    if len(values) < 2 or not all(
        type(value) in (int, float) and value == value // 1 for value in values
    ):
        return None
    *whole, goal = map(int, values)
    return None if min(whole) < 0 else Puzzle(tuple(whole), goal)


@lru_cache(maxsize=4096)
def scorer_puzzle(spec: str) -> Puzzle | None:
    """Return the puzzle of a ``scorer`` column; ``None``: another task's. ``ValueError``: it is no
    JSON object, or holds no puzzle.

    reasoning-gym's task ``countdown`` counts too: its own scorer hands the answer to sympy's
    ``parse_expr``, which runs it as Python.
    """
    try:
        parsed = json.loads(spec)
        if "countdown" not in parsed and parsed.get("reasoning_gym") != "countdown":
            return None
        held = parsed["countdown"] if "countdown" in parsed else parsed["entry"]["metadata"]
        puzzle = read_puzzle(held["numbers"], held["target"])
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        puzzle = None
    if puzzle is None:
        raise ValueError(
            f'a Countdown scorer must be JSON {{"countdown": {{"numbers": […], "target": '
            f"n}}}}, got {spec[:80]!r}"
        )
    return puzzle


@register_scorer("countdown")
def score(spec: str, answer: str | None) -> bool:
    puzzle = scorer_puzzle(spec)
    return puzzle is not None and answer is not None and check(answer, *puzzle)


_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_OTHER_SIGNS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "÷": "/", "\u2212": "-", "。": "."})
_COMMANDS = {r"\\times": "*", r"\\cdot": "*", r"\\div": "/", r"\\(?:left|right)(?![A-Za-z])": ""}
_WRAPPERS = (
    ("$$", "$$"),
    ("$", "$"),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
    ("\\boxed{", "}"),
    ("**", "**"),
    ("`", "`"),
)
_STATED = re.compile(r"-? ?[0-9]+(?:\.[0-9]+)?")
# What Python's grammar allows beyond ours: other characters, powers, floor division, zeros in
# front, a minus after a unary minus.
_FOREIGN = re.compile(r"[^0-9+*/() -]|\*\*|//|(?<![0-9])0[0-9]|(?:^|[-+*/(]) ?- ?-")


def check(answer: str, numbers: Sequence[int], target: int) -> bool:
    r"""Return whether an answer is an expression that uses each number as often as it is given and
    no other, and makes the target exactly.

    An expression is made of whole numbers in the digits 0 to 9, ``+ - * /`` (``×``, ``÷`` and
    LaTeX's signs are these), unary minus, after another sign too (``3--5``) but not twice
    (``--5``), and round brackets. White space is free. ``$…$``, ``\boxed{…}``, ``**…**`` and the
    like around it and a full stop are dropped; behind it, ``= value`` may stand, which must be the
    target. All else is no expression: powers, ``//``, names, decimals, ``2(3)``, ``1_000``, leading
    zeros, digits of other scripts, words, over 200 brackets in each other.
    """
    if len(answer) > MAX_ANSWER_CHARS:
        return False
    expression, equals, stated = _plain(answer).partition("=")
    if equals and not (
        _STATED.fullmatch(stated.strip()) and Fraction(stated.replace(" ", "")) == target
    ):
        return False
    used: list[int] = []
    try:
        return _value(expression.strip(), used, []) == target and sorted(used) == sorted(numbers)
    except ValueError:
        return False


def steps(expression: str) -> list[str]:
    """Work an expression out, one operation a line: ``2 + 3 * 4`` is ``3 * 4 = 12`` and ``2 + 12 =
    14``. ``ValueError``: it is none.
    """
    lines: list[str] = []
    _value(expression, [], lines)
    return lines


def _plain(text: str) -> str:
    """An answer in plain signs, with single spaces, without what stands around it."""
    text = text.translate(_OTHER_SIGNS).strip().removesuffix(".").rstrip()
    for opening, closing in 3 * _WRAPPERS:
        if text.startswith(opening) and text[len(opening) :].endswith(closing):
            text = text[len(opening) : -len(closing)].strip().removesuffix(".").rstrip()
    for command, sign in _COMMANDS.items():
        text = re.sub(command, sign, text)
    return " ".join(text.split())


def _value(text: str, used: list[int], lines: list[str]) -> Fraction:
    """The exact value of an expression; its numbers go to ``used``, its operations to ``lines``.
    ``ValueError``: it is none.
    """
    if _FOREIGN.search(text):
        raise ValueError("not the characters of an expression")
    try:
        return compute(text, used, lines)
    except (
        SyntaxError,
        ZeroDivisionError,
        MemoryError,
        RecursionError,
    ) as error:  # the last two: too deep
        raise ValueError("not an expression with a value") from error


def compute(text: str, used: list[Any], lines: list[str]) -> Fraction:
    """Numbers, whole or decimal, and four operations as Python's parser reads them; raises what
    that raises, or a ``ValueError``.
    """

    def value(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                used.append(number)
                return Fraction(str(number))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _SIGNS:
                first, sign, second = value(left), _SIGNS[type(operation)], value(right)
                result = _OPERATIONS[sign](first, second)
                lines.append(f"{first} {sign} {second} = {result}")
                return result
        raise ValueError("not an expression of numbers with +, -, *, / and brackets")

    return value(ast.parse(text, "<expression>", "eval").body)


class _Part(NamedTuple):
    value: int
    text: str


def _joined(left: _Part, sign: str, right: _Part) -> _Part:
    first, second = (f"({part.text})" if " " in part.text else part.text for part in (left, right))
    return _Part(
        int(_OPERATIONS[sign](Fraction(left.value), right.value)), f"{first} {sign} {second}"
    )


def search(numbers: Sequence[int], target: int) -> tuple[list[str], str] | None:
    """Look for a solution; return the tries, one a line, and the expression found; ``None``: there
    is none.

    Two numbers at a time are joined, those in front first, to whole numbers from 0. A line says
    what is left, or whether it is the target. For 3, 5 and the target 15: ``3 + 5 = 8, no``, ``5 -
    3 = 2, no``, ``3 * 5 = 15, yes``.
    """
    lines: list[str] = []

    def searched(parts: list[_Part]) -> str | None:
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
                    lines.append(
                        f"{line}left {', '.join(str(part.value) for part in (joined, *rest))}"
                    )
                    found = searched([joined, *rest])
                else:
                    lines.append(line + ("yes" if joined.value == target else "no"))
                    found = joined.text if joined.value == target else None
                if found is not None:
                    return found
        return None

    found = searched([_Part(number, str(number)) for number in numbers])
    return None if found is None else (lines, found)


def draw(rng: Random, settings: Mapping[str, int]) -> tuple[Puzzle, str] | None:
    """Try once to make a random puzzle and its solution; ``None``: the value is no target.

    Numbers are joined two by two with random signs, and every value on the way is a whole number
    from 1. ``settings`` holds ``min_`` and ``max_`` of ``numbers`` (how many), ``value`` (of each,
    from 1) and ``target``.
    """
    count = rng.randint(settings["min_numbers"], settings["max_numbers"])
    numbers = tuple(rng.randint(settings["min_value"], settings["max_value"]) for _ in range(count))
    parts = [_Part(number, str(number)) for number in numbers]
    while len(parts) > 1:
        left, right = sorted(
            (parts.pop(rng.randrange(len(parts))) for _ in range(2)), key=lambda part: -part.value
        )
        sign = rng.choice(
            "+*" + "-" * (left.value > right.value) + "/" * (left.value % right.value == 0)
        )
        if sign in "+*" and rng.random() < 0.5:
            left, right = right, left
        parts.append(_joined(left, sign, right))
    if not settings["min_target"] <= parts[0].value <= settings["max_target"]:
        return None
    return Puzzle(numbers, parts[0].value), parts[0].text
