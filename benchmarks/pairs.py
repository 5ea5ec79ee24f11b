r"""Labelled pairs of gold and answer: how many right ones score, and how many wrong ones do not,
here, in TRL and in math-verify.

Run:  python benchmarks/pairs.py example_model_solutions.jsonl pairs.jsonl [--failures DIR]

The first file is the one of openai/grade-school-math, with the solutions of four models to GSM8K's
test set; each is shown in tags and in a box. In other files a line has ``gold``, ``expected`` (1 or
0), and ``completion`` with its ``format``, or ``answer``, which is shown in a box; ``question``
goes into the prompt. ``prose: true`` and ``kind: letter`` are left out, as a set's own README asks.
math-verify and TRL are shown the answer in a box and the gold between dollars. ``--failures``
writes what each judge gets wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from itertools import chain
from pathlib import Path
from typing import Any

from r1_recipes.prompts import get_response_format
from r1_recipes.rewards import get_reward_funcs

Rows = list[dict[str, Any]]
BATCH = 64


def boxed(answer: str) -> str:
    """Return an answer as a completion of the format ``boxed``."""
    answer = answer.strip()
    if "\\boxed" in answer:
        return answer
    if answer.startswith("$") and answer.endswith("$") and answer.count("$") == 2:
        answer = answer[1:-1]
    return f"The answer is $\\boxed{{{answer}}}$."


def solutions(row: dict[str, Any]) -> Rows:
    """Return the solutions in a line of ``example_model_solutions.jsonl``, each in two formats."""
    gold, found = row["ground_truth"].rpartition("A: ")[2], []
    for model, made in row.items():
        if isinstance(made, dict):
            text = re.sub(r"<<.*?>>", "", made["solution"]).strip()
            steps, mark, answer = text.rpartition("A: ")
            steps, answer = (steps or "-", answer) if mark else (text, "-")
            one = {"question": row["question"], "gold": gold, "expected": made["is_correct"]}
            for name in ("think_answer", "boxed"):
                shown = get_response_format(name).render(steps.strip(), answer.strip() or "-")
                one |= {"set": f"{model}, {name}", "completion": shown, "format": name}
                found.append(dict(one))
    return found


def read(path: Path) -> Rows:
    """Return a file's rows, each with a completion, its format, and its answer in a box."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    kept = []
    for row in chain(*(solutions(line) if "ground_truth" in line else [line] for line in lines)):
        if row.get("prose") or row.get("kind") == "letter":
            continue
        if row.get("completion") is None:
            row |= {"completion": boxed(row["answer"]), "format": "boxed"}
        parsed = get_response_format(row["format"]).parse(row["completion"])
        row["boxed"] = row["completion"]
        if row["format"] != "boxed":
            row["boxed"] = boxed(parsed.answer or "")
        kept.append(row)
    return kept


def ours(rows: Rows) -> list[bool]:
    """Judge by the reward ``accuracy``."""
    found: dict[int, bool] = {}
    for name in {row["format"] for row in rows}:
        (accuracy,) = get_reward_funcs(["accuracy"], name)
        own = [(index, row) for index, row in enumerate(rows) if row["format"] == name]
        for start in range(0, len(own), BATCH):
            places, part = zip(*own[start : start + BATCH], strict=True)
            asked = [[{"role": "user", "content": row.get("question") or "?"}] for row in part]
            said = [[{"role": "assistant", "content": row["completion"]}] for row in part]
            golds = [row["gold"] for row in part]
            rewards = accuracy(prompts=asked, completions=said, solution=golds)
            found |= {place: value == 1.0 for place, value in zip(places, rewards, strict=True)}
    return [found[index] for index in range(len(rows))]


def trl(rows: Rows) -> list[bool]:
    """Judge by TRL's ``accuracy_reward``."""
    from trl.rewards import accuracy_reward

    completions = [[{"role": "assistant", "content": row["boxed"]}] for row in rows]
    golds = [f"${row['gold'].strip('$')}$" for row in rows]
    return [reward == 1.0 for reward in accuracy_reward(completions, golds)]


def math_verify(rows: Rows) -> list[bool]:
    """Judge by math-verify alone."""
    from math_verify import parse, verify

    return [bool(verify(parse(f"${row['gold'].strip('$')}$"), parse(row["boxed"]))) for row in rows]


JUDGES = {"r1-recipes": ours, "TRL": trl, "math-verify": math_verify}


def line(name: str, rows: Rows, judges: list[str], failures: Path | None) -> str:
    """Judge a set; return its row of the table, and write down what each judge gets wrong."""
    right = sum(bool(row["expected"]) for row in rows)
    cells = [name, str(right), str(len(rows) - right)]
    for judge in judges:
        pairs = list(zip(rows, JUDGES[judge](rows), strict=True))
        scored = sum(verdict for row, verdict in pairs if row["expected"])
        refused = sum(not verdict for row, verdict in pairs if not row["expected"])
        shares = scored / max(1, right), refused / max(1, len(rows) - right)
        cells.append(f"{scored} ({shares[0]:.3f}), {refused} ({shares[1]:.3f})")
        if failures:
            failures.mkdir(parents=True, exist_ok=True)
            wrong = [row for row, verdict in pairs if verdict != bool(row["expected"])]
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in wrong)
            (failures / f"{name}-{judge}.jsonl").write_text(text, encoding="utf-8")
    return f"| {' | '.join(cells)} |\n"


def main() -> None:
    """Print a table with a row for each file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--judges", nargs="+", choices=list(JUDGES), default=list(JUDGES))
    parser.add_argument("--failures", type=Path, metavar="DIR", help="what each judge gets wrong")
    args = parser.parse_args()
    sys.stdout.write("Right answers that score, and wrong ones that do not, by judge.\n\n")
    sys.stdout.write(f"| set | right | wrong | {' | '.join(args.judges)} |\n")
    sys.stdout.write(f"|{'---|' * (len(args.judges) + 3)}\n")
    for path in args.files:
        sets: dict[str, Rows] = {}
        for row in read(path):
            sets.setdefault(row.get("set", path.stem), []).append(row)
        for name, rows in sets.items():
            sys.stdout.write(line(name, rows, args.judges, args.failures))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
