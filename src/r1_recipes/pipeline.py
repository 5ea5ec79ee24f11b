"""``python -m r1_recipes.pipeline recipes/pipelines/NAME.yaml``: several recipes, each starting
where the last ended, and one table.

A pipeline file names stages (a method and a recipe each) and how the models that they leave are
judged. Run again after an interruption, it goes on where it stopped. A GRPO stage that preflight
advises against is not begun.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from r1_recipes.common import console, extras, files, processes
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
    """One row of the table: a recipe that ``method`` runs, or a ``model`` that is judged
    as it is.
    """

    name: str  # unique; the folder of its judged completions
    label: str  # what the table calls it
    recipe: str = ""
    method: str = ""
    model: str = ""
    overrides: dict[str, Any] | None = None  # of the recipe's keys
    says: str = ""  # shown while it runs

    def __post_init__(self) -> None:
        if (
            bool(self.recipe) == bool(self.model)
            or bool(self.recipe) != bool(self.method)
            or (self.model and self.overrides)
        ):
            raise ValueError(
                "must be either method and recipe, with or without overrides, or model"
            )
        if self.method and self.method not in METHODS:
            raise ValueError(unknown_name("method", self.method, METHODS))


@dataclass(frozen=True)
class Preflight:
    """What preflight may spend before a GRPO stage."""

    groups: int  # prompts to sample from, num_generations completions each
    seconds: float


@dataclass(frozen=True)
class Pipeline:
    title: str
    output_dir: str  # the folder that its recipes' own output_dir stand under
    stages: tuple[Stage, ...]
    # GRPO recipe whose test split, format and generation settings the models are judged with
    judge: str
    problems: int
    num_samples: int  # sampled completions per problem
    seed: int = 1  # of every stage and of the sampling
    compare: tuple[
        tuple[str, str], ...
    ] = ()  # stage names; the table is followed by the second's difference over the first
    preflight: Preflight | None = None
    note: str = ""  # below the table

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
                f"stages: names must differ, and one stage at least must leave a model, got {names}"
            )
        if strange := [name for name in chain.from_iterable(self.compare) if name not in judged]:
            raise ValueError("compare: " + unknown_name("stage with a model", strange[0], judged))


@dataclass(frozen=True)
class Outcome:
    scores: Scores | None = None  # of a model
    yielded: dict[str, Any] | None = None  # ``yield.json`` of a data set


def read_pipeline(path: Path) -> Pipeline:
    """Read a pipeline file; a RecipeError names the key that cannot be used."""
    return from_mapping(Pipeline, read_yaml(path), str(path))


def run_pipeline(
    path: Path, output_dir: Path | None = None, **changes: int | None
) -> dict[str, Outcome]:
    """Run every stage, judge the models on the same held-out problems, and print the table; return
    outcomes by stage name.

    ``output_dir`` and ``changes`` (``problems``, ``num_samples``, ``seed``) are in place of the
    file's own. A stage that ends with an error, and preflight that advises against one, ends the
    pipeline with its exit status.
    """
    given: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
    pipeline = replace(read_pipeline(path), **given)
    output_dir = output_dir or Path(pipeline.output_dir)
    # A recipe that cannot be read should not wait for the stages before it.
    recipes = [
        (stage, _load(pipeline, output_dir, stage)[0]) for stage in pipeline.stages if stage.recipe
    ]
    outcomes: dict[str, Outcome] = {}
    for number, stage in enumerate(pipeline.stages, start=1):
        console.say(
            f"\n=== {number}/{len(pipeline.stages)} {stage.label}"
            + (f": {stage.says}" if stage.says else "")
        )
        outcomes[stage.name] = _run_stage(pipeline, output_dir, stage)
    table = _table(pipeline, outcomes)
    files.write_whole(output_dir / "results.md", table + "\n")
    kept = {
        stage.name: {"label": stage.label, **asdict(outcomes[stage.name])}
        for stage in pipeline.stages
    }
    judged = {key: getattr(pipeline, key) for key in ("problems", "num_samples", "seed")}
    files.write_whole(
        output_dir / "results.json", json.dumps({"judged": judged, "stages": kept}, indent=1)
    )
    console.say(f"\n=== Done: {pipeline.title}\n\n{table}\n")
    example = [outcome.scores for outcome in outcomes.values() if outcome.scores][-1].examples[0]
    console.say(
        f"One answer of the last model, to {example['question']!r}:\n{example['completion']}\n"
    )
    trained = [
        Path(recipe.training.output_dir) for stage, recipe in recipes if stage.method in _TRAINS
    ]
    console.say(f"runs and models:  {output_dir}/\nthis table:       {output_dir / 'results.md'}")
    page = extras.part("report")
    if page:
        console.say(
            "reports:          "
            + f"\n{'':18}".join(map(str, _write_pages(page, trained, output_dir)))
        )
    return outcomes


def _write_pages(page: Any, trained: list[Path], output_dir: Path) -> list[Path]:
    """The page of each run, again, now that its model is judged, and one of them all."""
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
        if stage.method == "grpo" and pipeline.preflight:
            console.say(
                f"--- preflight (all that it finds: python -m r1_recipes.preflight "
                f"{shlex.join(masked_words(argv))})"
            )
            limits = [
                "--groups",
                str(pipeline.preflight.groups),
                "--seconds",
                str(pipeline.preflight.seconds),
            ]
            _subprocess(
                [sys.executable, "-P", "-m", "r1_recipes.preflight", *argv, *limits, "--brief"]
            )
        _subprocess([sys.executable, "-P", "-m", f"r1_recipes.{stage.method}", *argv])
    if stage.method != "generate":
        return Outcome(_judge(pipeline, output_dir, stage, str(folder)))
    yielded = json.loads((folder / "dataset" / "yield.json").read_text(encoding="utf-8"))
    if not isinstance(yielded.get("completions"), dict):
        raise RecipeError(f"{folder}: was made by an older version; remove it to make it again")
    return Outcome(yielded=yielded)


def _load(pipeline: Pipeline, output_dir: Path, stage: Stage) -> tuple[Recipe, list[str]]:
    """Load a stage's recipe, with every path below the pipeline's folder moved to where this run
    writes.
    """
    settings = read_yaml(Path(stage.recipe))
    before, after = (
        json.dumps(f"{str(folder).rstrip('/')}/")[:-1]
        for folder in (pipeline.output_dir, output_dir)
    )
    moved = json.loads(json.dumps({**settings, **(stage.overrides or {})}).replace(before, after))
    argv = [stage.recipe, "--seed", str(pipeline.seed)]
    for key, value in moved.items():
        if key != "seed" and value != settings.get(key):
            argv += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    return load_recipe(argv, stage.method), argv


def _subprocess(command: list[str]) -> None:
    """Run a stage as a process of its own, which gives its memory back; it gets every request to
    stop once, through this one.
    """
    process = processes.start_child(command, env=os.environ | _STAGE_ENVIRONMENT)
    with processes.handled_by(lambda number, frame: process.terminate()):
        status = process.wait()
    if status in (130, -signal.SIGTERM):
        raise KeyboardInterrupt
    if status < 0:
        raise RecipeError(
            f"{' '.join(command[1:4])} was ended by signal {-status} (9 usually means that "
            f"memory ran out)"
        )
    if status:
        raise SystemExit(status)


def _judge(pipeline: Pipeline, output_dir: Path, stage: Stage, model: str) -> Scores:
    """Score a model; completions of the same weights for the same judge are not generated twice."""
    recipe = load_recipe([pipeline.judge, "--model_name_or_path", model], "grpo")
    recipe.script.max_eval_samples = pipeline.problems
    rows, what = rows_to_judge(recipe)
    # The judge as its file says it: what follows the machine would make it another one on the next.
    samples, seed, weights = (
        pipeline.num_samples,
        pipeline.seed,
        sources.weights_stamp(Path(model_path(model, recipe.script.hub))),
    )
    made_by = json.dumps(
        [read_yaml(Path(pipeline.judge)), pipeline.problems, samples, seed, model, weights],
        default=str,
    )
    folder = (
        output_dir / "judged" / f"{stage.name}-{hashlib.sha256(made_by.encode()).hexdigest()[:8]}"
    )
    scores = evaluate_model(
        model, rows, recipe, Sampling(samples, seed=seed), folder=folder, judged_on=what
    )
    assert scores  # None is for ranks other than 0
    console.say(
        f"{stage.label}: greedy {sum(scores.greedy) / len(rows):.1%}, sampled "
        f"{sum(scores.sampled) / len(rows):.1%} right"
    )
    return scores


def _table(pipeline: Pipeline, outcomes: dict[str, Outcome]) -> str:
    labels = {stage.name: stage.label for stage in pipeline.stages}
    scores = {name: outcome.scores for name, outcome in outcomes.items() if outcome.scores}
    blocks = [
        markdown_table(
            [(labels[name], outcome.scores, outcome.yielded) for name, outcome in outcomes.items()]
        )
    ]
    blocks += [
        difference_line(scores[one], scores[other], f"{labels[other]} over {labels[one]}")
        for one, other in pipeline.compare
    ]
    what = next(iter(scores.values())).judged_on
    judged = (
        f"Judged on {what}, {pipeline.num_samples} sampled answer(s) each; seed {pipeline.seed}; "
        f"in brackets: 95 % intervals."
    )
    return "\n\n".join([*blocks, f"{judged}\n{pipeline.note}".rstrip()])


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 2 if something needed is missing, with 130 if it
    was stopped.
    """
    parser = argparse.ArgumentParser(
        prog="python -m r1_recipes.pipeline",
        description=__doc__.splitlines()[0],
        allow_abbrev=False,
    )
    parser.add_argument("pipeline", type=Path, help="a file in recipes/pipelines")
    parser.add_argument(
        "--output_dir", type=Path, help="where the runs go, in place of the file's own"
    )
    parser.add_argument(
        "--problems", type=int, help="held-out problems to judge, in place of the file's own"
    )
    parser.add_argument(
        "--num_samples", type=int, help="sampled answers a problem, in place of the file's own"
    )
    parser.add_argument("--seed", type=int, help="of every stage and of the sampling (default 1)")
    with console.reported_errors():
        options = vars(parser.parse_args(argv))
        console.set_up_logging(None)
        run_pipeline(options.pop("pipeline"), **options)


if __name__ == "__main__":
    main()
