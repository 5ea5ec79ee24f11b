r"""Labelled pairs of gold and answer: how many right ones score, and how many wrong ones do not,
here, in TRL and in math-verify.

Run:  python benchmarks/pairs.py pairs.jsonl cases.jsonl [--failures DIR]

A line has ``gold``, ``expected`` (1 or 0), and ``completion`` with its ``format``, or ``answer``,
which is shown in a box; ``question`` goes into the prompt. ``prose: true`` and ``kind: letter`` are
left out, as a set's own README asks. math-verify and TRL are shown the answer in a box and the gold
between dollars. ``--failures`` writes what each judge gets wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from r1_recipes import verification
from r1_recipes.prompts import get_response_format
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.rewards.accuracy import parsed_answer

Row = dict[str, Any]
BATCH = 64


def boxed(answer: str) -> str:
    """An answer as a completion of the format ``boxed``."""
    answer = answer.strip()
    if "\\boxed" in answer:
        return answer
    if answer.startswith("$") and answer.endswith("$") and answer.count("$") == 2:
        answer = answer[1:-1]
    return f"The answer is $\\boxed{{{answer}}}$."


def read(path: Path) -> list[Row]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    kept = [row for row in rows if not row.get("prose") and row.get("kind") != "letter"]
    for row in kept:
        row.setdefault("completion", None)
        if row["completion"] is None:
            row["completion"], row["format"] = boxed(row["answer"]), "boxed"
    return kept


def ours(rows: list[Row]) -> list[bool]:
    found: dict[int, bool] = {}
    for name in {row["format"] for row in rows}:
        (accuracy,) = get_reward_funcs(["accuracy"], name)
        own = [index for index, row in enumerate(rows) if row["format"] == name]
        for start in range(0, len(own), BATCH):
            part = own[start : start + BATCH]
            rewards = accuracy(
                prompts=[
                    [{"role": "user", "content": rows[index].get("question") or "?"}]
                    for index in part
                ],
                completions=[
                    [{"role": "assistant", "content": rows[index]["completion"]}] for index in part
                ],
                solution=[rows[index]["gold"] for index in part],
            )
            found |= {index: reward == 1.0 for index, reward in zip(part, rewards, strict=True)}
    verification.close()
    return [found[index] for index in range(len(rows))]


def in_a_box(row: Row) -> str:
    """The answer of a completion in a box, for those that read no tags."""
    if row["format"] == "boxed":
        return str(row["completion"])
    return boxed(parsed_answer(get_response_format(row["format"]), row["completion"]) or "")


def trl(rows: list[Row]) -> list[bool]:
    from trl.rewards import accuracy_reward

    completions = [[{"role": "assistant", "content": in_a_box(row)}] for row in rows]
    return [
        reward == 1.0
        for reward in accuracy_reward(completions, [f"${row['gold'].strip('$')}$" for row in rows])
    ]


def math_verify(rows: list[Row]) -> list[bool]:
    from math_verify import parse, verify

    return [
        bool(verify(parse(f"${row['gold'].strip('$')}$"), parse(in_a_box(row)))) for row in rows
    ]


JUDGES: dict[str, Callable[[list[Row]], list[bool]]] = {
    "r1-recipes": ours,
    "TRL": trl,
    "math-verify": math_verify,
}


def table(paths: list[Path], judges: list[str], failures: Path | None) -> Iterator[str]:
    yield (
        "| set | right | wrong | "
        + " | ".join(f"{judge}: right ones that score, wrong ones that do not" for judge in judges)
        + " |"
    )
    yield "|" + "---|" * (len(judges) + 3)
    for path in paths:
        rows = read(path)
        expected = [bool(row["expected"]) for row in rows]
        cells = []
        for judge in judges:
            verdicts = JUDGES[judge](rows)
            wrong = [
                row
                for row, right, verdict in zip(rows, expected, verdicts, strict=True)
                if right != verdict
            ]
            right_ones = sum(
                verdict for right, verdict in zip(expected, verdicts, strict=True) if right
            )
            wrong_ones = sum(
                not verdict for right, verdict in zip(expected, verdicts, strict=True) if not right
            )
            cells.append(
                f"{right_ones} ({right_ones / max(1, sum(expected)):.3f}), {wrong_ones} "
                f"({wrong_ones / max(1, expected.count(False)):.3f})"
            )
            if failures:
                text = "\n".join(json.dumps(row, ensure_ascii=False) for row in wrong)
                (failures / f"{path.stem}-{judge}.jsonl").write_text(text + "\n", encoding="utf-8")
        yield (
            f"| {path.stem} | {sum(expected)} | {expected.count(False)} | "
            + " | ".join(cells)
            + " |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--judges", nargs="+", choices=list(JUDGES), default=list(JUDGES))
    parser.add_argument(
        "--failures",
        type=Path,
        metavar="DIR",
        help="write what each judge gets wrong into this folder",
    )
    args = parser.parse_args()
    for path in args.files:
        if not path.is_file():
            sys.exit(f"{path}: no such file. Fix: give JSON lines with gold, answer and expected")
    if args.failures:
        args.failures.mkdir(parents=True, exist_ok=True)
    for line in table(args.files, args.judges, args.failures):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
