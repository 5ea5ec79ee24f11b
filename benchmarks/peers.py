"""The CPU demo's GRPO stage by this layer, by open-r1's rewards and by TRL's own command: same cold starts, seeds, prompts and budget.

Run:  python benchmarks/peers.py [--seeds 3] [--problems 200] [--output outputs/peers]

Two response formats, each with a cold start of its own a seed: the answer in ``<answer>`` tags, as DeepSeek-R1-Zero has it, and in a box,
where TRL's ``accuracy_reward`` looks for it. Each run gets a file of settings; those of `trl grpo` are the recipe's own, less what TRL does
not know, and rows that this layer mapped for it. All weights are trained, since TRL's command cannot freeze some. Every model answers the
same held-out problems, and one judge reads them. What is done is not done again. The table goes to the standard output and to
OUTPUT/results.md, the curves of all runs of the first seed to OUTPUT/report.html.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from r1_recipes.data.load import load_dataset
from r1_recipes.metrics.scores import mean_interval, paired_difference
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe import load_recipe

RECIPES = Path(__file__).parents[1] / "recipes"
COLD_START, GRPO = RECIPES / "cpu_cold_start.yaml", RECIPES / "cpu_grpo.yaml"
FORMATS = {
    "tags": {"response_format": "think_answer", "system_prompt": "Use <think> then <answer>."},
    "box": {"response_format": "think_boxed", "system_prompt": "Use <think> then \\boxed{}."},
}
# Whose rewards, in which format. open-r1's are those of its demo's recipe, registered here under the same names; trl: TRL's command.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "r1-recipes, tags": ("tags", {}),
    "open-r1's rewards, tags": ("tags", {"reward_funcs": ["accuracy", "format", "tag_count"], "reward_weights": [1.0, 1.0, 1.0]}),
    "trl grpo, tags": ("tags", {"trl": ["accuracy_reward"]}),
    "r1-recipes, box": ("box", {}),
    "trl grpo, box": ("box", {"trl": ["accuracy_reward"]}),
}
# Keys of a recipe that are this layer's; the rest is TRL's.
OWN = ("task_config", "mapper", "response_format", "system_prompt", "unfrozen_parameters", "reward_weights")


def settings(recipe: Path, shape: str, **changes: Any) -> dict[str, Any]:
    """A recipe's keys with those of a format; every weight trains."""
    return {**yaml.safe_load(recipe.read_text(encoding="utf-8")), "unfrozen_parameters": None, **FORMATS[shape], **changes}


def write_yaml(path: Path, keys: dict[str, Any]) -> None:
    """One line a key."""
    path.write_text(yaml.safe_dump(keys, sort_keys=False, default_flow_style=None, width=1000), encoding="utf-8")


def run_logged(command: list[str], folder: Path) -> None:
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        if status := subprocess.run([sys.executable, *command], stdout=log, stderr=log).returncode:
            raise SystemExit(f"{' '.join(command[:3])} ended with status {status}: see {folder / 'log.txt'}")


def write_rows(recipe: Path, folder: Path) -> None:
    """The recipe's training rows as `trl grpo` takes them: a prompt of messages and a solution."""
    script = load_recipe([str(recipe)], "grpo").script
    fmt = get_response_format(script.response_format, system_prompt=script.system_prompt)
    rows, _ = load_dataset(script, fmt, "grpo")
    folder.mkdir(exist_ok=True)
    lines = (json.dumps({"prompt": row["prompt"], "solution": row["solution"]}) + "\n" for row in rows)
    (folder / "train.jsonl").write_text("".join(lines), encoding="utf-8")


def train(name: str, folder: Path, model: Path, seed: int, changes: dict[str, Any]) -> Path:
    """Train one run, and leave its settings, its curve and its model in ``folder``; return where the model is."""
    shape, own = RUNS[name]
    out = folder / "model"
    keys = {"model_name_or_path": str(model), "output_dir": str(out), "seed": seed, **changes}
    recipe = folder / "recipe.yaml"
    write_yaml(recipe, settings(GRPO, shape, **keys, **own))
    if "trl" not in own:
        run_logged(["-m", "r1_recipes.grpo", str(recipe)], folder)
        return out
    rewards = own["trl"]
    write_yaml(recipe, settings(GRPO, shape, **keys))
    write_rows(recipe, folder / "rows")
    theirs = {key: value for key, value in settings(GRPO, shape, **keys).items() if key not in OWN}
    theirs |= {"dataset_name": str(folder / "rows"), "reward_funcs": rewards, "save_only_model": True, "save_steps": theirs["max_steps"]}
    write_yaml(folder / "trl.yaml", theirs)
    run_logged(["-m", "trl.scripts.grpo", "--config", str(folder / "trl.yaml")], folder)
    (state,) = out.glob("checkpoint-*/trainer_state.json")
    # TRL's log as the report page reads one.
    history = json.loads(state.read_text(encoding="utf-8"))["log_history"]
    (out / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in history), encoding="utf-8")
    return out


