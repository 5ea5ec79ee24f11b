"""SDPO beside GRPO on the sums of the demo: the model's own right answers as its teacher.

Run:  python benchmarks/sdpo.py [--seeds 3] [--problems 200] [--output outputs/sdpo]

Both runs of a seed start from one cold start, and take the same prompts, rewards (accuracy, and the
format at a weight of 0.2), batch, rate and steps: those of ``recipes/cpu/demo_2_grpo.yaml`` and
``recipes/cpu_sdpo.yaml``, all weights trained. What is done is not done again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from kept import by_problem, hold_settings, in_points, run_logged
from peers import (
    RECIPES,
    add_run_options,
    cold_start,
    held_settings,
    judged,
    run_keys,
    settings,
    share_cells,
    train,
    write_yaml,
)

from r1_recipes.metrics.intervals import paired_difference
from r1_recipes.metrics.scores import COMPARED
from r1_recipes.runs.run_dir import is_finished

SHAPE = "tags"
RUNS = ("cold start", "grpo", "sdpo")


def run(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Train and judge what has not been, and return each run's verdicts by seed."""
    scores: dict[str, list[dict[str, Any]]] = {name: [] for name in RUNS}
    for seed in range(1, options.seeds + 1):
        sys.stderr.write(f"seed {seed} of {options.seeds}\n")
        folders = {name: options.output / name / str(seed) for name in RUNS}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        cold = cold_start(folders["cold start"], SHAPE, seed, options.model)
        models = {"cold start": cold, **{name: folders[name] / "model" for name in RUNS[1:]}}
        if not is_finished(models["grpo"]):
            train("r1-recipes, tags", models["grpo"], cold, seed, options)
        if not is_finished(models["sdpo"]):
            keys = run_keys(cold, models["sdpo"], seed, options)
            keys = settings(RECIPES / "cpu_sdpo.yaml", SHAPE, **keys)
            path = write_yaml(folders["sdpo"] / "recipe.yaml", keys)
            run_logged(["-m", "r1_recipes.grpo", path], folders["sdpo"])
        for name, model in models.items():
            scores[name] += judged([model], SHAPE, folders[name], options.problems, 1, seed)
    return scores


def table(scores: dict[str, list[dict[str, Any]]]) -> str:
    """Accuracy of each run, by seed, and what it is over the cold start and over GRPO."""
    lines = [
        "| run | accuracy | over seeds | by seed | over the cold start | over grpo |",
        "|---" * 6 + "|",
    ]
    for kind, title in COMPARED.items():
        for name, found in scores.items():
            over = [
                in_points(paired_difference(by_problem(scores[of], kind), by_problem(found, kind)))
                for of in RUNS[:2]
            ]
            cells = [name, title, *share_cells(found, kind), *over]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", "95 % intervals, over problems and not over seeds."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add_run_options(parser)
    parser.add_argument("--output", type=Path, default=Path("outputs/sdpo"))
    options = parser.parse_args()
    hold_settings(parser, options.output, held_settings(options))
    sys.stdout.write(table(run(options)) + "\n")


if __name__ == "__main__":
    main()
