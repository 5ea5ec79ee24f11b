"""The flagship recipe on two CPU cores: real weights, GSM8K's own rows, and sizes that fit; judged before and after on held-out rows.

Run:  python benchmarks/gsm8k_cpu.py [--model DIR_OR_ID] [--train ROWS] [--test ROWS] [--steps 25] [--rows 200] [-- --key …]

``recipes/gsm8k_qwen05b.yaml`` with 3 prompts of 8 completions a step and 256 tokens each. First preflight says what it expects; then it
trains, with a checkpoint every five steps; then both models answer the test rows. Call it again after an interruption, with the same
words: what is done is not done again. Everything stays in DIR (default: outputs/gsm8k_cpu), the tables in DIR/results.md. Words after
``--`` are keys of the recipe. Processors with bf16 instructions take two hours or so, others three times that; 20 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu import RECIPE, as_words, curve, table

from r1_recipes.metrics.scores import mean_interval, paired_difference

SIZES = {
    "use_cpu": "true",
    "use_vllm": "false",
    "bf16": "true",  # autocast over weights in fp32, as the recipe has it
    # With 160 four completions of five were cut, and the model unlearned to reason for the sake of an ending (docs/results.md).
    "max_completion_length": 256,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 6,
    "gradient_checkpointing": "false",
    # Five times the recipe's: it has 934 steps to get somewhere, this has 25.
    "learning_rate": 5e-6,
    "beta": 0,  # no reference model: 2.5 GB and a fifth of the time
    "save_steps": 5,
    "save_total_limit": 1,
}
_JUDGED = {
    "greedy": "greedy, strict",
    "greedy_lenient": "greedy, lenient",
    "sampled": "sampled, strict",
    "sampled_lenient": "sampled, lenient",
}
# The allocator keeps its large blocks; the Makefile says why.
_ENVIRONMENT = {**os.environ, "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}


def main(argv: Sequence[str] | None = None) -> None:
    """Train and judge what has not been, and print the tables.

    Raises:
        SystemExit: 1 where a command fails; its last lines are shown.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    cut = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--model", default="Qwen/Qwen2.5-Coder-0.5B-Instruct", help="checkpoint of the 0.5B class (default %(default)s)")
    parser.add_argument(
        "--train", default="openai/gsm8k", help="a hub's name, or rows in JSON lines: question, answer (default %(default)s)"
    )
    parser.add_argument("--test", default="openai/gsm8k", help="held-out rows, the same")
    parser.add_argument("--steps", type=int, default=25, help="optimizer steps")
    parser.add_argument("--rows", type=int, default=200, help="held-out rows that are judged")
    parser.add_argument("--output", type=Path, default=Path("outputs/gsm8k_cpu"), help="where everything is kept")
    options, own = parser.parse_args(given[:cut]), given[cut + 1 :]
    options.output.mkdir(parents=True, exist_ok=True)
    run = options.output / "run"
    train = as_words({"model_name_or_path": options.model, **_rows(options.train), **SIZES, "max_steps": options.steps, "output_dir": run})
    forecast = options.output / "preflight.txt"
    if not forecast.exists():
        # Its advice is kept, and compared with what came; it is not followed.
        text = _run("preflight", [RECIPE, *train, *own, "--groups", "4", "--seconds", "120"], options.output, may_fail=True)
        forecast.write_text(text, encoding="utf-8")
    if not (run / "model.safetensors").exists():
        _run("grpo", [RECIPE, *train, *own], options.output)
    if not (options.output / "judged" / "results.json").exists():
        test = {**SIZES, **_rows(options.test, "test"), "dtype": "bfloat16", "max_eval_samples": options.rows}
        models = ["--model", options.model, "--model", str(run), "--num_samples", "1", "--output", str(options.output / "judged")]
        _run("evaluate", [RECIPE, *as_words(test), *own, *models], options.output)
    history = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    history = [entry for entry in history if "loss" in entry]
    judged = json.loads((options.output / "judged" / "results.json").read_text(encoding="utf-8"))

    def middle(key: str) -> float:
        return statistics.median(entry[key] for entry in history)

    said = [
        line.strip() for line in forecast.read_text(encoding="utf-8").splitlines() if re.match(r"  (ok|warning|error) +(signal|fit)", line)
    ]
    text = "\n\n".join(
        [
            table(curve(history)),
            table(_judged(*judged)),
            f"{len(history)} steps in {sum(entry['step_time'] for entry in history) / 60:.0f} min; "
            f"{middle('step_time'):.0f} s a step in the middle, {middle('time/generation'):.0f} s of them generation.",
            "Preflight had said:\n\n" + "\n".join(f"- {line}" for line in said),
        ]
    )
    (options.output / "results.md").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{text}\n\npage: {run / 'report.html'}\n")


def _rows(source: str, split: str = "train") -> dict[str, Any]:
    """The keys of a data set, or of a file, which has one split and no configuration."""
    if not Path(source).exists():
        return {"dataset_name": source}
    return {"dataset_name": source, "dataset_config": "null"} | ({"dataset_test_split": "train"} if split == "test" else {})


def _run(module: str, arguments: list[str], folder: Path, *, may_fail: bool = False) -> str:
    """A module in a process of its own, whose memory ends with it; what it prints on standard output, the rest is in log.txt."""
    sys.stderr.write(f"{module} … (the log: {folder / 'log.txt'})\n")
    command = [sys.executable, "-m", f"r1_recipes.{module}", *arguments]
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, env=_ENVIRONMENT)
        log.write(done.stdout)
    if done.returncode and not may_fail:
        tail = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")[-3000:]
        sys.exit(f"{tail}\nerror: r1_recipes.{module} ended with status {done.returncode}")
    return done.stdout


def _judged(before: dict[str, Any], after: dict[str, Any]) -> list[list[str]]:
    """Accuracy on the same rows, with 95 % intervals."""
    rows = [["", "before", "after", "difference"], ["---"] * 4]
    for key, name in _JUDGED.items():
        cells = [_percent(mean_interval(scores[key])) for scores in (before, after)]
        rows.append([name, *cells, _percent(paired_difference(before[key], after[key]), "+")])
    return [*rows, ["in the format", *(f"{100 * scores['greedy_format']:.0f} %" for scores in (before, after)), ""]]


def _percent(interval: tuple[float, float, float], sign: str = "") -> str:
    mean, low, high = (100 * bound for bound in interval)
    return f"{mean:{sign}.1f}{'' if sign else ' %'} ({low:{sign}.1f} to {high:{sign}.1f})"


if __name__ == "__main__":
    main()
