"""Every loss of TRL on the CPU demo's GRPO stage, with the same prompts, completions and updates:
held-out accuracy with intervals.

Run:  python benchmarks/losses.py [--model outputs/demo/cold_start] [--seeds 3] [--steps 10]
[--updates 4] [--key value …]

Each batch of 40 completions makes ``--updates`` updates: in the first of them the policy is still
the one that sampled, its ratio is 1, and losses differ in nothing but how they average. With
``--updates 1`` that is all there is to compare. A run that has been judged is not run again, and
one that was interrupted goes on from its last checkpoint: call it again with the same words. Other
words are keys of the recipe, for every run. The table goes to the standard output and to
OUTPUT/results.md; ``--verdicts FILE`` keeps the verdict on each problem for other machines, which
run only what the file has not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from kept import Verdicts, by_problem, hold_settings, in_points, is_judged, run_logged

from r1_recipes.metrics.intervals import mean_interval, paired_difference

RECIPE = str(Path(__file__).parents[1] / "recipes" / "cpu/demo_2_grpo.yaml")
GENERATED = 40  # completions a step, as in the recipe
# What each paper or its entry in TRL's paper index sets; the recipe has the rest. docs/losses.md
# has the sources.
LOSSES: dict[str, dict[str, Any]] = {
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "grpo": {"loss_type": "grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "gspo": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
    },
    # ScaleRL (appendix A.18.3) found the paper's clip too narrow and this one best.
    "gspo_wide": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon": 3e-3,
        "epsilon_high": 5e-3,
    },
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "sapo": {"loss_type": "sapo"},
    "luspo": {
        "loss_type": "luspo",
        "importance_sampling_level": "sequence",
        "epsilon": 2e-3,
        "epsilon_high": 2.5e-3,
    },
    "vespo": {"loss_type": "vespo"},
}
KINDS = ("greedy", "sampled")
OWN = (
    "seed",
    "max_steps",
    "warmup_steps",
    "save_steps",
    "per_device_train_batch_size",
    "generation_batch_size",
    "output_dir",
    "loss_type",
)


def command(module: str, *words: Any, **keys: Any) -> list[str]:
    return [
        "-m",
        f"r1_recipes.{module}",
        RECIPE,
        *map(str, words),
        *(f"--{key}={value}" for key, value in keys.items()),
    ]


def judged(
    name: str, options: argparse.Namespace, seed: int, train: list[str] | None = None
) -> dict[str, Any]:
    """The scores of a run's model, which is trained first if need be; kept in
    ``OUTPUT/NAME/SEED/results.json``.
    """
    if kept := options.kept.get(name, seed):
        return kept
    folder = options.output / name / str(seed)
    model, results = folder / "model" if train else options.model, folder / "results.json"
    if not is_judged(results, Path(model)):
        folder.mkdir(parents=True, exist_ok=True)
        rows = {"max_eval_samples": options.problems} if options.problems else {}
        judge = command(
            "evaluate",
            "--model",
            model,
            "--num_samples",
            options.num_samples,
            "--seed",
            seed,
            "--output",
            folder,
            **rows,
        )
        judge += options.keys
        for words in [train, judge] if train else [judge]:
            run_logged(words, folder)
    scores = json.loads(results.read_text(encoding="utf-8"))[0]
    options.kept.keep(name, seed, scores)
    return scores


def run(options: argparse.Namespace) -> str:
    """Train and judge what has not been, and return the table."""
    seeds = range(1, options.seeds + 1)

    def done_before(name: str, seed: int) -> bool:
        return bool(options.kept.get(name, seed)) or is_judged(
            options.output / name / str(seed) / "results.json",
            options.output / name / str(seed) / "model",
        )

    left = sum(not done_before(name, seed) for name in options.losses for seed in seeds)
    started, done = time.monotonic(), 0
    scores: dict[str, list[dict[str, Any]]] = {
        "cold_start": [judged("cold_start", options, seed) for seed in seeds]
    }
    for seed in (
        seeds
    ):  # all losses of a seed first: an interrupted benchmark has a whole table of fewer seeds
        for name in options.losses:
            if not done_before(name, seed):
                spent = time.monotonic() - started
                rest = f", about {spent / done * (left - done) / 60:.0f} min left" if done else ""
                sys.stderr.write(
                    f"[{done + 1}/{left}] {name}, seed {seed}; {spent / 60:.0f} min so far{rest}\n"
                )
                done += 1
            train = command(
                "grpo",
                model_name_or_path=options.model,
                output_dir=options.output / name / str(seed) / "model",
                seed=seed,
                max_steps=options.steps * options.updates,
                warmup_steps=options.updates,
                save_steps=options.updates,
                per_device_train_batch_size=GENERATED // options.updates,
                generation_batch_size=GENERATED,
                **LOSSES[name],
            )
            train += options.keys
            scores.setdefault(name, []).append(judged(name, options, seed, train))
    return table(scores, options)


def table(scores: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> str:
    """One row a loss. Intervals are over problems, each the mean of its seeds; the seeds' own
    figures stand beside them.
    """
    first = options.losses[0]
    lines = [
        "| loss | keys | "
        + " | ".join(f"{kind} | by seed | over {first}" for kind in KINDS)
        + " |",
        "|---" * (2 + 3 * len(KINDS)) + "|",
    ]

    for name, found in scores.items():
        keys = ", ".join(f"`{key}: {value}`" for key, value in LOSSES.get(name, {}).items())
        cells = ["cold start" if name == "cold_start" else name, keys]
        for kind in KINDS:
            if not found[0][kind]:  # --num_samples 0
                cells += [""] * 3
                continue
            mean, low, high = mean_interval(by_problem(found, kind))
            over = paired_difference(by_problem(scores[first], kind), by_problem(found, kind))
            cells.append(f"{100 * mean:.1f} % ({100 * low:.1f} to {100 * high:.1f})")
            cells.append(", ".join(f"{100 * statistics.fmean(one[kind]):.1f}" for one in found))
            cells.append("" if name == first else in_points(over))
        lines.append("| " + " | ".join(cells) + " |")
    what = (
        f"{options.seeds} seeds, {options.steps} steps of {GENERATED} completions, "
        f"{options.updates} updates each; "
    )
    problems = len(scores[first][0]["greedy"])
    return "\n".join(
        [
            *lines,
            "",
            f"{what}{problems} held-out problems, {options.num_samples} sampled answers "
            f"each; 95 % intervals over problems.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "--model",
        default="outputs/demo/cold_start",
        help="the checkpoint that every run starts from (default: that of make demo)",
    )
    parser.add_argument(
        "--losses",
        nargs="+",
        choices=LOSSES,
        default=list(LOSSES),
        metavar="NAME",
        help=f"{', '.join(LOSSES)} (default: all)",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=10, help=f"batches of {GENERATED} completions a run"
    )
    parser.add_argument(
        "--updates",
        type=int,
        default=4,
        choices=[1, 2, 4, 5, 8],
        help="that each batch is cut into",
    )
    parser.add_argument("--problems", type=int, help="held-out problems (default: all 400)")
    parser.add_argument("--num_samples", type=int, default=4, help="sampled answers a problem")
    parser.add_argument(
        "--verdicts",
        type=Path,
        metavar="FILE",
        help="verdicts of earlier runs with these settings; new ones are added",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("outputs/losses"),
        help="runs, logs and results.md; what is there is not done again",
    )
    options, options.keys = parser.parse_known_args()
    if own := [word for word in options.keys if word.split("=")[0].lstrip("-") in OWN]:
        parser.error(
            f"{', '.join(own)}: set by this benchmark itself; see --help for --seeds, "
            f"--steps, --updates, --model and --output"
        )
    may_change = ("losses", "seeds", "output", "verdicts")
    settings = {key: value for key, value in vars(options).items() if key not in may_change}
    settings["recipe"] = yaml.safe_load(Path(RECIPE).read_text(encoding="utf-8"))
    options.kept = Verdicts(parser, options.verdicts, settings, KINDS)
    hold_settings(parser, options.output, settings)
    text = run(options)
    (options.output / "results.md").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
