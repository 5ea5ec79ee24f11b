"""A pocket calculator."""

from __future__ import annotations

import ast
import operator
from fractions import Fraction

from r1_recipes.tasks.environments.registry import register_tool

_MAX_CHARS = 200
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


@register_tool("calculator")
def calculator(expression: str) -> str:
    """
    Work out an expression.

    Args:
        expression: Numbers with +, -, *, / and brackets, for example (12 + 30) * 7.

    Returns:
        The value, to ten digits if it is no whole number.
    """
    if len(expression) > _MAX_CHARS:
        raise ValueError(f"an expression has at most {_MAX_CHARS} characters, this one has {len(expression)}")
    value = _value(ast.parse(expression.strip().translate(str.maketrans("×÷−", "*/-")), mode="eval").body)
    return str(value) if value.denominator == 1 else f"{float(value):.10g}"


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_value(left), _value(right))
    raise ValueError("not an expression of numbers with +, -, *, / and brackets")
