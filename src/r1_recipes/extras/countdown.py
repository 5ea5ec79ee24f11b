"""Countdown: make a target from numbers, using each exactly once. Rows, mapper, checker and reward.

An answer is model output, so it is never run. Python's parser reads it, and four operations are
computed exactly. TinyZero and GRPO-Zero, the sources of this task, run ``eval`` behind a filter of
characters. There ``9**9**9`` never ends, ``2**3`` and ``1.5*2`` (from 1, 5 and 2) get a reward, and
a quotient within 1e-5 of the target counts as the target.
"""

import ast
import json
import operator
import re
import warnings
import zlib
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from r1_recipes.common.errors import require
from r1_recipes.common.messages import completion_texts
from r1_recipes.data.mappers import MappedRow, SkipRow, register_mapper, text
from r1_recipes.extras.generated import Draws, distinct_rows, task_keys
from r1_recipes.prompts import ResponseFormat, between, boxes
from r1_recipes.rewards.answers import THINK_ANSWER, Column, Log, Values, ignore, parsed_answer
from r1_recipes.verification.reading import MAX_ANSWER_CHARS
from r1_recipes.verification.spelling import clean

# Python's parser warns about "1is 2". This filter, by the name in compute(), works in every thread,
# unlike catch_warnings.
warnings.filterwarnings("ignore", category=SyntaxWarning, module="<expression>")


def read_puzzle(numbers: Any, target: Any) -> tuple[list[int], int] | None:
    """Return the numbers and the target in two columns of a row, ``None`` if they hold no puzzle.

    Numbers must be whole and 0 or more, and the target must be whole (7.0 is whole).
    """
    values = [*numbers, target] if isinstance(numbers, list | tuple) else []
    if len(values) < 2 or not all(
        type(value) in (int, float) and value == value // 1 for value in values
    ):
        return None
    *whole, goal = map(int, values)
    return None if min(whole) < 0 else (whole, goal)


def solves(answer: str | None, nums: Any, target: Any) -> bool | None:
    """Return whether an answer solves the puzzle of a row's columns, ``None`` without a puzzle."""
    puzzle = read_puzzle(nums, target)
    return None if puzzle is None else check(answer or "", *puzzle)


_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
# What Python allows, but check() does not: other characters, powers, floor division, leading zeros,
# and a minus after a unary minus.
_FOREIGN = re.compile(r"[^0-9+*/() -]|\*\*|//|(?<![0-9])0[0-9]|(?:^|[-+*/(]) ?- ?-")


def check(answer: str, numbers: Sequence[int], target: int) -> bool:
    r"""Return whether an answer is an expression that makes the target from exactly these numbers.

    Each number must be used as often as it is given. An expression has whole numbers of the digits
    0 to 9, the signs ``+ - * /`` (also ``×``, ``÷`` and the commands of LaTeX), and round brackets.
    A unary minus may follow another sign (``3--5``), but not another unary minus (``--5``). White
    space does not count, and neither do ``$…$``, ``\boxed{…}``, ``**…**`` and the like, as for
    other rewards. ``= value`` may follow, and the value must be the target. Anything else is wrong:
    powers, ``//``, names, decimals, ``2(3)``, ``1_000``, leading zeros, words, and more than 200
    nested brackets.
    """
    if len(answer) > MAX_ANSWER_CHARS:
        return False
    # Before clean(), which reads a fraction beside a sign of LaTeX.
    text = re.sub(
        r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"(\1/\2)", ", ".join(boxes(answer)) or answer
    ).replace(r"\div", "/")
    expression, equals, stated = clean(re.sub(r"\\times|\\cdot|[×·⋅]", "*", text)).partition("=")
    used: list[int] = []
    if _FOREIGN.search(expression):
        return False
    try:
        if equals and compute(stated.strip(), [], []) != target:
            return False
        return compute(expression.strip(), used, []) == target and sorted(used) == sorted(numbers)
    # MemoryError and RecursionError mean that it is nested too deeply.
    except (ValueError, SyntaxError, ZeroDivisionError, MemoryError, RecursionError):
        return False


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
    value = _OPERATIONS[sign](Fraction(left.value), right.value)
    return _Part(int(value), f"{first} {sign} {second}")


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
                done = not rest and joined.value == target
                left_over = ", ".join(str(part.value) for part in (joined, *rest))
                end = f"left {left_over}" if rest else "yes" if done else "no"
                lines.append(f"{left.value} {sign} {right.value} = {joined.value}, {end}")
                solution = joined.text if done else solve([joined, *rest])
                if solution is not None:
                    return solution
        return None

    solution = solve([_Part(number, str(number)) for number in numbers])
    return None if solution is None else (lines, solution)


