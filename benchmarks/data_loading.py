"""How long a recipe's rows take to load, and how much memory: GSM8K-like rows of a local file,
mapped, rendered and measured in tokens.

Run:  python benchmarks/data_loading.py [--rows 400000] [--tokenizer PATH]

The load runs in a process of its own with empty caches; peak memory is that process's (ru_maxrss).
Without ``--tokenizer``: SmolLM2-135M-Instruct's, from the package registry
(r1_recipes.models.weights).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MAX_PROMPT_TOKENS = 160  # some rows are over it


def write_rows(path: Path, count: int) -> None:
    rng = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            boxes, pens, gone = (rng.randrange(2, 100) for _ in range(3))
            story = "Every box was counted twice before it left the shop. " * rng.randrange(6)
            question = (
                f"Shop {number} sells {boxes} boxes of {pens} pens and throws away {gone} of "
                f"them. {story}How many pens are left?"
            )
            total = boxes * pens
            steps = (
                f"There are {boxes}*{pens}=<<{boxes}*{pens}={total}>>{total} pens.\nThat leaves "
                f"{total}-{gone}=<<{total}-{gone}>>"
            )
            file.write(
                json.dumps(
                    {"question": question, "answer": f"{steps}{total - gone}.\n#### {total - gone}"}
                )
                + "\n"
            )


def load(path: Path, tokenizer: str) -> dict[str, Any]:
    """Load the rows in this process."""
    from transformers import AutoTokenizer

    from r1_recipes.data import load_dataset
    from r1_recipes.prompts import FORMATS
    from r1_recipes.recipe.types import RecipeArguments

    keys = {"mapper": "gsm8k", "max_prompt_tokens": MAX_PROMPT_TOKENS, "keep_columns": []}
    arguments = RecipeArguments(dataset_name=str(path), **keys)
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    started, before = time.perf_counter(), time.process_time()
    _, report = load_dataset(arguments, FORMATS["think_answer"], "grpo", tokenizer=loaded)
    seconds, cpu = time.perf_counter() - started, time.process_time() - before
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return {
        "rows": report.read,
        "kept": report.kept,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_mb": megabytes,
    }


def run(tokenizer: str, rows: int = 400_000) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        write_rows(path, rows)
        command = [sys.executable, __file__, "--load", str(path), "--tokenizer", tokenizer]
        environment = {
            **os.environ,
            "HF_DATASETS_CACHE": folder,
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        }
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return json.loads(done.stdout.splitlines()[-1])


def table(found: dict[str, Any]) -> str:
    times = f"{found['seconds']:.1f} s ({found['cpu_seconds']:.1f} s of processor time)"
    return (
        f"data loading: {found['rows']:,} rows, {found['kept']:,} kept: {times}, peak "
        f"{found['peak_mb']:,.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000, help="rows to load (default 400000)")
    parser.add_argument(
        "--tokenizer", help="folder of a tokenizer (default: SmolLM2-135M-Instruct's)"
    )
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        sys.stdout.write(json.dumps(load(options.load, options.tokenizer)) + "\n")
        return
    if options.tokenizer is None:
        import layer_overhead

        options.tokenizer = layer_overhead.default_model()
    sys.stdout.write(table(run(options.tokenizer, options.rows)) + "\n")


if __name__ == "__main__":
    main()
