"""Run several recipes in a row, each from the result of the last, and print one table.

``python -m r1_recipes.pipeline recipes/pipelines/NAME.yaml``

A pipeline file lists stages (a method and a recipe each) and how their models are evaluated. After
an interruption, the same command resumes. A GRPO stage does not start if preflight advises against
it.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from r1_recipes.common import console, files, processes
from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.common.masking import masked_words
from r1_recipes.common.settings import from_mapping
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.metrics.run import Sampling, evaluate_model, rows_to_judge
from r1_recipes.metrics.scores import Scores
from r1_recipes.metrics.tables import difference_line, markdown_table
from r1_recipes.models.weights import model_path
from r1_recipes.recipe import Recipe, load_recipe
from r1_recipes.runs import run_dir, sources

_TRAINS = ("sft", "grpo", "distill")
METHODS = (*_TRAINS, "generate")
_STAGE_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "R1_RECIPES_STAGE": "1"}


@dataclass(frozen=True)
class Stage:
    """One row of the table: a recipe that ``method`` runs, or a ``model`` that is evaluated as it
    is.
    """

    name: str  # unique; part of the folder name of its evaluated completions
    label: str  # its name in the table
    recipe: str = ""
    method: str = ""
    model: str = ""
    overrides: dict[str, Any] | None = None  # replace keys of the recipe
    says: str = ""  # a note that is shown while the stage runs

    def __post_init__(self) -> None:
        if self.model:
            complete = not (self.recipe or self.method or self.overrides)
        else:
            complete = bool(self.recipe and self.method)
        if not complete:
            raise ValueError("must have either method and recipe (and maybe overrides), or model")
        if self.method and self.method not in METHODS:
            raise ValueError(unknown_name("method", self.method, METHODS))


@dataclass(frozen=True)
class Preflight:
    """What preflight may spend before a GRPO stage."""

    groups: int  # prompts to sample from, with num_generations completions each
    seconds: float


@dataclass(frozen=True)
class Pipeline:
    title: str
    output_dir: str  # the output_dir of every recipe must be inside this folder
    stages: tuple[Stage, ...]
    # A GRPO recipe. Models are evaluated with its test split, format and generation settings.
    judge: str
    problems: int
    num_samples: int  # sampled completions per problem
    seed: int = 1  # of every stage and of the sampling
    # Pairs of stage names. Below the table, the second of each pair is compared with the first.
    compare: tuple[tuple[str, str], ...] = ()
    preflight: Preflight | None = None
    note: str = ""  # printed below the table

    def __post_init__(self) -> None:
        if min(self.problems, self.num_samples) < 1:
            raise RecipeError(
                f"problems and num_samples: must be 1 or more, got {self.problems} and "
                f"{self.num_samples}"
            )
        names = [stage.name for stage in self.stages]
        judged = [stage.name for stage in self.stages if stage.method != "generate"]
        if unsafe := [name for name in names if not re.fullmatch(r"\w[\w.-]*", name)]:
            raise ValueError(
                f"stages: name: must be letters, digits, '-', '_' and '.', got {unsafe[0]!r}"
            )
        if len(set(names)) < len(names) or not judged:
            raise ValueError(
                f"stages: names must differ, and at least one stage must have a model, got {names}"
            )
        if unknown := [name for name in chain.from_iterable(self.compare) if name not in judged]:
            raise ValueError("compare: " + unknown_name("stage with a model", unknown[0], judged))


@dataclass(frozen=True)
class Outcome:
    scores: Scores | None = None  # of the stage's model
    yielded: dict[str, Any] | None = None  # ``yield.json`` of the stage's data set


def read_pipeline(path: Path) -> Pipeline:
    """Return a pipeline file's content. Raise RecipeError, which names the wrong key."""
    return from_mapping(Pipeline, read_yaml(path), str(path))


