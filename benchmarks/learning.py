"""How long until half of the held-out problems are right: this layer, with and without its two keys
that save time, against ``trl grpo``.

Run:  python benchmarks/learning.py [--seeds 3] [--problems 200] [--steps 10] [--mixed]
[--output outputs/learning]

Every run of a seed starts from one cold start and takes the same prompts, settings and rewards
(accuracy, and the format at a weight of 0.2), with answers in a box, where the rewards of TRL and
of this layer agree (docs/results/peers.md). The runs of a seed take turns, and the next seed begins
with another run. Of each second step a checkpoint is kept. Its time is counted from the start of
the command, so loading the model and saving are in it; a run that was stopped begins anew. Then
each checkpoint answers the same held-out problems, greedily. ``--mixed`` takes sums of two to four
terms instead of three, so the answers of a batch differ more in length. Between two checkpoints the
share of right answers is taken as a straight line; intervals are of 2,000 samples of the problems.
What is done is not done again. The tables go to the standard output and to OUTPUT/results.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from kept import hold_settings, run_logged
from peers import (
    GRPO,
    THEIRS,
    add_run_options,
    as_trl_takes,
    cold_start,
    held_settings,
    judged,
    run_keys,
    settings,
    write_yaml,
)

from r1_recipes.common.files import write_whole

TRL = "trl grpo"
# What each run changes. A batch of one part has nothing to trim, so all have five parts of 8.
RUNS: dict[str, dict[str, Any]] = {
    TRL: {"reward_funcs": THEIRS},
    "r1-recipes, neither key": {"trim_padding": False},
    "r1-recipes, trim_padding": {},
    "r1-recipes, trim_padding and dynamic_sampling": {"dynamic_sampling": {"max_rounds": 3}},
}
COMMON = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 5,
    "save_steps": 2,
    "save_total_limit": None,
    "save_only_model": True,
}
HALF = 0.5
SAMPLES = 2_000


def checkpoints(out: Path) -> dict[int, Path]:
    """A run's checkpoints by step."""
    found = {int(path.name.rpartition("-")[2]): path for path in out.glob("checkpoint-*")}
    return dict(sorted(found.items()))


def train(name: str, folder: Path, cold: Path, seed: int, options: argparse.Namespace) -> None:
    """Train one run, and keep the seconds from its start to each checkpoint, by step."""
    out = folder / "model"
    shutil.rmtree(out, ignore_errors=True)  # of a run that was stopped: its times mean nothing
    whole = settings(GRPO, options.shape, **COMMON, **run_keys(cold, out, seed, options))
    command = ["r1_recipes.grpo"]
    if name == TRL:
        whole, command = as_trl_takes(whole, folder), ["trl.scripts.grpo", "--config"]
    recipe = write_yaml(folder / "recipe.yaml", whole | RUNS[name])
    started = time.time()
    run_logged(["-m", *command, recipe], folder)
    times = {
        step: (path / "trainer_state.json").stat().st_mtime - started
        for step, path in checkpoints(out).items()
    }
    write_whole(folder / "times.json", json.dumps(times))


def seconds_until(share: float, times: Sequence[float], shares: Sequence[float]) -> float:
    """When the line through these points first reaches a share; infinite if it never does."""
    points = list(zip(times, shares, strict=True))
    if shares[0] >= share:
        return times[0]
    for (before, low), (after, high) in itertools.pairwise(points):
        if high >= share:  # and low is below it
            return before + (share - low) / (high - low) * (after - before)
    return math.inf


def until_half(curve: dict[str, Any], problems: Sequence[int]) -> float:
    """:func:`seconds_until` half of these problems, given by their indices, are right."""
    shares = [
        statistics.fmean(verdicts[problem] for problem in problems)
        for verdicts in curve["verdicts"]
    ]
    return seconds_until(HALF, curve["seconds"], shares)


