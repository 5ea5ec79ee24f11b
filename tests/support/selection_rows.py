"""Invented completions that meet every rule of ``keep:``, in an order that a seed draws."""

from __future__ import annotations

import random
from typing import Any

from r1_recipes.prompts import FORMATS

FMT = FORMATS["think_answer"]
EVALUATION_QUESTIONS = [
    "A train leaves the old station at noon and arrives at five.",
    "What is 3 + 4?",
]
_NAMES = ["Ana", "Tom", "Mia", "Ben", "Eva"]
_BODIES = [
    "first we add the two numbers and see that it is so",
    "we count the pens, one after the other, and write the number down",
    "first we add, 然后我们把它乘以二, and so on",
    " ".join(["so we add the two"] * 20),
    "run this\n```python\nx = 1\n```\nand read the number",
    "half a pair \ud800 and \0",
]


def records(count: int = 240, seed: int = 5) -> list[dict[str, Any]]:
    """Records as the shards hold them; a scorer stands in the later half only, so that the columns
    differ on the way.
    """
    rng = random.Random(seed)
    return [_record(index, count, rng) for index in range(count)]


def _record(index: int, count: int, rng: random.Random) -> dict[str, Any]:
    first, second = rng.randint(1, 9), rng.randint(1, 9)
    question = rng.choice(
        [
            f"{rng.choice(_NAMES)} has {first} boxes of pens and finds {second} more on the "
            f"way home, how many are there now",
            f"How much is {first} plus {second}, if nothing else is said about the two numbers?",
            f"What  is {first} + {second}?",
            f"{rng.choice(_NAMES)} says: a train leaves the old station at noon and arrives "
            f"at five, or at {first}.",
        ]
    )
    solution = None if rng.random() < 0.1 else str(first + second)
    completions = [_completion(first + second, rng) for _ in range(rng.randint(0, 4))]
    scorer = '{"task": "sum"}' if index > count // 2 and rng.random() < 0.5 else None
    columns = {
        "solution": solution,
        "scorer": scorer,
        "level": rng.choice([None, 1, 2]),
        "share": rng.choice([1, 0.5]),
        "tags": rng.choice([[], ["a", "b"]]),
        "note": rng.choice([None, "plain", "a\u2028b", "2024-01-01"]),
    }
    prompt = [{"role": "user", "content": question}]
    error = "timed out" if rng.random() < 0.05 else None
    return {
        "index": index,
        "question": question,
        "prompt": prompt,
        "columns": columns,
        "completions": completions,
        "error": error,
    }


def _completion(right: int, rng: random.Random) -> dict[str, Any]:
    text = FMT.render(rng.choice(_BODIES), str(right if rng.random() < 0.6 else right + 1))
    if rng.random() < 0.1:
        text = text.removesuffix("</answer>")
    return {
        "text": text,
        "tokens": rng.randint(5, 60),
        "finish_reason": rng.choice(["stop", "stop", "stop", "length", None]),
    }


def right(completions: list[Any], solution: list[str | None], **columns: Any) -> list[float | None]:
    """Whether the answer is the gold; ``None`` without one."""
    answers = [FMT.parse(completion[0]["content"]).answer for completion in completions]
    return [
        None if gold is None else float(answer == gold)
        for answer, gold in zip(answers, solution, strict=True)
    ]


def commas(completions: list[Any], **columns: Any) -> list[float]:
    """How many commas a completion has."""
    return [float(completion[0]["content"].count(",")) for completion in completions]