def run_pipeline(
    path: Path, output_dir: Path | None = None, **changes: int | None
) -> dict[str, Outcome]:
    """Run every stage, evaluate the models on the same held-out problems, and print the table.

    ``output_dir`` and ``changes`` (``problems``, ``num_samples``, ``seed``) replace the file's
    values. Return the outcomes by stage name. If a stage ends with an error, or preflight advises
    against it, the pipeline ends with its exit status.
    """
    replaced: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
    pipeline = replace(read_pipeline(path), **replaced)
    output_dir = output_dir or Path(pipeline.output_dir)
    # Load all recipes first: a mistake in a late one should not wait for the earlier stages.
    trained = []
    for stage in pipeline.stages:
        if stage.recipe:
            recipe, _ = _load(pipeline, output_dir, stage)
            if stage.method in _TRAINS:
                trained.append(Path(recipe.training.output_dir))
    outcomes: dict[str, Outcome] = {}
    for number, stage in enumerate(pipeline.stages, start=1):
        note = f": {stage.says}" if stage.says else ""
        console.say(f"\n=== {number}/{len(pipeline.stages)} {stage.label}{note}")
        outcomes[stage.name] = _run_stage(pipeline, output_dir, stage)
    table = _table(pipeline, outcomes)
    files.write_whole(output_dir / "results.md", table + "\n")
    judged = {key: getattr(pipeline, key) for key in ("problems", "num_samples", "seed")}
    stages = {
        stage.name: {"label": stage.label, **asdict(outcomes[stage.name])}
        for stage in pipeline.stages
    }
    results = json.dumps({"judged": judged, "stages": stages}, indent=1)
    files.write_whole(output_dir / "results.json", results)
    console.say(f"\n=== Done: {pipeline.title}\n\n{table}\n")
    example = [outcome.scores for outcome in outcomes.values() if outcome.scores][-1].examples[0]
    console.say(
        f"One answer of the last model, to {example['question']!r}:\n{example['completion']}\n"
    )
    console.say(f"runs and models:  {output_dir}/\nthis table:       {output_dir}/results.md")
    pages = map(str, _write_pages(trained, output_dir))
    console.say("reports:          " + "\n                  ".join(pages))
    return outcomes


def _write_pages(trained: list[Path], output_dir: Path) -> list[Path]:
    """Write each run's page again, with its evaluation, and a page of all runs. Return the
    pages.
    """
    from r1_recipes.extras import report as page

    for folder in trained:
        page.refresh(folder)
    pages = [folder / page.REPORT_FILE for folder in trained]
    if len(trained) > 1:
        pages.append(output_dir / page.REPORT_FILE)
        page.refresh(*trained, output=pages[-1])
    return pages


def _run_stage(pipeline: Pipeline, output_dir: Path, stage: Stage) -> Outcome:
    if stage.model:
        return Outcome(_judge(pipeline, output_dir, stage, stage.model))
    recipe, argv = _load(pipeline, output_dir, stage)
    folder = Path(recipe.training.output_dir)
    run_dir.check(recipe, folder)
    if run_dir.is_done(recipe, folder):
        console.say(f"already done: {folder}")
    else:
        module = [sys.executable, "-P", "-m"]
        if stage.method == "grpo" and pipeline.preflight:
            console.say(
                f"--- preflight (for all findings: python -m r1_recipes.preflight "
                f"{shlex.join(masked_words(argv))})"
            )
            limits = [f"--{key}={value}" for key, value in vars(pipeline.preflight).items()]
            _subprocess([*module, "r1_recipes.preflight", *argv, *limits, "--brief"])
        _subprocess([*module, f"r1_recipes.{stage.method}", *argv])
    if stage.method != "generate":
        return Outcome(_judge(pipeline, output_dir, stage, str(folder)))
    yielded = json.loads((folder / "dataset" / "yield.json").read_text(encoding="utf-8"))
    if not isinstance(yielded.get("completions"), dict):
        raise RecipeError(
            f"{folder}: was written by an older version. Fix: delete it to generate it again"
        )
    return Outcome(yielded=yielded)


def _load(pipeline: Pipeline, output_dir: Path, stage: Stage) -> tuple[Recipe, list[str]]:
    """Load a stage's recipe, and return it with its command line.

    Paths inside the pipeline's folder are moved to ``output_dir``.
    """
    settings = read_yaml(Path(stage.recipe))
    before = json.dumps(pipeline.output_dir.rstrip("/") + "/")[:-1]
    after = json.dumps(f"{output_dir}/")[:-1]
    text = json.dumps({**settings, **(stage.overrides or {})})
    moved = json.loads(text.replace(before, after))
    argv = [stage.recipe, "--seed", str(pipeline.seed)]
    for key, value in moved.items():
        if key != "seed" and value != settings.get(key):
            argv += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    return load_recipe(argv, stage.method), argv