_TEMPLATE = (
    "Make {target} out of the numbers {numbers}. Use each of them exactly once, with +, -, *, / "
    "and brackets as needed. Answer with the expression alone."
)


@register_mapper("countdown", "nums", "target")
def countdown_row(
    row: dict[str, Any],
    template: str = _TEMPLATE,
    array: bool = False,
    reasoning: str = "steps",
    worked_share: float = 1.0,
) -> MappedRow:
    """Map Jiayi-Pan/Countdown-Tasks-3to4 and the source ``countdown:``: ``nums`` and ``target``.

    The source ``countdown:`` also has a solution, ``expression``.

    Args:
        row: The row.
        template: The question.
        array: Write the numbers as NumPy prints an array: [44 19  5].
        reasoning: The reasoning for SFT: ``steps``, the operations of the solution, one per line,
            or ``search``, all tries up to the solution. A search of three numbers has about a
            hundred lines, one of four many more.
        worked_share: The share of rows with this reasoning, always the same rows. The others answer
            with a guess, which is usually wrong.
    """
    require(
        reasoning in ("steps", "search"),
        "mapper_config: reasoning",
        "steps or search",
        reasoning,
    )
    puzzle = read_puzzle(row.get("nums"), row.get("target"))
    if puzzle is None:
        raise SkipRow("columns 'nums' and 'target' must hold whole numbers, with 'nums' 0 or more")
    numbers, target = puzzle
    width = len(str(max(numbers)))
    listed = f"[{' '.join(f'{number:{width}}' for number in numbers)}]" if array else str(numbers)
    question = template.replace("{numbers}", listed).replace("{target}", str(target))
    solution = text(row, "expression", needed=False)
    mapped = {"question": question, "solution": solution, "task": "countdown"}
    if solution:
        mapped |= _worked(numbers, target, solution, reasoning, worked_share)
    return {**mapped, "nums": numbers, "target": target}


def _worked(
    numbers: list[int], target: int, solution: str, reasoning: str, worked_share: float
) -> MappedRow:
    """Return the reasoning for SFT, and the answer that goes with it."""
    drawn = {"countdown": {"numbers": numbers, "target": target}}
    checksum = zlib.crc32(json.dumps(drawn).encode())  # the same rows in every version
    if checksum >= worked_share * 2**32:
        guess = str(numbers[0])
        for at, number in enumerate(numbers[1:]):
            guess += f" {'+-*'[(checksum >> 4 * at) % 3]} {number}"
        return {"reasoning": f"Perhaps {guess} is {target}.", "answer": guess}
    if reasoning == "steps":
        steps: list[str] = []
        compute(solution, [], steps)
        return {"reasoning": "\n".join(steps), "answer": solution}
    searched = search(numbers, target)
    if searched is None:
        raise SkipRow("no steps in whole numbers from 0 make the target")
    return {"reasoning": "\n".join(searched[0]), "answer": searched[1]}


