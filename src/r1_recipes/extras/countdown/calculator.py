"""A calculator as a tool."""

from r1_recipes.extras.agents.registry import register_tool
from r1_recipes.extras.countdown.puzzle import compute

_MAX_CHARS = 200


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
        raise ValueError(
            f"an expression has at most {_MAX_CHARS} characters, this one has {len(expression)}"
        )
    value = compute(expression.strip().translate(str.maketrans("×÷−", "*/-")), [], [])
    return str(value) if value.denominator == 1 else f"{float(value):.10g}"
