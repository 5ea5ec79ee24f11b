"""How many completions a minute the countdown reward judges on one core, parsing included.

Run:  python benchmarks/countdown_reward.py [--completions 200000] [--length 300]

Every completion is padded to the same length, a conversation as TRL hands it over, in groups of 8
with a ``scorer`` each; of eight, three are right, three wrong, one is malformed and one has no
answer. What is measured is the process's own CPU time, so that other work on the machine does not
count. Imports no torch.
"""

from __future__ import annotations

import argparse
import sys
import time
from random import Random

from r1_recipes.extras.countdown.puzzle import Puzzle, draw
from r1_recipes.rewards import get_reward_funcs

SETTINGS = {
    "min_numbers": 3,
    "max_numbers": 4,
    "min_value": 1,
    "max_value": 99,
    "min_target": 10,
    "max_target": 99,
}
BATCH = 256


def completion(answer: str | None, length: int) -> list[dict[str, str]]:
    """A response of ``length`` characters in the format ``think_answer``."""
    ending = "\n</think>\n" + ("" if answer is None else f"<answer>\n{answer}\n</answer>")
    working = (
        "I try 44 + 19 = 63, which is too small, so next I try 44 * 2 - 19 = 69 and go on from "
        "there. "
    )
    room = length - len("<think>\n") - len(ending)
    text = "<think>\n" + (working * (room // len(working) + 1))[:room] + ending
    return [{"role": "assistant", "content": text}]


def group(puzzle: Puzzle, expression: str, length: int) -> list[list[dict[str, str]]]:
    wrong = " + ".join(map(str, puzzle.numbers))
    answers = [
        expression,
        f"{expression} = {puzzle.target}",
        f"({expression})",
        f"{wrong} + 1",
        f"{wrong} = 0",
        f"({wrong}) / 0",
        "44 - ?",
    ]
    return [completion(answer, length) for answer in (*answers, None)]


def measure(completions: int, length: int) -> tuple[float, float]:
    """Completions judged a minute, and their mean reward."""
    rng = Random(0)
    (reward,) = get_reward_funcs(["countdown"], "think_answer")
    seconds = total = judged = 0.0
    while judged < completions:
        texts, scorers = [], []
        while len(texts) < BATCH:
            found = draw(rng, SETTINGS)
            if found is not None:
                texts += group(*found, length)
                scorers += [found[0].scorer] * 8
        started = time.process_time()
        scores = reward(completions=texts, scorer=scorers)
        seconds += time.process_time() - started
        judged += len(texts)
        total += sum(scores)
    return 60 * judged / seconds, total / judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--completions", type=int, default=200_000, help="how many are judged (default 200,000)"
    )
    parser.add_argument("--length", type=int, default=300, help="characters each (default 300)")
    options = parser.parse_args()
    rate, mean = measure(options.completions, options.length)
    sys.stdout.write(
        f"countdown: {rate:,.0f} completions/minute on one core, {options.length} characters "
        f"each, mean reward {mean:.3f}\n"
    )


if __name__ == "__main__":
    main()
