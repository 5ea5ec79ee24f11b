"""The CPU demo's GRPO stage by this layer, by open-r1's rewards and by TRL's own command: same cold
starts, seeds, prompts and steps.

Run:  python benchmarks/peers.py [--seeds 3] [--problems 200] [--verdicts FILE] [--output
outputs/peers]

Two response formats, each with a cold start of its own a seed: the answer in ``<answer>`` tags, as
DeepSeek-R1-Zero has it, and in a box, where TRL's ``accuracy_reward`` looks for it: of a plain
number in tags it reads nothing. `trl grpo` gets the recipe's own settings, less what TRL does not
know, rows that this layer mapped for it, and its own rewards for accuracy and format with the
recipe's weights. In GRPO all weights are trained, since TRL's command cannot freeze some, at a
lower rate than the recipe's for a third. Every model answers the same held-out problems, and this
layer's verdicts (the task's own scorer, by the mapper) judge them: strictly (right, and in the
format) and leniently (right wherever the answer stands). A run that is done is not done again, and
one that was interrupted goes on where it can; ``--verdicts FILE`` keeps what came out of each for
other machines, which run only the seeds that the file has not whole. The tables go to the standard
output and to OUTPUT/results.md, the curves of the last seed that was trained here to
OUTPUT/report.html.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from kept import Verdicts, by_problem, hold_settings, in_points, is_judged, run_logged

from r1_recipes.common.files import write_whole
from r1_recipes.data.load import load_dataset
from r1_recipes.metrics.intervals import mean_interval, paired_difference
from r1_recipes.metrics.scores import COMPARED
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe import load_recipe
from r1_recipes.runs.run_dir import is_finished

RECIPES = Path(__file__).parents[1] / "recipes"
COLD_START, GRPO = RECIPES / "cpu/demo_1_sft.yaml", RECIPES / "cpu/demo_2_grpo.yaml"
FORMATS = {
    "tags": {"response_format": "think_answer", "system_prompt": "Use <think> then <answer>."},
    "box": {"response_format": "think_boxed", "system_prompt": "Use <think> then \\boxed{}."},
}
# Sums of other lengths, and so answers of other lengths, for learning.py.
MIXED_TASK = {"min_terms": 2, "max_terms": 4}
MIXED_COMPLETION = 72
THEIRS = ["accuracy_reward", "think_format_reward"]  # of TRL's command
# The format of each run, and what it changes. open-r1's rewards are those of its demo's recipe by
# their names here: its verdicts are ours.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "r1-recipes, tags": ("tags", {}),
    "open-r1's rewards, our verdicts, tags": (
        "tags",
        {"reward_funcs": ["accuracy", "format", "tag_count"], "reward_weights": [1.0, 1.0, 1.0]},
    ),
    "trl grpo, tags": ("tags", {"reward_funcs": THEIRS}),
    "r1-recipes, box": ("box", {}),
    "trl grpo, box": ("box", {"reward_funcs": THEIRS}),
}
# Keys of a recipe that are this layer's; the rest is TRL's.
OWN = ("task_config", "mapper", "response_format", "system_prompt", "unfrozen_parameters")


def settings(recipe: Path, shape: str, **changes: Any) -> dict[str, Any]:
    """A recipe's keys with those of a format. "mixed" before it means sums of mixed lengths."""
    keys = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    if shape.startswith("mixed "):
        keys["task_config"] |= MIXED_TASK
        if recipe == GRPO:
            keys["max_completion_length"] = MIXED_COMPLETION
    return {**keys, **FORMATS[shape.removeprefix("mixed ")], **changes}


def write_yaml(path: Path, keys: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump(keys, sort_keys=False), encoding="utf-8")
    return str(path)


def write_rows(recipe: Path, folder: Path) -> None:
    """A recipe's training rows in a file, as TRL takes them: a prompt of messages and a solution."""
    script = load_recipe([str(recipe)], "grpo").script
    fmt = get_response_format(script.response_format, system_prompt=script.system_prompt)
    rows, _ = load_dataset(script, fmt, "grpo")
    folder.mkdir(exist_ok=True)
    lines = ""
    for row in rows:
        lines += json.dumps({key: row[key] for key in ("prompt", "solution")}) + "\n"
    (folder / "train.jsonl").write_text(lines, encoding="utf-8")


