r"""How fast answers are judged: the reward ``accuracy``, TRL's ``accuracy_reward``, and math-verify
called row by row.

Run:  python benchmarks/verification.py [--seconds 20] [--data labelled.jsonl]

The judges take turns on the same batches, so that a machine which slows down slows all of them.
Timed is the call of the reward function, with completions as TRL hands them over; no row comes
twice. Rows are those of rows.py, drawn from a seed. ``--data`` adds labelled rows: JSON lines with
``gold``, ``is_correct`` and ``solution``, whose answer follows the last ``A:``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rows import Row, rows

BATCHES = (16, 64, 1024)
Judge = Callable[..., Sequence[float | None]]


def judges() -> dict[str, Judge]:
    """Return the reward functions by the name of who judges."""
    from math_verify import parse, verify
    from trl.rewards import accuracy_reward

    from r1_recipes.rewards import get_reward_funcs

    def row_by_row(completions: list, solution: list[str], **columns: object) -> list[float]:
        pairs = zip(solution, completions, strict=True)
        return [float(verify(parse(gold), parse(said[0]["content"]))) for gold, said in pairs]

    (accuracy,) = get_reward_funcs(["accuracy"], "boxed")
    return {"r1_recipes": accuracy, "trl": accuracy_reward, "math_verify": row_by_row}


def labelled(path: Path) -> list[Row]:
    """Return a file's solutions as completions in the format ``boxed``."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        steps, _, answer = row["solution"].rpartition("A:")
        answer = answer.strip().replace("$", r"\$")
        text = f"{steps}The answer is $\\boxed{{{answer}}}$."
        found.append(Row(text, row["gold"], answer, row["is_correct"]))
    return found


def columns(batch: list[Row]) -> dict[str, list]:
    """Return what TRL hands to a reward function."""
    return {
        "prompts": [[{"role": "user", "content": "?"}]] * len(batch),
        "completions": [[{"role": "assistant", "content": row.completion}] for row in batch],
        "completion_ids": [[0] * 100] * len(batch),
        # TRL's parser reads LaTeX between dollars only; the same text goes to everyone.
        "solution": [
            row.gold if row.gold.replace(",", "").isdigit() else f"${row.gold}$" for row in batch
        ],
    }


def measure(judges: dict[str, Judge], stream: Iterator[Row], size: int, seconds: float) -> str:
    """Judge batches in turn until the slowest judge has taken that long; return a line of the
    table.
    """
    taken: dict[str, list[float]] = {name: [] for name in judges}
    right = dict.fromkeys(judges, 0)
    while max(map(sum, taken.values())) < seconds and (
        batch := list(itertools.islice(stream, size))
    ):
        given = columns(batch)
        for name, judge in judges.items():
            started = time.perf_counter()
            verdicts = judge(**given)
            taken[name].append(time.perf_counter() - started)
            right[name] += sum(
                bool(verdict) is row.right for verdict, row in zip(verdicts, batch, strict=True)
            )
    count = size * len(taken["trl"])
    rates = {name: count / sum(times) for name, times in taken.items()}
    cells = [f"{rate:,.0f}" for rate in rates.values()]
    cells.append(f"{rates['r1_recipes'] / rates['trl']:.1f}")
    cells.append(" / ".join(f"{1000 * max(times):.0f}" for times in taken.values()))
    cells.append(" / ".join(f"{100 * number / count:.1f}" for number in right.values()))
    return f"{size} x {len(taken['trl'])} | " + " | ".join(cells) + " |"


def main() -> None:
    """Print a table of completions per second."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=20, help="of the slowest judge for each line (20)"
    )
    parser.add_argument("--data", type=Path, help="labelled rows to judge besides")
    options = parser.parse_args()
    found = judges()
    names = " / ".join(found)
    sys.stdout.write(
        f"{len(os.sched_getaffinity(0))} cores; completions per second; slowest batch in ms and "
        f"the share judged as drawn, in %, by {names}\n\n"
        f"| rows | batches | {' | '.join(found)} | x TRL | slowest batch | as drawn |\n"
        f"|{'---|' * 8}\n"
    )
    measure(found, rows("math", 0), 64, 0.01)  # the first batch pays for what starts once
    streams: list[tuple[str, int, Iterator[Row]]] = [
        (f"{mix}, groups of {group}", size, rows(mix, 100 * group + size, group=group))
        for mix, group in (("gsm8k", 8), ("math", 8), ("math", 1))
        for size in BATCHES
    ]
    if options.data:
        streams.append((options.data.name, 64, iter(labelled(options.data))))
    for name, size, stream in streams:
        line = measure(found, stream, size, options.seconds)
        sys.stdout.write(f"| {name} | {line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