def judged(models: list[Path], shape: str, folder: Path, options: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    results = folder / "results.json"
    if not results.exists():
        recipe = folder / "judge.yaml"
        write_yaml(recipe, settings(GRPO, shape))
        words = [word for model in models for word in ("--model", str(model))]
        words += ["--num_samples", "1", "--max_eval_samples", str(options.problems), "--seed", str(seed), "--output", str(folder)]
        run_logged(["-m", "r1_recipes.evaluate", str(recipe), *words], folder)
    return json.loads(results.read_text(encoding="utf-8"))


def run(options: argparse.Namespace, changes: dict[str, Any]) -> str:
    """Train and judge what has not been, seed by seed, and return the tables."""
    scores: dict[str, list[dict[str, Any]]] = {}
    curves: dict[str, list[list[float]]] = {}
    started = time.monotonic()
    for seed in range(1, options.seeds + 1):
        for shape in FORMATS:
            folder = options.output / f"cold start, {shape}" / str(seed)
            folder.mkdir(parents=True, exist_ok=True)
            cold = folder / "model"
            if not (cold / "model.safetensors").exists():
                recipe = folder / "recipe.yaml"
                keys = settings(COLD_START, shape, output_dir=str(cold), seed=seed)
                # The demo's cold start trains the upper half; a model of another size has other layers.
                frozen = {"unfrozen_parameters": yaml.safe_load(COLD_START.read_text(encoding="utf-8"))["unfrozen_parameters"]}
                keys |= {"model_name_or_path": options.model} if options.model else frozen
                write_yaml(recipe, keys)
                run_logged(["-m", "r1_recipes.sft", str(recipe)], folder)
            scores.setdefault(f"cold start, {shape}", []).extend(judged([cold], shape, folder, options, seed))
        for name, (shape, _) in RUNS.items():
            folder = options.output / name / str(seed)
            folder.mkdir(parents=True, exist_ok=True)
            sys.stderr.write(f"{name}, seed {seed}; {(time.monotonic() - started) / 60:.0f} min so far\n")
            out, cold = folder / "model", options.output / f"cold start, {shape}" / str(seed) / "model"
            if not (out / "model.safetensors").exists():
                train(name, folder, cold, seed, changes)
            scores.setdefault(name, []).extend(judged([out], shape, folder, options, seed))
            history = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
            key = "rewards/accuracy_reward/mean" if "trl" in RUNS[name][1] else "rewards/accuracy/mean"
            curves.setdefault(name, []).append([entry[key] for entry in history if key in entry])
    page = options.output / "report.html"
    run_logged(
        ["-m", "r1_recipes.report", *(str(options.output / name / "1" / "model") for name in RUNS), "--output", str(page)], options.output
    )
    return "\n\n".join([accuracy_table(scores), curve_table(curves), size_table(options.output), f"page: {page}"])


def accuracy_table(scores: dict[str, list[dict[str, Any]]]) -> str:
    """A row a run: over problems and all seeds, beside the cold start of its format."""
    lines = ["| run | greedy | by seed | over its cold start | sampled | by seed | over its cold start |", "|---" * 7 + "|"]

    def by_problem(name: str, kind: str) -> list[float]:
        return [statistics.fmean(values) for values in zip(*(one[kind] for one in scores[name]), strict=True)]

    for name, found in scores.items():
        cells = [name]
        for kind in ("greedy", "sampled"):
            mean, low, high = (100 * bound for bound in mean_interval(by_problem(name, kind)))
            start = f"cold start, {RUNS[name][0]}" if name in RUNS else ""
            over = paired_difference(by_problem(start, kind), by_problem(name, kind)) if start else ()
            cells.append(f"{mean:.1f} % ({low:.1f} to {high:.1f})")
            cells.append(", ".join(f"{100 * statistics.fmean(one[kind]):.1f}" for one in found))
            cells.append("{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * bound for bound in over)) if over else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", "95 % intervals, over problems."])


def curve_table(curves: dict[str, list[list[float]]]) -> str:
    """What each run's own accuracy reward paid on the completions of a step, over seeds."""
    steps = max(len(one) for found in curves.values() for one in found)
    lines = ["| reward of accuracy in step | " + " | ".join(str(step) for step in range(1, steps + 1)) + " |", "|---" * (steps + 1) + "|"]
    for name, found in curves.items():
        lines.append(f"| {name} | " + " | ".join(f"{statistics.fmean(values):.2f}" for values in zip(*found, strict=True)) + " |")
    return "\n".join(lines)


def size_table(output: Path) -> str:
    """Lines of settings that each way asks for, and what had to be made for it besides."""
    lines = ["| run | lines of YAML | besides |", "|---|---|---|"]
    for name, (_, own) in RUNS.items():
        text = (output / name / "1" / ("trl.yaml" if "trl" in own else "recipe.yaml")).read_text(encoding="utf-8")
        lines.append(f"| {name} | {len(text.splitlines())} | {'rows with prompts, mapped beforehand' if 'trl' in own else 'nothing'} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--problems", type=int, default=200, help="held-out problems")
    parser.add_argument("--steps", type=int, help="in place of the recipe's")
    parser.add_argument("--model", help="in place of the cold start's raw model")
    parser.add_argument("--output", type=Path, default=Path("outputs/peers"), help="everything is kept there, and not done again")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    text = run(options, {"max_steps": options.steps} if options.steps else {})
    (options.output / "results.md").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