def run_keys(cold: Path, out: Path, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """What a run from a cold start has besides its recipe."""
    keys = {
        "model_name_or_path": str(cold),
        "unfrozen_parameters": None,
        "learning_rate": options.learning_rate,
        "output_dir": str(out),
        "seed": seed,
    }
    return keys | ({"max_steps": options.steps} if options.steps else {})


def mark_run(out: Path, history: str, recipe: Path | str) -> None:
    """Leave in a folder that TRL trained what this layer reads of a finished run."""
    write_whole(out / "metrics.jsonl", history)
    run = {"recipe": str(recipe), "method": "grpo", "finished": True}
    write_whole(out / "run.json", json.dumps(run))


def as_trl_takes(whole: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A recipe's keys less those of this layer, on its rows, which are mapped into ``folder``."""
    write_yaml(folder / "rows.yaml", whole)
    write_rows(folder / "rows.yaml", folder / "rows")
    theirs = {key: value for key, value in whole.items() if key not in OWN and value is not None}
    return theirs | {"dataset_name": str(folder / "rows")}


def cold_start(folder: Path, shape: str, seed: int, raw: str | None) -> Path:
    """The cold start of a format and a seed in ``folder``, trained unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    cold = folder / "model"
    if not is_finished(cold):
        keys = {"output_dir": str(cold), "seed": seed}
        # The demo's cold start trains the upper half; a model of another size has other layers.
        keys |= {"model_name_or_path": raw, "unfrozen_parameters": None} if raw else {}
        recipe = write_yaml(folder / "recipe.yaml", settings(COLD_START, shape, **keys))
        run_logged(["-m", "r1_recipes.sft", recipe], folder)
    return cold


def train(name: str, out: Path, cold: Path, seed: int, options: argparse.Namespace) -> None:
    """Train one run, and leave its curve and its model in ``out``, its settings beside that."""
    (shape, own), folder = RUNS[name], out.parent
    keys = run_keys(cold, out, seed, options)
    if own.get("reward_funcs") != THEIRS:
        run_logged(
            [
                "-m",
                "r1_recipes.grpo",
                write_yaml(folder / "recipe.yaml", settings(GRPO, shape, **keys, **own)),
            ],
            folder,
        )
        return
    theirs = as_trl_takes(settings(GRPO, shape, **keys), folder) | own
    theirs |= {"save_only_model": True, "save_steps": theirs["max_steps"]}
    run_logged(
        ["-m", "trl.scripts.grpo", "--config", write_yaml(folder / "recipe.yaml", theirs)], folder
    )
    (state,) = out.glob("checkpoint-*/trainer_state.json")
    # As the report page reads a run; one name for what both call the accuracy of a completion draws
    # both into one chart.
    history = json.loads(state.read_text(encoding="utf-8"))["log_history"]
    lines = "".join(
        json.dumps(entry).replace('"rewards/accuracy_reward/', '"rewards/accuracy/') + "\n"
        for entry in history
    )
    write_yaml(out / "recipe.yaml", theirs)
    mark_run(out, lines, folder / "recipe.yaml")


def judged(
    models: Sequence[Path], shape: str, folder: Path, problems: int, samples: int, seed: int
) -> list[dict[str, Any]]:
    """What `evaluate` finds of each model: the verdicts on each held-out problem, and more."""
    results = folder / "results.json"
    if not is_judged(results, *models):
        recipe = write_yaml(folder / "judge.yaml", settings(GRPO, shape))
        words = [word for model in models for word in ("--model", str(model))]
        words += ["--num_samples", str(samples), "--max_eval_samples", str(problems)]
        words += ["--seed", str(seed), "--output", str(folder)]
        run_logged(["-m", "r1_recipes.evaluate", recipe, *words], folder)
    return json.loads(results.read_text(encoding="utf-8"))


def run(options: argparse.Namespace) -> str:
    """Train and judge what has not been, seed by seed, and return the tables."""
    scores: dict[str, list[dict[str, Any]]] = {}
    started = time.monotonic()

    def folder_of(name: str, seed: int) -> Path:
        folder = options.output / name / str(seed)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    pages: list[str] = []
    for seed in range(1, options.seeds + 1):
        shapes = {
            **{f"cold start, {shape}": shape for shape in FORMATS},
            **{name: RUNS[name][0] for name in RUNS},
        }
        # A seed that the file has in part goes on from the models on the disk: a cold start trained
        # anew is not the one that was judged.
        whole = all(options.kept.get(name, seed) for name in shapes)
        for name, shape in shapes.items():
            one = options.kept.get(name, seed) if whole else None
            if not one:
                sys.stderr.write(
                    f"{name}, seed {seed}; {(time.monotonic() - started) / 60:.0f} min so far\n"
                )
                folder = folder_of(name, seed)
                start = folder_of(f"cold start, {shape}", seed)
                model = cold_start(start, shape, seed, options.model)
                if name in RUNS:
                    cold, model = model, folder / name  # the page calls it by its folder
                    if not is_finished(model):
                        train(name, model, cold, seed, options)
                (one,) = judged([model], shape, folder, options.problems, 1, seed)
                one |= _summary(folder, model)
                options.kept.keep(name, seed, one, "curve", "keys")
            scores.setdefault(name, []).append(one)
        made = (options.output / name / str(seed) / name for name in RUNS)
        pages = [str(model) for model in made if is_finished(model)] or pages
    text = "\n\n".join(
        [accuracy_table(scores), peers_table(scores), curve_table(scores), size_table(scores)]
    )
    if pages:
        page = options.output / "report.html"
        run_logged(["-m", "r1_recipes.report", *pages, "--output", str(page)], options.output)
        text += f"\n\npage: {page}"
    return text


def _summary(folder: Path, model: Path) -> dict[str, Any]:
    """What a run leaves besides its model: its own rewards for accuracy, step by step, and how many
    keys it was given.
    """
    history = [
        json.loads(line)
        for line in (model / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    keys = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))
    own = {key for key, value in keys.items() if value is not None} - {
        "save_only_model"
    }  # which only this benchmark asks for
    return {
        "curve": [
            entry["rewards/accuracy/mean"] for entry in history if "rewards/accuracy/mean" in entry
        ],
        "keys": len(own),
    }


def share_cells(found: list[dict[str, Any]], kind: str) -> list[str]:
    """The share of right answers over all seeds with its interval, and by seed."""
    mean, low, high = (100 * bound for bound in mean_interval(by_problem(found, kind)))
    seeds = ", ".join(f"{100 * statistics.fmean(one[kind]):.1f}" for one in found)
    return [f"{mean:.1f} % ({low:.1f} to {high:.1f})", seeds]


def accuracy_table(scores: dict[str, list[dict[str, Any]]]) -> str:
    """A row a run: each problem is the mean of its seeds, beside the cold start of the run's
    format.
    """
    lines = [
        "| run | "
        + " | ".join(f"{kind} | by seed | over its cold start" for kind in COMPARED.values())
        + " |"
    ]
    lines.append("|---" * (1 + 3 * len(COMPARED)) + "|")
    for name, found in scores.items():
        cells = [name]
        for kind in COMPARED:
            cells += share_cells(found, kind)
            start = f"cold start, {RUNS[name][0]}" if name in RUNS else name
            over = paired_difference(by_problem(scores[start], kind), by_problem(found, kind))
            cells.append(in_points(over) if name in RUNS else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", "95 % intervals, over problems and not over seeds."])


def peers_table(scores: dict[str, list[dict[str, Any]]]) -> str:
    """This layer over each other run of the same format, by problem: over all seeds, and
    by seed.
    """
    lines = [
        "| r1-recipes over | "
        + " | ".join(f"{kind} | by seed" for kind in COMPARED.values())
        + " |",
        "|---" * (1 + 2 * len(COMPARED)) + "|",
    ]
    for name, found in scores.items():
        if name not in RUNS or name == (ours := f"r1-recipes, {RUNS[name][0]}"):
            continue
        cells = [name]
        for kind in COMPARED:
            cells.append(
                in_points(
                    paired_difference(by_problem(found, kind), by_problem(scores[ours], kind))
                )
            )
            means = (
                [100 * statistics.fmean(one[kind]) for one in scores[run]] for run in (ours, name)
            )
            cells.append(
                ", ".join(f"{mine - other:+z.1f}" for mine, other in zip(*means, strict=True))
            )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def curve_table(scores: dict[str, list[dict[str, Any]]]) -> str:
    """What each run's own reward for accuracy paid on the completions of a step, over seeds."""
    curves = {name: [one["curve"] for one in scores[name]] for name in RUNS}
    steps = max(len(one) for found in curves.values() for one in found)
    lines = [
        "| own accuracy reward in step | "
        + " | ".join(str(step) for step in range(1, steps + 1))
        + " |",
        "|---" * (steps + 1) + "|",
    ]
    for name, found in curves.items():
        lines.append(
            f"| {name} | "
            + " | ".join(f"{statistics.fmean(values):.2f}" for values in zip(*found, strict=True))
            + " |"
        )
    return "\n".join(lines)


def size_table(scores: dict[str, list[dict[str, Any]]]) -> str:
    """Keys that each way was given, and what had to be made for it besides."""
    lines = ["| run | keys of YAML | besides |", "|---|---|---|"]
    for name, (_, own) in RUNS.items():
        besides = (
            "rows with prompts, mapped beforehand"
            if own.get("reward_funcs") == THEIRS
            else "nothing"
        )
        lines.append(f"| {name} | {scores[name][0]['keys']} | {besides} |")
    return "\n".join(lines)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--problems", type=int, default=200, help="held-out problems")
    parser.add_argument("--steps", type=int, help="in place of the recipe's")
    # The recipe's 1e-4 is for a third of the weights: with all of them it took from what the cold
    # start had taught (docs/results/peers.md).
    parser.add_argument(
        "--learning_rate",
        type=float,
        default=3e-5,
        help="of GRPO in every run (default %(default)s)",
    )
    parser.add_argument("--model", help="in place of the cold start's raw model")


def held_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What runs of one folder, or one file of verdicts, must share."""
    apart = ("seeds", "output", "verdicts")
    held = {key: value for key, value in vars(options).items() if key not in apart}
    held["recipes"] = [
        yaml.safe_load(recipe.read_text(encoding="utf-8")) for recipe in (COLD_START, GRPO)
    ]
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add_run_options(parser)
    parser.add_argument(
        "--verdicts",
        type=Path,
        metavar="FILE",
        help="verdicts of earlier runs with these settings; new ones are added",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("outputs/peers"),
        help="everything is kept there, and not done again",
    )
    options = parser.parse_args()
    held = held_settings(options)
    options.kept = Verdicts(parser, options.verdicts, held, tuple(COMPARED))
    hold_settings(parser, options.output, held)
    text = run(options)
    (options.output / "results.md").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
