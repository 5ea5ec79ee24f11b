"""Memory of selecting from a few traces and from many: python -m r1_recipes.generate's second half,
on invented shards.

Run:  python benchmarks/selection.py [--small 3000] [--large 60000] [--tokens 8000]

Each size is selected in a process of its own, with every rule that needs no server; its peak is
that process's, without its workers.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_SAMPLES = 4
_WORDS = [
    "so",
    "we",
    "add",
    "the",
    "two",
    "numbers",
    "and",
    "see",
    "that",
    "it",
    "is",
    "then",
    "count",
    "pens",
    "boxes",
    "left",
]
KEEP = {
    "best_of": 2,
    "correct": True,
    "filters": {"malformed": True, "truncated": True, "code": True},
    "pass_rate": [0, 1],
    "deduplicate": True,
}


def run(small: int, large: int, tokens: int) -> dict[str, Any]:
    """Peak memory and time of both sizes, in traces of about ``tokens`` tokens."""
    return {"tokens": tokens, "small": _apart(small, tokens), "large": _apart(large, tokens)}


def table(found: dict[str, Any]) -> str:
    lines = ["| traces | of tokens | peak MB | s | rows kept |", "|---:|---:|---:|---:|---:|"]
    for size in ("small", "large"):
        one = found[size]
        lines.append(
            f"| {one['traces']:,} | {found['tokens']:,} | {one['peak_mb']:,.0f} | "
            f"{one['seconds']:.0f} | {one['rows']:,} |"
        )
    return "\n".join(lines)


def _apart(traces: int, tokens: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--measure", str(traces), "--tokens", str(tokens)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def _measure(traces: int, tokens: int) -> dict[str, Any]:
    from r1_recipes.completions.store import ShardStore
    from r1_recipes.extras.selection import Keep, select, write
    from r1_recipes.prompts import FORMATS

    fmt = FORMATS["think_answer"]
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "completions"
        shards.mkdir()
        rng = random.Random(0)
        text = " ".join(
            rng.choices(_WORDS, k=2 * tokens)
        )  # reasonings are pieces of it: to draw each anew would take most of the time
        for shard in range(0, traces // _SAMPLES, 1000):
            with (shards / f"shard-{shard // 1000:05d}.jsonl").open("w", encoding="utf-8") as file:
                for index in range(shard, min(shard + 1000, traces // _SAMPLES)):
                    file.write(json.dumps(_record(index, text, tokens, rng, fmt)) + "\n")
        started = time.perf_counter()
        with ShardStore(shards) as store:
            groups = select(store, Keep.parse(KEEP), fmt, [_right])
            dataset = Path(folder) / "dataset"
            write(groups, fmt, "completions", dataset, title="benchmark", settings={})
        counts = json.loads((dataset / "yield.json").read_text(encoding="utf-8"))
        return {
            "traces": traces,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
            "seconds": time.perf_counter() - started,
            "rows": counts["completions"]["kept"],
        }


def _record(index: int, text: str, tokens: int, rng: random.Random, fmt: Any) -> dict[str, Any]:
    question = f"What is {index} plus {index}?"
    completions = []
    for _ in range(_SAMPLES):
        start = rng.randrange(len(text) // 2)
        # A word of this list and its space are 1.3 tokens or so of 4.4 characters.
        answer = fmt.render(
            text[start : start + int(3.4 * tokens)], str(2 * index + (rng.random() < 0.3))
        )
        completions.append({"text": answer, "tokens": tokens, "finish_reason": "stop"})
    columns = {"solution": str(2 * index), "scorer": None, "level": index % 5}
    prompt = [{"role": "user", "content": question}]
    record = {
        "index": index,
        "digest": f"{index:016x}",
        "question": question,
        "prompt": prompt,
        "columns": columns,
    }
    return {**record, "completions": completions, "error": None}


def _right(completions: list[Any], solution: list[str], **columns: Any) -> list[float]:
    return [
        float(f"\n{gold}\n</answer>" in text[0]["content"])
        for text, gold in zip(completions, solution, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", type=int, default=3_000, help="traces (default 3,000)")
    parser.add_argument("--large", type=int, default=60_000, help="traces (default 60,000)")
    parser.add_argument(
        "--tokens", type=int, default=8_000, help="tokens of a trace (default 8,000)"
    )
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        sys.stdout.write(json.dumps(_measure(options.measure, options.tokens)))
    else:
        sys.stdout.write(table(run(options.small, options.large, options.tokens)) + "\n")


if __name__ == "__main__":
    main()
