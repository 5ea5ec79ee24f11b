"""Sums for runs on two CPU cores: drawn as a run starts, with their steps as reasoning."""

import operator
from random import Random
from typing import Any

from r1_recipes.data.mappers import MappedRow, register_mapper, text
from r1_recipes.extras.generated import Draws, distinct_rows, task_keys

SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def sums_rows(_: str, split: str, config: dict[str, Any]) -> Any:
    """Return the data set of a split. No sum is twice in a split, or in both.

    Args:
        split: ``"train"`` or ``"test"``.
        config: ``terms`` (how many numbers a sum has), ``digits`` (how many digits a number has),
            ``operators`` (some of ``+-*``), and ``size`` and ``seed`` of ``train`` and ``test``.
            Sum i is drawn from seed + i, so close seeds share most sums.
    """
    terms, digits, signs = task_keys(config, "terms", "digits", "operators")

    def draw(seed: int, size: int) -> Draws:
        for each in range(seed, seed + 20 * size):
            row = draw_sum(Random(each), terms, digits, signs)
            yield row["expression"], row

    return distinct_rows(draw, split, config, "sums")


def draw_sum(rng: Random, terms: int, digits: int, operators: str) -> dict[str, str]:
    """Return a question, its ``expression``, its ``answer`` and the ``steps`` that lead to it."""
    low = 0 if digits == 1 else 10 ** (digits - 1)
    numbers = [rng.randint(low, 10**digits - 1) for _ in range(terms)]
    signs = [rng.choice(operators) for _ in numbers[1:]]
    words = [str(numbers[0])]
    for sign, number in zip(signs, numbers[1:], strict=True):
        words += [sign, str(number)]
    expression = " ".join(words)
    steps = []
    while signs:  # Products come first, as one reads a sum. Otherwise from left to right.
        at = signs.index("*") if "*" in signs else 0
        sign, left, right = signs.pop(at), numbers[at], numbers.pop(at + 1)
        numbers[at] = SIGNS[sign](left, right)
        steps.append(f"{left} {sign} {right} = {numbers[at]}")
    return {
        "question": f"Calculate {expression}.",
        "expression": expression,
        "answer": str(numbers[0]),
        "steps": "\n".join(steps),
    }


@register_mapper("sums", "question", "expression", "answer", "steps")
def sums(row: dict[str, Any], worked_share: float = 1.0, tool: str | None = None) -> MappedRow:
    """Map a sum. For SFT, a share of the rows work it out, and the others estimate it.

    An estimate is usually wrong. A cold start on both teaches the format of an answer, and GRPO
    then learns which reasoning gets a reward.

    Args:
        row: The row.
        worked_share: The share of rows with steps, always the same rows.
        tool: ``calculator`` makes these rows call the tool instead of writing the steps.
    """

    question, expression, answer, steps = (text(row, column) for column in sums.columns)
    mapped = {"question": question, "solution": answer}
    # A checksum would do worse: its bits follow the operators, and so would the habit.
    if Random(question).random() >= worked_share:
        estimate = str(round(int(answer), -1))
        return {**mapped, "reasoning": f"{expression} is about {estimate}", "answer": estimate}
    if tool:
        call = {"name": tool, "arguments": {"expression": expression}}
        calls = [{"type": "function", "function": call}]
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "name": tool, "content": answer},
        ]
        return {**mapped, "messages": messages, "reasoning": f"The {tool} says {answer}."}
    return {**mapped, "reasoning": steps}
