"""The Countdown puzzle: make a target from numbers, using each number exactly once.

An answer is model output, so it is never run. Python's parser reads it, and four operations are
computed exactly. TinyZero and GRPO-Zero, the sources of this task, run ``eval`` behind a filter of
characters. There ``9**9**9`` never ends, ``2**3`` and ``1.5*2`` (from 1, 5 and 2) get a reward, and
a quotient within 1e-5 of the target counts as the target.
"""

import ast
import operator
import re
import warnings
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from random import Random
from typing import Any, NamedTuple

# Python's parser warns about "1is 2". This filter, by the name in compute(), works in every thread,
# unlike catch_warnings.
warnings.filterwarnings("ignore", category=SyntaxWarning, module="<expression>")

# A longer answer is wrong without reading it. Six numbers of three digits with all brackets take
# about 60 characters.
MAX_ANSWER_CHARS = 1000


class Puzzle(NamedTuple):
    """A puzzle, with its numbers in the order of the question."""

    numbers: tuple[int, ...]
    target: int


def read_puzzle(numbers: Any, target: Any) -> Puzzle | None:
    """Return the puzzle of two columns of a row, or ``None`` if they hold no puzzle.

    Numbers must be whole and 0 or more, and the target must be whole (7.0 is whole).
    """
    values = [*numbers, target] if isinstance(numbers, list | tuple) else []
    if len(values) < 2 or not all(
        type(value) in (int, float) and value == value // 1 for value in values
    ):
        return None
    *whole, goal = map(int, values)
    return None if min(whole) < 0 else Puzzle(tuple(whole), goal)


def solves(answer: str | None, nums: Any, target: Any) -> bool:
    """Return whether an answer solves the puzzle of a row's columns ``nums`` and ``target``."""
    puzzle = read_puzzle(nums, target)
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
# What Python allows, but check() does not: other characters, powers, floor division, leading zeros,
# and a minus after a unary minus.
_FOREIGN = re.compile(r"[^0-9+*/() -]|\*\*|//|(?<![0-9])0[0-9]|(?:^|[-+*/(]) ?- ?-")


def check(answer: str, numbers: Sequence[int], target: int) -> bool:
    r"""Return whether an answer is an expression that makes the target from exactly these numbers.

    Each number must be used as often as it is given. An expression has whole numbers of the digits
    0 to 9, the signs ``+ - * /`` (also ``×``, ``÷`` and the commands of LaTeX), and round brackets.
    A unary minus may follow another sign (``3--5``), but not another unary minus (``--5``). White
    space does not count. ``$…$``, ``\boxed{…}``, ``**…**`` and similar around the expression are
    removed, and so is a full stop. ``= value`` may follow, and the value must be the target.
    Anything else is wrong: powers, ``//``, names, decimals, ``2(3)``, ``1_000``, leading zeros,
    digits of other scripts, words, and more than 200 nested brackets.
    """
    if len(answer) > MAX_ANSWER_CHARS:
        return False
    expression, equals, stated = _normalize(answer).partition("=")
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
    """Return the operations of an expression, one per line.

    ``2 + 3 * 4`` gives ``3 * 4 = 12`` and ``2 + 12 = 14``.

    Raises:
        ValueError: The text is not an expression.
    """
    lines: list[str] = []
    _value(expression, [], lines)
    return lines


def _normalize(text: str) -> str:
    """Return an answer with ASCII signs and single spaces, and without the marks around it."""
    text = text.translate(_OTHER_SIGNS).strip().removesuffix(".").rstrip()
    for opening, closing in 3 * _WRAPPERS:
        if text.startswith(opening) and text[len(opening) :].endswith(closing):
            text = text[len(opening) : -len(closing)].strip().removesuffix(".").rstrip()
    for command, sign in _COMMANDS.items():
        text = re.sub(command, sign, text)
    return " ".join(text.split())


def _value(text: str, used: list[int], lines: list[str]) -> Fraction:
    """Return the exact value of an expression. Raise ValueError if it is not an expression.

    Adds its numbers to ``used``, and its operations to ``lines``.
    """
    if _FOREIGN.search(text):
        raise ValueError("not the characters of an expression")
    try:
        return compute(text, used, lines)
    # MemoryError and RecursionError mean that it is nested too deeply.
    except (SyntaxError, ZeroDivisionError, MemoryError, RecursionError) as error:
        raise ValueError("not an expression with a value") from error


def compute(text: str, used: list[Any], lines: list[str]) -> Fraction:
    """Return the exact value of an expression of whole or decimal numbers and four operations.

    Adds its numbers to ``used``, and its operations to ``lines``. Raises the errors of Python's
    parser, or a ValueError.
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
    """Search for a solution. Return the tries, one per line, and the solution, or ``None``.

    The search joins two numbers at a time, from the front, to whole numbers of 0 or more. A line
    names the numbers left, or says whether the value is the target. For 3, 5 and the target 15,
    the lines are ``3 + 5 = 8, no``, ``5 - 3 = 2, no``, ``3 * 5 = 15, yes``.
    """
    lines: list[str] = []

    def solve(parts: list[_Part]) -> str | None:
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
                    solution = solve([joined, *rest])
                else:
                    lines.append(line + ("yes" if joined.value == target else "no"))
                    solution = joined.text if joined.value == target else None
                if solution is not None:
                    return solution
        return None

    solution = solve([_Part(number, str(number)) for number in numbers])
    return None if solution is None else (lines, solution)


def draw(rng: Random, settings: Mapping[str, int]) -> tuple[Puzzle, str] | None:
    """Return a random puzzle with its solution, or ``None`` if its value is not a valid target.

    Numbers are joined in pairs with random signs, and every intermediate value is a whole number of
    1 or more. ``settings`` has ``min_`` and ``max_`` of ``numbers`` (how many), ``value`` (of each
    number, 1 or more) and ``target``.
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