def _subprocess(command: list[str]) -> None:
    """Run a stage in its own process, so that its memory is free afterwards.

    Requests to stop reach it once, through this process.
    """
    process = subprocess.Popen(command, process_group=0, env=os.environ | _STAGE_ENVIRONMENT)
    with processes.handled_by(lambda number, frame: process.terminate()):
        status = process.wait()
    if status in (130, -signal.SIGTERM):
        raise KeyboardInterrupt
    if status < 0:
        raise RecipeError(
            f"{' '.join(command[1:4])} was ended by signal {-status} (9 usually means out of "
            "memory)"
        )
    if status:
        raise SystemExit(status)


def _judge(pipeline: Pipeline, output_dir: Path, stage: Stage, model: str) -> Scores:
    """Score a model. Completions of the same weights and the same judge are not generated twice."""
    recipe = load_recipe([pipeline.judge, "--model_name_or_path", model], "grpo")
    recipe.script.max_eval_samples = pipeline.problems
    rows, judged_on = rows_to_judge(recipe)
    # Hash the judge's file, not its loaded settings, which depend on the machine.
    keys = read_yaml(Path(pipeline.judge))
    sampling = Sampling(pipeline.num_samples, seed=pipeline.seed)
    weights = sources.weights_stamp(Path(model_path(model, recipe.script.hub)))
    made_by = json.dumps(
        [keys, pipeline.problems, sampling.num_samples, sampling.seed, model, weights], default=str
    )
    digest = hashlib.sha256(made_by.encode()).hexdigest()[:8]
    folder = output_dir / "judged" / f"{stage.name}-{digest}"
    scores = evaluate_model(model, rows, recipe, sampling, folder=folder, judged_on=judged_on)
    assert scores  # None is for ranks other than 0
    greedy = statistics.fmean(scores.greedy)
    sampled = statistics.fmean(scores.sampled)
    console.say(f"{stage.label}: greedy {greedy:.1%}, sampled {sampled:.1%} right")
    return scores


def _table(pipeline: Pipeline, outcomes: dict[str, Outcome]) -> str:
    labels = {stage.name: stage.label for stage in pipeline.stages}
    scores = {name: outcome.scores for name, outcome in outcomes.items() if outcome.scores}
    rows = [(labels[name], outcome.scores, outcome.yielded) for name, outcome in outcomes.items()]
    blocks = [markdown_table(rows)]
    for before, after in pipeline.compare:
        what = f'"{labels[after]}" compared with "{labels[before]}"'
        blocks.append(difference_line(scores[before], scores[after], what))
    judged_on = next(iter(scores.values())).judged_on
    judged = (
        f"Evaluated on {judged_on}, with {pipeline.num_samples} sampled answer(s) each and seed "
        f"{pipeline.seed}. Brackets hold 95 % intervals.\n{pipeline.note}"
    )
    blocks.append(judged.rstrip())
    return "\n\n".join(blocks)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line. Exit with 2 if something is missing, with 130 if it was interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m r1_recipes.pipeline",
        description=__doc__.splitlines()[0],
        allow_abbrev=False,
    )
    parser.add_argument("pipeline", type=Path, help="a file in recipes/pipelines")
    parser.add_argument("--output_dir", type=Path, help="folder of the runs (default: the file's)")
    parser.add_argument(
        "--problems", type=int, help="held-out problems to evaluate on (default: the file's)"
    )
    parser.add_argument(
        "--num_samples", type=int, help="sampled answers per problem (default: the file's)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="seed of every stage and of the sampling (default: the file's, else 1)",
    )
    with console.reported_errors():
        options = vars(parser.parse_args(argv))
        console.set_up_logging(None)
        run_pipeline(options.pop("pipeline"), **options)


if __name__ == "__main__":
    main()
