"""``python -m r1_recipes.pipeline recipes/pipelines/NAME.yaml``: several recipes, each starting where the last ended, and one table.

A pipeline file names stages (a method and a recipe each) and how the models that they leave are judged. Run again after an interruption,
it goes on where it stopped. A GRPO stage that preflight advises against is not begun.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from r1_recipes.common import console, files
from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.common.masking import masked_words
from r1_recipes.common.settings import from_mapping
from r1_recipes.metrics.rows import rows_to_judge
from r1_recipes.metrics.run import BATCH_SIZE, evaluate_model
from r1_recipes.metrics.scores import Scores
from r1_recipes.metrics.tables import difference_line, markdown_table
from r1_recipes.models.weights import model_path
from r1_recipes.recipe import Recipe, load_recipe
from r1_recipes.recipe.text import read_yaml
from r1_recipes.report import page
from r1_recipes.runs import run_dir
from r1_recipes.training import stopping

_TRAINS = ("sft", "grpo", "distill")
METHODS = (*_TRAINS, "generate")


@dataclass(frozen=True)
class Stage:
    """One row of the table: a recipe that ``method`` runs, or a ``model`` that is judged as it is."""

    name: str  # unique; the folder of its judged completions
    label: str  # what the table calls it
    recipe: str = ""
    method: str = ""
    model: str = ""
    overrides: dict[str, Any] | None = None  # of the recipe's keys
    says: str = ""  # shown while it runs

    def __post_init__(self) -> None:
        if bool(self.recipe) == bool(self.model) or bool(self.recipe) != bool(self.method) or (self.model and self.overrides):
            raise ValueError("must be either method and recipe, with or without overrides, or model")
        if self.method and self.method not in METHODS:
            raise ValueError(unknown_name("method", self.method, METHODS))


@dataclass(frozen=True)
class Preflight:
    """What preflight may spend before a GRPO stage."""

    groups: int  # prompts to sample from, num_generations completions each
    seconds: float


@dataclass(frozen=True)
class Pipeline:
    """A pipeline file."""

    title: str
    output_dir: str  # the folder that its recipes' own output_dir stand under
    stages: tuple[Stage, ...]
    judge: str  # GRPO recipe whose test split, format and generation settings the models are judged with
    problems: int
    num_samples: int  # sampled completions per problem
    compare: tuple[tuple[str, str], ...] = ()  # stage names; the table is followed by the second's difference over the first
    preflight: Preflight | None = None
    note: str = ""  # below the table

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        judged = [stage.name for stage in self.stages if stage.method != "generate"]
        if len(set(names)) < len(names) or not judged:
            raise ValueError(f"stages: names must differ, and one stage at least must leave a model, got {names}")
        for name in chain.from_iterable(self.compare):
            if name not in judged:
                raise ValueError("compare: " + unknown_name("stage with a model", name, judged))


@dataclass(frozen=True)
class Outcome:
    """What a stage left."""

    scores: Scores | None = None  # of a model
    yielded: dict[str, Any] | None = None  # ``yield.json`` of a data set


@dataclass(frozen=True)
class _Run:
    pipeline: Pipeline
    output_dir: Path
    judged: dict[str, int]  # problems, num_samples, seed


def read_pipeline(path: Path) -> Pipeline:
    """Read a pipeline file; a RecipeError names the key that cannot be used."""
    return from_mapping(Pipeline, read_yaml(path), str(path))


def run_pipeline(
    path: Path, output_dir: Path | None = None, *, problems: int | None = None, num_samples: int | None = None, seed: int = 1
) -> dict[str, Outcome]:
    """Run every stage, judge the models on the same held-out problems, and print the table; return outcomes by stage name.

    Args:
        output_dir, problems, num_samples: in place of the file's own.
        seed: of every stage and of the sampling.

    Raises:
        SystemExit: a stage ended with an error, whose status is passed on; 1 if preflight says that it should not begin.
    """
    pipeline = read_pipeline(path)
    problems = pipeline.problems if problems is None else problems
    num_samples = pipeline.num_samples if num_samples is None else num_samples
    if min(problems, num_samples) < 1:
        raise RecipeError(f"problems and num_samples: must be 1 or more, got {problems} and {num_samples}")
    run = _Run(pipeline, output_dir or Path(pipeline.output_dir), {"problems": problems, "num_samples": num_samples, "seed": seed})
    # A recipe that cannot be read should not wait for the stages before it.
    recipes = [(stage, _load(run, stage)[0]) for stage in pipeline.stages if stage.recipe]
    outcomes: dict[str, Outcome] = {}
    for number, stage in enumerate(pipeline.stages, start=1):
        console.say(f"\n=== {number}/{len(pipeline.stages)} {stage.label}" + (f": {stage.says}" if stage.says else ""))
        outcomes[stage.name] = _run_stage(run, stage)
    table = _table(run, outcomes)
    files.write_whole(run.output_dir / "results.md", table + "\n")
    kept = {stage.name: {"label": stage.label, **asdict(outcomes[stage.name])} for stage in pipeline.stages}
    files.write_whole(run.output_dir / "results.json", json.dumps({"judged": run.judged, "stages": kept}, indent=1))
    console.say(f"\n=== Done: {pipeline.title}\n\n{table}\n")
    example = [outcome.scores for outcome in outcomes.values() if outcome.scores][-1].examples[0]
    console.say(f"One answer of the last model, to {example['question']!r}:\n{example['completion']}\n")
    trained = [Path(recipe.training.output_dir) for stage, recipe in recipes if stage.method in _TRAINS]
    for folder in trained:  # again, now that its model is judged
        page.refresh(folder)
    reports = [folder / page.REPORT_FILE for folder in trained]
    if len(trained) > 1:
        reports.append(run.output_dir / page.REPORT_FILE)
        page.refresh(*trained, output=reports[-1])
    console.say(f"runs and models:  {run.output_dir}/\nthis table:       {run.output_dir / 'results.md'}")
    console.say("reports:          " + f"\n{'':18}".join(map(str, reports)))
    return outcomes


def _run_stage(run: _Run, stage: Stage) -> Outcome:
    if stage.model:
        return Outcome(_judge(run, stage, stage.model))
    recipe, argv = _load(run, stage)
    folder = Path(recipe.training.output_dir)
    run_dir.check(recipe, folder)
    if run_dir.is_finished(folder) and not run_dir.changed_settings(recipe, folder):
        console.say(f"already done: {folder}")
    else:
        if stage.method == "grpo" and run.pipeline.preflight:
            _preflight(run.pipeline.preflight, stage, argv)
        _subprocess([sys.executable, "-m", f"r1_recipes.{stage.method}", *argv])
    if stage.method != "generate":
        return Outcome(_judge(run, stage, str(folder)))
    return Outcome(yielded=json.loads((folder / "dataset" / "yield.json").read_text(encoding="utf-8")))


def _preflight(settings: Preflight, stage: Stage, argv: list[str]) -> None:
    """Print whether GRPO could learn from what the stage's first model answers; exit with 1 if it could not."""
    console.say(f"--- preflight (all that it finds: python -m r1_recipes.preflight {shlex.join(masked_words(argv))})")
    limits = ["--groups", str(settings.groups), "--seconds", str(settings.seconds)]
    try:
        _subprocess([sys.executable, "-m", "r1_recipes.preflight", *argv, "--method", stage.method, *limits, "--brief"])
    except SystemExit:
        sys.stderr.write(f"\nstage {stage.name} was not begun; change its recipe, and the same command goes on from here\n")
        raise