def countdown(
    completions: Column,
    nums: Column,
    target: Column,
    log_extra: Log = ignore,
    log_metric: Log = ignore,
    *,
    fmt: ResponseFormat = THINK_ANSWER,
    countdown_format_score: float = 0.1,
    countdown_answer_anywhere: bool = False,
    **columns: Any,
) -> Values:
    """Return 1.0 if the answer makes the target, using every number exactly once.

    Range: {0, ``countdown_format_score``, 1}. Any other answer scores ``countdown_format_score``,
    and a missing answer 0.0; the metric ``countdown/solved`` is the share of 1.0. Return ``None``
    for a row without a puzzle in ``nums`` and ``target``, which the mappers ``countdown`` and
    ``verl`` write. The answer is the whole answer block of the response format.

    Source: TinyZero (1.0, 0.1 and 0), which reads the last block of the last line of a completion.
    Or GRPO-Zero, which reads the first block: set ``countdown_format_score: 0``, and
    ``format_partial`` with weight 0.1. Here, several different blocks are not an answer. With
    ``countdown_answer_anywhere``, the last block counts, as in these projects, even inside the
    reasoning or after a ``<think>`` that is never closed.
    """
    texts = completion_texts(completions)
    answers = [parsed_answer(fmt, each) or "" for each in texts]
    if countdown_answer_anywhere and fmt.answer_tags:
        answers = [between(fmt.full_text(each), *fmt.answer_tags)[1].strip() for each in texts]
    log_extra("countdown_answer", answers)
    solved = list(map(solves, answers, nums, target))
    if judged := [right for right in solved if right is not None]:
        log_metric("countdown/solved", fmean(judged))
    return [
        None if right is None else max(float(right), countdown_format_score * bool(answer))
        for right, answer in zip(solved, answers, strict=True)
    ]


def countdown_rows(count: str, split: str, config: dict[str, Any]) -> Any:
    """Return a data set of random Countdown puzzles with a solution, ``expression``.

    The columns ``nums`` and ``target`` are those of Jiayi-Pan/Countdown-Tasks-3to4.

    Args:
        count: How many numbers a puzzle has: ``"3-4"`` or ``"3"``, from 2 to 6.
        split: ``"train"`` or ``"test"``.
        config: ``min_value``, ``max_value``, ``min_target`` and ``max_target``, each 1 or more, and
            ``size`` and ``seed`` of ``train`` and ``test``.
    """
    require(
        re.fullmatch("[2-6](-[2-6])?", count),
        "dataset_name: countdown:",
        "followed by 3, 4 or 3-4, from 2 to 6",
        count,
    )
    fewest, _, most = count.partition("-")
    numbers = (int(fewest), int(most or fewest))
    names = ("min_value", "max_value", "min_target", "max_target")
    low, high, least, largest = task_keys(config, *names)

    def draw(seed: int, size: int) -> Draws:
        rng = Random(seed)
        # A narrow range repeats puzzles, or rarely meets a target.
        for _ in range(100 * size + 1000):
            nums, target, expression = draw_puzzle(rng, numbers, (low, high))
            if least <= target <= largest:
                row = {"nums": nums, "target": target, "expression": expression}
                yield (*sorted(nums), target), row

    return distinct_rows(draw, split, config, f"puzzles of countdown:{count}")


def draw_puzzle(
    rng: Random, count: tuple[int, int], value: tuple[int, int]
) -> tuple[list[int], int, str]:
    """Return random numbers, a target and the solution.

    Numbers are joined in pairs with random signs, and every intermediate value is a whole number of
    1 or more. ``count`` and ``value`` are the bounds of how many numbers there are, and of each.
    """
    numbers = [rng.randint(*value) for _ in range(rng.randint(*count))]
    parts = [_Part(number, str(number)) for number in numbers]
    while len(parts) > 1:
        drawn = [parts.pop(rng.randrange(len(parts))) for _ in range(2)]
        left, right = sorted(drawn, key=lambda part: -part.value)
        signs = "+*" + "-" * (left.value > right.value) + "/" * (left.value % right.value == 0)
        sign = rng.choice(signs)
        if sign in "+*" and rng.random() < 0.5:
            left, right = right, left
        parts.append(_joined(left, sign, right))
    return numbers, parts[0].value, parts[0].text