def ratio_interval(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[float, float, float]:
    """Our time over theirs, and its 95 % interval over samples of the problems."""
    count, rng = len(ours["verdicts"][0]), Random(1)
    draws = [range(count), *(rng.choices(range(count), k=count) for _ in range(SAMPLES))]
    times = [(until_half(ours, draw), until_half(theirs, draw)) for draw in draws]
    found = []
    for mine, other in times:
        if mine == other:  # the cold start is there already, or neither arrives
            found.append(1.0 if mine == 0 else None)
        else:
            found.append(mine / other)
    # Where neither arrives nothing can be said, and it widens the interval both ways.
    known = sorted(value for value in found[1:] if value is not None)
    lost = len(found) - 1 - len(known)
    low, high = [0.0] * lost + known, known + [math.inf] * lost
    edge = round(0.025 * SAMPLES)
    first = found[0] if found[0] is not None else math.nan
    return first, low[edge], high[-1 - edge]


def run(options: argparse.Namespace) -> list[dict[str, dict[str, Any]]]:
    """Train and judge what has not been. Return a curve by seed and run."""
    began = time.monotonic()
    curves: list[dict[str, dict[str, Any]]] = []
    for seed in range(1, options.seeds + 1):
        cold = cold_start(
            options.output / "cold start" / str(seed), options.shape, seed, options.model
        )
        names = list(RUNS)
        for name in names[seed % len(names) :] + names[: seed % len(names)]:
            folder = options.output / name / str(seed)
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "times.json").exists():
                minutes = (time.monotonic() - began) / 60
                sys.stderr.write(f"seed {seed}, {name}; {minutes:.0f} min so far\n")
                train(name, folder, cold, seed, options)
        curves.append({name: {} for name in RUNS})

    def verdicts(models: Sequence[Path], folder: Path) -> list[list[float]]:
        return [
            one["greedy"] for one in judged(models, options.shape, folder, options.problems, 0, 0)
        ]

    # Judging is not timed, so it comes last.
    for seed, found in enumerate(curves, 1):
        cold_folder = options.output / "cold start" / str(seed)
        (before,) = verdicts([cold_folder / "model"], cold_folder)
        for name in found:
            folder = options.output / name / str(seed)
            times = json.loads((folder / "times.json").read_text(encoding="utf-8"))
            models = list(checkpoints(folder / "model").values())
            found[name] = {
                "seconds": [0.0, *times.values()],
                "verdicts": [before, *verdicts(models, folder)],
            }
    return curves


def table(curves: list[dict[str, dict[str, Any]]]) -> str:
    """Time until half are right, and its ratio to TRL's, by seed; then each curve."""
    lines = [
        "| run | seconds until 50 % are right, by seed | over trl grpo's, by seed | seconds of all "
        "steps, by seed | right at the end, %, by seed |",
        "|---|---|---|---|---|",
    ]
    for name in RUNS:
        ends, ratios = [], []
        for found in curves:
            end = until_half(found[name], range(len(found[name]["verdicts"][0])))
            ends.append(f"{end:.0f}" if end < math.inf else "not reached")
            if name != TRL:
                ratio, low, high = ratio_interval(found[name], found[TRL])
                ratios.append(f"{ratio:.2f} ({low:.2f} to {high:.2f})")
        cells = [
            ", ".join(ends),
            ", ".join(ratios),
            ", ".join(f"{found[name]['seconds'][-1]:.0f}" for found in curves),
            ", ".join(
                f"{100 * statistics.fmean(found[name]['verdicts'][-1]):.1f}" for found in curves
            ),
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| run | seed | seconds: right, % |", "|---|---|---|"]
    for seed, found in enumerate(curves, 1):
        for name, curve in found.items():
            points = zip(curve["seconds"], curve["verdicts"], strict=True)
            cell = ", ".join(
                f"{at:.0f}: {100 * statistics.fmean(right):.1f}" for at, right in points
            )
            lines.append(f"| {name} | {seed} | {cell} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add_run_options(parser)
    parser.add_argument("--output", type=Path, default=Path("outputs/learning"))
    parser.add_argument(
        "--mixed",
        action="store_const",
        dest="shape",
        const="mixed box",
        default="box",
        help="sums of two to four terms",
    )
    options = parser.parse_args()
    hold_settings(parser, options.output, held_settings(options))
    curves = run(options)
    text = table(curves)
    write_whole(options.output / "curves.json", json.dumps(curves))
    write_whole(options.output / "results.md", text + "\n")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