def _load(run: _Run, stage: Stage) -> tuple[Recipe, list[str]]:
    """Load a stage's recipe, with every path below the pipeline's folder moved to where this run writes."""
    settings = read_yaml(Path(stage.recipe))
    before, after = (json.dumps(f"{str(folder).rstrip('/')}/")[:-1] for folder in (run.pipeline.output_dir, run.output_dir))
    moved = json.loads(json.dumps({**settings, **(stage.overrides or {})}).replace(before, after))
    argv = [stage.recipe, "--seed", str(run.judged["seed"])]
    for key, value in moved.items():
        if key != "seed" and value != settings.get(key):
            argv += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    return load_recipe(argv, stage.method), argv


def _subprocess(command: list[str]) -> None:
    """Run a stage as a process of its own, which gives its memory back; it gets every request to stop once, through this one."""
    # In a group of its own, a terminal's Ctrl-C does not reach it a second time.
    process = subprocess.Popen(command, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"}, process_group=0)
    with stopping.handled_by(lambda number, frame: process.terminate()):
        status = process.wait()
    if status in (130, -signal.SIGTERM):
        raise KeyboardInterrupt
    if status < 0:
        what = f"{' '.join(command[1:4])} was ended by signal {-status}"
        raise RecipeError(f"{what} (9 usually means that memory ran out); the same command goes on from here")
    if status:
        raise SystemExit(status)


def _judge(run: _Run, stage: Stage, model: str) -> Scores:
    """Score a model; completions of the same weights for the same judge are not generated twice."""
    recipe = load_recipe([run.pipeline.judge, "--model_name_or_path", model], "grpo")
    recipe.script.max_eval_samples = run.judged["problems"]
    rows, what = rows_to_judge(recipe)
    # The judge as its file says it: what follows the machine would make it another one on the next.
    made_by = [read_yaml(Path(run.pipeline.judge)), run.judged, model, run_dir.weights_stamp(Path(model_path(model, recipe.script.hub)))]
    stamp = hashlib.sha256(json.dumps(made_by, default=str).encode()).hexdigest()[:8]
    samples, seed = run.judged["num_samples"], run.judged["seed"]
    folder = run.output_dir / "judged" / f"{stage.name}-{stamp}"
    scores = evaluate_model(model, rows, recipe, num_samples=samples, seed=seed, batch_size=BATCH_SIZE, folder=folder, judged_on=what)
    assert scores  # None is for ranks other than 0
    console.say(f"{stage.label}: greedy {sum(scores.greedy) / len(rows):.1%}, sampled {sum(scores.sampled) / len(rows):.1%} right")
    return scores


def _table(run: _Run, outcomes: dict[str, Outcome]) -> str:
    labels = {stage.name: stage.label for stage in run.pipeline.stages}
    scores = {name: outcome.scores for name, outcome in outcomes.items() if outcome.scores}
    blocks = [markdown_table([(labels[name], outcome.scores, outcome.yielded) for name, outcome in outcomes.items()]).rstrip("\n")]
    for before, after in run.pipeline.compare:
        blocks.append(difference_line(scores[before], scores[after], f"{labels[after]} over {labels[before]}"))
    what, samples, seed = next(iter(scores.values())).judged_on, run.judged["num_samples"], run.judged["seed"]
    judged = f"Judged on {what}, {samples} sampled answer(s) each; seed {seed}; in brackets: 95 % intervals."
    return "\n\n".join([*blocks, f"{judged}\n{run.pipeline.note}".rstrip()])


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 2 if something needed is missing, with 130 if it was stopped."""
    parser = argparse.ArgumentParser(prog="python -m r1_recipes.pipeline", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("pipeline", type=Path, help="a file in recipes/pipelines")
    parser.add_argument("--output_dir", type=Path, help="where the runs go, in place of the file's own")
    parser.add_argument("--problems", type=int, help="held-out problems to judge, in place of the file's own")
    parser.add_argument("--num_samples", type=int, help="sampled answers a problem, in place of the file's own")
    parser.add_argument("--seed", type=int, default=1, help="of every stage and of the sampling (default 1)")
    options = vars(parser.parse_args(argv))
    console.set_up_logging(None)
    with console.reported_errors():
        run_pipeline(options.pop("pipeline"), **options)


if __name__ == "__main__":
    main()
