"""The tools ``calculator`` and ``python``, by which a model asks for what it cannot do well.

A tool is a function with types and a docstring, which TRL shows to the model. So is what it raises.
"""

from r1_recipes.extras import sandbox
from r1_recipes.extras.countdown import compute


def calculator(expression: str) -> str:
    """
    Work out an expression.

    Args:
        expression: Numbers with +, -, *, / and brackets, for example (12 + 30) * 7.

    Returns:
        The value, to ten digits if it is no whole number.
    """
    value = compute(expression.strip().translate(str.maketrans("×÷−", "*/-")), [], [])
    return str(value) if value.denominator == 1 else f"{float(value):.10g}"


def python(code: str) -> str:
    """
    Run a Python program and read what it prints.

    Args:
        code: The whole program. It has no files, no network and no input, five seconds and 512 MB.

    Returns:
        What it printed.
    """
    outcome = sandbox.run(code)
    printed = outcome.output.decode("utf-8", "replace")
    if outcome.status != "ok":
        raise RuntimeError(" ".join(filter(None, (outcome.status, outcome.detail, printed))))
    return printed or "(printed nothing)"


# Called before a run: without a sandbox nothing is trained.
python.check_start = sandbox.check  # type: ignore[attr-defined]
