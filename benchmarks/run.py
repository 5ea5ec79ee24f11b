"""Every benchmark that needs no GPU, in one run: its tables, the bars that the project sets itself,
and a JSON file of all of it.

Run:  make bench        or  python benchmarks/run.py [--output outputs/bench.json] [--data
gsm8k_verdicts.jsonl] [--seconds 8] [--pairs 3]

What takes part: verification.py (judges), countdown_reward.py, selection.py (memory),
data_loading.py (400,000 rows), layer_overhead.py (training runs of SmolLM2-135M-Instruct, some
minutes each), padding.py (steps of the same model on three length distributions), and how long ``python -m r1_recipes.grpo --help`` takes. Ratios are taken within one
run, since machines differ from hour to hour. Exit status 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import countdown_reward
import data_loading
import layer_overhead
import padding
import selection
import verification

PACKAGES = ("torch", "trl", "transformers", "math-verify")
PARTS = ("verification", "countdown", "selection", "data_loading", "layer_overhead", "padding")
HELP = [sys.executable, "-m", "r1_recipes.grpo", "--help"]


def help_seconds(times: int = 5) -> list[float]:
    """Of each of several calls, after one that nobody counts: the first one after an installation
    compiles.
    """
    found = []
    for _ in range(times + 1):
        started = time.perf_counter()
        subprocess.run(HELP, stdout=subprocess.DEVNULL, check=True)
        found.append(time.perf_counter() - started)
    return found[1:]


def bars(found: dict[str, Any]) -> list[tuple[str, str, float, bool]]:
    """Of what was measured: what is claimed, the bar in words, the figure, and whether that keeps
    it.
    """
    rows = []
    if "verification" in found:
        rows += _verification_bars(found["verification"])
    if "selection" in found:
        small, large = found["selection"]["small"], found["selection"]["large"]
        name = f"selecting from {large['traces']:,} traces, MB more than from {small['traces']:,}"
        rows.append((name, 100, large["peak_mb"] - small["peak_mb"], "<="))
    if "layer_overhead" in found:
        layer = found["layer_overhead"]
        rows += [
            ("step time, x bare TRL's", 1.02, statistics.median(layer["step_ratios"]), "<="),
            (
                "time to the first step, s more than bare TRL's",
                0.3,
                statistics.median(layer["first_step_differences"]),
                "<=",
            ),
            (
                "whether any step's losses differ from bare TRL's",
                0,
                int(not layer["logged_equal"]),
                "<=",
            ),
        ]
    for name, bar in (("equal", 1.0), ("gsm8k", 0.75), ("long-tailed", 0.5)):
        if "padding" in found:
            row = found["padding"]["rows"][name]
            rows += [
                (f"{name} lengths: training, x bare TRL's", bar, _median(row, "training"), "<="),
                (f"{name} lengths: largest gap of a gradient", 1e-6, row["largest_gap"], "<="),
            ]
    if "data_loading" in found:
        loaded = found["data_loading"]
        rows += [
            ("400,000 rows with max_prompt_tokens, s", 40, loaded["seconds"], "<="),
            ("the same, peak MB", 800, loaded["peak_mb"], "<="),
        ]
    rows.append(
        ("python -m r1_recipes.grpo --help, s", 1, statistics.median(found["help_seconds"]), "<=")
    )
    kept = {
        "<": lambda value, bar: value < bar,
        "<=": lambda value, bar: value <= bar,
        ">=": lambda value, bar: value >= bar,
    }
    return [
        (name, f"{sign} {bar:g}", float(value), kept[sign](value, bar))
        for name, bar, value, sign in rows
    ]


def _median(row: dict[str, Any], part: str) -> float:
    return statistics.median(row[f"{part}_ratios"])


def _verification_bars(judged: dict[str, Any]) -> list[tuple[str, float, float, str]]:
    from r1_recipes.verification import pool

    def ratios(mix: str, small: bool) -> list[float]:
        cells = [cell for cell in judged["throughput"][mix] if (cell["batch"] == 16) is small]
        return [
            cell["r1_recipes"]["completions_per_second"] / cell["trl"]["completions_per_second"]
            for cell in cells
        ]

    drawn = [mix for mix in judged["throughput"] if not mix.startswith("real")]
    maths = [mix for mix in drawn if mix.startswith("math")]
    hanging, hostile, flood = (
        judged["adversarial"]["r1_recipes"],
        judged["hostile"]["r1_recipes"],
        judged["flood"],
    )
    settled, deadline = judged["settled"], pool.TASK_SECONDS
    second = max(cell["second_reward"] for mix in maths for cell in judged["throughput"][mix])
    more = sum(flood["after_mb"].values()) - sum(flood["before_mb"].values())
    slower = (
        hanging.get("next_seconds", math.inf) / hanging["slowest_before_seconds"]
    )  # killed: it has no next one
    return [
        (
            "GSM8K-like, batches of 64 and 1,024, x TRL's accuracy_reward",
            10,
            min(ratios("gsm8k", False)),
            ">=",
        ),
        ("MATH-like, the same, x TRL's", 5, min(min(ratios(mix, False)) for mix in maths), ">="),
        (
            "MATH-like, batches of 16, x TRL's",
            4,
            min(min(ratios(mix, True)) for mix in maths),
            ">=",
        ),
        ("MATH-like: a second reward, share of the first's time", 0.05, second, "<"),
        (
            "verdicts settled without a parser that differ from math-verify's",
            0,
            settled["settled"] - settled["equal"],
            "<=",
        ),
        ("batch of 64 with 8 hanging answers, s", deadline + 1, hanging["seconds"], "<="),
        ("batch of 64 hostile texts, s", deadline + 1, hostile["seconds"], "<="),
        ("the batch after the hanging ones, x the slowest of ten before", 1, slower, "<="),
        (
            f"MB more after {flood['completions']:,} hostile completions, verdicts kept included",
            50,
            more,
            "<=",
        ),
        ("zombies after them", 0, flood["zombies"], "<="),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("outputs/bench.json"),
        help="JSON of all measurements (default outputs/bench.json)",
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="which of them (default: all)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=8,
        help="judging time of each cell, for the fastest judge (default 8)",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=60,
        help="a judge that takes longer over a bad batch is killed (default 60)",
    )
    parser.add_argument("--pairs", type=int, default=3, help="pairs of training runs (default 3)")
    parser.add_argument(
        "--steps", type=int, default=12, help="optimizer steps of each (default 12)"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="labelled rows to judge besides: JSON lines with gold, solution and is_correct",
    )
    options = parser.parse_args()
    if options.data and not options.data.is_file():
        parser.error(f"--data {options.data}: no such file")
    found: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "system": platform.platform(terse=True),
        },
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES}
        | {"python": platform.python_version()},
        "help_seconds": help_seconds(),
    }

    def keep(name: str, measured: Any, table: Callable[[Any], str]) -> None:
        found[name] = measured
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(found, indent=1), encoding="utf-8")
        sys.stdout.write(table(measured) + "\n\n")
        sys.stdout.flush()

    if "verification" in options.parts:
        measured = verification.run(options.seconds, options.patience, options.data)
        keep("verification", measured, verification.table)
    if "countdown" in options.parts:
        rate, mean = countdown_reward.measure(200_000, 300)
        keep(
            "countdown",
            {"completions_per_minute": rate, "mean_reward": mean},
            lambda found: (
                f"countdown: {found['completions_per_minute']:,.0f} completions/minute on one core"
            ),
        )
    if "selection" in options.parts:
        measured = selection.run(3_000, 60_000, 8_000)
        keep("selection", measured, selection.table)
    if "data_loading" in options.parts:
        measured = data_loading.run(layer_overhead.default_model())
        keep("data_loading", measured, data_loading.table)
    if "layer_overhead" in options.parts:
        measured = layer_overhead.run(layer_overhead.default_model(), options.pairs, options.steps)
        keep("layer_overhead", measured, layer_overhead.table)
    if "padding" in options.parts:
        measured = padding.run(layer_overhead.default_model(), options.pairs, 16)
        keep("padding", measured, padding.table)
    rows = bars(found)
    width = max(len(name) for name, *_ in rows)
    lines = [
        f"{name:<{width}}  {bar:>8}  {value:>9.3f}  {'kept' if kept else 'MISSED'}"
        for name, bar, value, kept in rows
    ]
    keep(
        "bars",
        [dict(zip(("name", "bar", "measured", "kept"), row, strict=True)) for row in rows],
        lambda found: "\n".join(lines),
    )
    sys.stdout.write(f"all of it: {options.output}\n")
    sys.exit(not all(kept for *_, kept in rows))


if __name__ == "__main__":
    main()
