"""``python -m r1_recipes.pipeline recipes/pipelines/NAME.yaml``: several recipes, each starting where the last ended, and one table.

A pipeline file names stages (a method and a recipe each) and how the models that they leave are judged. Run again after an interruption,
it goes on where it stopped; a stage is repeated only where its recipe, or what it starts from, changed. A GRPO stage that preflight
advises against is not begun.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from r1_recipes import report, run_dir, runtime
from r1_recipes.errors import RecipeError, first_line, unknown_name
from r1_recipes.evaluate import BATCH_SIZE, Scores, difference_line, evaluate_model, markdown_table, rows_to_judge
from r1_recipes.masking import masked, masked_words
from r1_recipes.recipe import Recipe, load, read_yaml

logger = logging.getLogger("r1_recipes.pipeline")  # under `python -m` this module is called __main__

_LIBC = ctypes.CDLL(None)  # loaded before there is a child
_TRAINS = ("sft", "grpo", "distill")
METHODS = (*_TRAINS, "generate")


@dataclass(frozen=True)
class Stage:
    """One row of the pipeline.

    Attributes:
        name: short, unique; the file name of what is remembered of it.
        label: what the table calls it.
        recipe: path of the recipe; ``None``: nothing is trained, ``model`` is judged as it is.
        method: entry point that runs the recipe.
        model: for a stage without recipe.
        overrides: keys of the recipe that this pipeline changes.
        says: one line, shown while it runs.
    """

    name: str
    label: str
    recipe: str | None = None
    method: str | None = None
    model: str | None = None
    overrides: dict[str, Any] | None = None
    says: str = ""


@dataclass(frozen=True)
class Preflight:
    """What preflight may spend before a GRPO stage.

    Attributes:
        groups: prompts to sample from, ``num_generations`` completions each.
        seconds: time for that.
    """

    groups: int
    seconds: float


@dataclass(frozen=True)
class Pipeline:
    """A pipeline file.

    Attributes:
        title: what it is.
        output_dir: the folder that its recipes' own ``output_dir`` stand under; ``--output_dir`` moves them all.
        stages: in order.
        judge: GRPO recipe whose test split, format and generation settings the models are judged with.
        problems: held-out problems to judge.
        num_samples: sampled completions a problem.
        compare: pairs of stage names; the table is followed by the second's difference over the first.
        preflight: ``None``: GRPO stages begin without it.
        note: a sentence below the table.
    """

    title: str
    output_dir: str
    stages: tuple[Stage, ...]
    judge: str
    problems: int
    num_samples: int
    compare: tuple[tuple[str, str], ...] = ()
    preflight: Preflight | None = None
    note: str = ""


def read_pipeline(path: Path) -> Pipeline:
    """Read a pipeline file.

    Raises:
        RecipeError: an unknown or missing key, an unknown method, or a recipe that is not there; names the file and the key.
    """
    values = read_yaml(path)
    stages = values.get("stages")
    if not isinstance(stages, list) or not stages:
        raise RecipeError(f"{path}: stages: a list of mappings with name, label, method and recipe, found {stages!r}")
    built = []
    for number, entry in enumerate(stages, start=1):
        where = f"{path}: stage {number}"
        stage = _build(Stage, entry, where)
        if (stage.recipe is None) == (stage.model is None) or (stage.recipe is None) != (stage.method is None):
            raise RecipeError(f"{where}: either method and recipe, or model")
        if not isinstance(stage.overrides or {}, dict) or (stage.overrides and not stage.recipe):
            raise RecipeError(f"{where}: overrides: must be a mapping beside a recipe, got {stage.overrides!r}")
        if stage.method and stage.method not in METHODS:
            raise RecipeError(f"{where}: " + unknown_name("method", stage.method, METHODS))
        built.append(stage)
    values["stages"] = tuple(built)
    if values.get("preflight") is not None:
        values["preflight"] = _build(Preflight, values["preflight"], f"{path}: preflight")
    pipeline = _build(Pipeline, values, str(path))
    names = [stage.name for stage in built]
    judged = [stage.name for stage in built if stage.method != "generate"]
    if len(set(names)) < len(names) or not judged:
        raise RecipeError(f"{path}: stages: names must differ, and one stage at least must leave a model; found {names}")
    for name in [name for pair in pipeline.compare for name in pair]:
        if name not in judged:
            raise RecipeError(f"{path}: compare: " + unknown_name("stage with a model", name, judged))
    return pipeline


def _build(kind: type, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise RecipeError(f"{where}: a mapping, found {values!r}")
    known = {f.name: f for f in fields(kind)}
    for key in values:
        if key not in known:
            raise RecipeError(f"{where}: " + unknown_name("key", key, known))
    missing = [name for name, f in known.items() if name not in values and f.default is MISSING]
    if missing:
        raise RecipeError(f"{where}: {', '.join(missing)}: missing")
    return kind(**values)


@dataclass
class Outcome:
    """What a stage left: scores of a model, or the yield of a data set.

    Attributes:
        scores: of the model; ``None`` for a stage that makes data.
        yielded: ``yield.json`` of a stage that makes data.
        seconds: wall time of the stage itself, judging apart; ``None`` where it had been done before.
    """

    scores: Scores | None = None
    yielded: dict[str, Any] | None = None
    seconds: float | None = None


@dataclass
class _Run:
    pipeline: Pipeline
    output_dir: Path
    overrides: dict[str, str]
    judged: dict[str, int] = field(default_factory=dict)


def run_pipeline(
    path: Path, output_dir: Path | None = None, *, problems: int | None = None, num_samples: int | None = None, seed: int = 1
) -> dict[str, Outcome]:
    """Run every stage, judge the models on the same held-out problems, and print the table.

    Args:
        path: the pipeline file.
        output_dir: in place of the file's own; the stages' folders move along.
        problems: in place of the file's own.
        num_samples: in place of the file's own.
        seed: of every stage and of the sampling.

    Returns:
        Outcomes by stage name.

    Raises:
        RecipeError: the file, a recipe or something a stage needs cannot be used.
        SystemExit: a stage ended with an error, whose status is passed on; 1 where preflight says that it should not begin.
    """
    pipeline = read_pipeline(path)
    judged = {"problems": pipeline.problems, "num_samples": pipeline.num_samples, "seed": seed}
    judged |= {key: value for key, value in (("problems", problems), ("num_samples", num_samples)) if value is not None}
    if min(judged["problems"], judged["num_samples"]) < 1:
        raise RecipeError("problems and num_samples are 1 or more")
    run = _Run(pipeline, output_dir or Path(pipeline.output_dir), {"seed": str(seed)}, judged)
    # A recipe that cannot be read should not wait for the stages before it.
    for stage in pipeline.stages:
        if stage.recipe:
            _load(run, stage)
    began = time.monotonic()
    outcomes: dict[str, Outcome] = {}
    for number, stage in enumerate(pipeline.stages, start=1):
        runtime.say(f"\n=== {number}/{len(pipeline.stages)} {stage.label}" + (f": {stage.says}" if stage.says else ""))
        outcomes[stage.name] = _run_stage(run, stage)
    minutes = (time.monotonic() - began) / 60
    table = _report(run, outcomes)
    run.output_dir.mkdir(parents=True, exist_ok=True)
    run_dir.write_whole(run.output_dir / "results.md", table + "\n")
    labels = {stage.name: stage.label for stage in pipeline.stages}
    kept = {name: {"label": labels[name], **asdict(outcome)} for name, outcome in outcomes.items()}
    run_dir.write_whole(run.output_dir / "results.json", json.dumps({"judged": judged, "stages": kept}, indent=1))
    runtime.say(f"\n=== Done in {minutes:.0f} minutes: {pipeline.title}\n\n{table}\n")
    last = next(outcome.scores for outcome in reversed(outcomes.values()) if outcome.scores)
    example = last.examples[0]
    runtime.say(f"One answer of the last model, to {example['question']!r}:\n{example['completion']}\n")
    runtime.say(f"runs and models:  {run.output_dir}/\nthis table:       {run.output_dir / 'results.md'}")
    _write_reports(run)
    return outcomes


def _write_reports(run: _Run) -> None:
    """Each trained stage's report again, now that its model is judged, one of all of them, and where they lie."""
    trained = [Path(_load(run, stage)[0].training.output_dir) for stage in run.pipeline.stages if stage.method in _TRAINS]
    for folder in trained:
        report.refresh(folder)
    written = [folder / report.REPORT_FILE for folder in trained]
    if len(trained) > 1:
        overlaid = run.output_dir / report.REPORT_FILE
        report.refresh(*trained, output=overlaid)
        written.append(overlaid)
    for number, path in enumerate(written):
        runtime.say(("reports:" if number == 0 else "").ljust(18) + str(path))


def _run_stage(run: _Run, stage: Stage) -> Outcome:
    seconds = None
    model = stage.model
    if stage.recipe:
        recipe, argv = _load(run, stage)
        folder = Path(recipe.training.output_dir)
        if _is_current(recipe, folder):
            runtime.say(f"already done: {folder}")
        else:
            if stage.method == "grpo" and run.pipeline.preflight:
                _preflight(run.pipeline.preflight, stage, argv)
            seconds = _subprocess([sys.executable, "-m", f"r1_recipes.{stage.method}", *argv])
        if stage.method == "generate":
            return Outcome(yielded=_yielded(folder), seconds=seconds)
        model = str(folder)
    return Outcome(scores=_judge(run, stage, model), seconds=seconds)


def _yielded(folder: Path) -> dict[str, Any]:
    path = folder / "dataset" / "yield.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path}: cannot be read ({first_line(error)[:-1]}); remove {folder} to make it again") from error


def _preflight(settings: Preflight, stage: Stage, argv: list[str]) -> None:
    """Have the model that the stage starts from answer a few prompts, and print whether GRPO could learn from them.

    Raises:
        SystemExit: 1 where it could not; the reason is on stdout.
    """
    runtime.say(f"--- preflight (all that it finds: python -m r1_recipes.preflight {shlex.join(masked_words(argv))})")
    limits = ["--groups", str(settings.groups), "--seconds", str(settings.seconds)]
    try:
        _subprocess([sys.executable, "-m", "r1_recipes.preflight", *argv, "--method", stage.method, *limits, "--brief"])
    except SystemExit:
        sys.stderr.write(f"\nstage {stage.name} was not begun; change its recipe, and the same command goes on from here\n")
        raise
    runtime.say("---")


def _load(run: _Run, stage: Stage) -> tuple[Recipe, list[str]]:
    """The stage's recipe, with every path below the pipeline's folder moved to where this run writes."""
    settings = read_yaml(Path(stage.recipe))
    wanted = {**settings, **(stage.overrides or {})}
    moved = {key: _moved(value, run.pipeline.output_dir, str(run.output_dir)) for key, value in wanted.items()}
    changes = {key: value for key, value in moved.items() if value != settings.get(key)}
    argv = [stage.recipe]
    for key, value in {**changes, **run.overrides}.items():
        argv += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    return load(argv, stage.method), argv


def _moved(value: Any, before: str, after: str) -> Any:
    if isinstance(value, dict):
        return {key: _moved(item, before, after) for key, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, before, after) for item in value]
    if isinstance(value, str) and (value == before or value.startswith(before.rstrip("/") + "/")):
        return after + value[len(before) :]
    return value


def _is_current(recipe: Recipe, folder: Path) -> bool:
    """Whether the folder holds this stage, finished, as today's recipe and today's earlier stages would make it.

    Raises:
        RecipeError: it is finished, and today's would differ; naming what changed is kinder than training over it.
    """
    if not run_dir.is_finished(folder):
        return False
    changed = run_dir.changed_settings(recipe, folder)
    changed += [f"the run in {start}" for start in run_dir.made_from_others(recipe, folder)]
    if changed:
        raise RecipeError(f"{folder} was made before {', '.join(changed)} changed; remove {folder} to make it again")
    return True


def _subprocess(command: list[str]) -> float:
    """Run a stage as a process of its own: it gives its memory back, and is what a user would type. Returns its seconds.

    The stage gets every request to stop once, through this process, and ends with it, also after a kill -9.
    """
    began = time.monotonic()
    asked: list[int] = []
    process: subprocess.Popen | None = None

    def pass_on(number: int, frame: Any) -> None:
        asked.append(number)
        if process is not None:
            process.send_signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in runtime.stop_signals()}
    try:
        # In a group of its own, a terminal's Ctrl-C does not reach it a second time.
        process = subprocess.Popen(
            command, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"}, process_group=0, preexec_fn=_end_with_parent
        )
        if asked:  # while it was being started
            process.terminate()
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if status == 130 or (asked and status):
        raise KeyboardInterrupt
    if status < 0:
        reason = ": usually the machine ran out of memory" if -status == signal.SIGKILL else ""
        raise RecipeError(f"{' '.join(command[1:4])} was ended by signal {-status}{reason}; the same command goes on from here")
    if status:
        raise SystemExit(status)
    return time.monotonic() - began


def _end_with_parent() -> None:
    """Have Linux send this process SIGTERM, which saves a checkpoint, when its parent is gone."""
    if sys.platform == "linux":
        _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _judge(run: _Run, stage: Stage, model: str) -> Scores:
    """Scores of one model, remembered beside the runs so that a second call need not repeat them."""
    from r1_recipes.embedded import model_path

    recipe = load([run.pipeline.judge, "--model_name_or_path", model], "grpo")
    # Another judge, or other weights under the same name, make other scores.
    # As the file says it: what follows the machine would make a moved folder's scores another judge's.
    settings = {key: value for key, value in masked(read_yaml(Path(run.pipeline.judge))).items() if key != "model_name_or_path"}
    judged = {**run.judged, "judge": settings, "weights": run_dir.weights_stamp(Path(model_path(model, recipe.script.hub)))}
    path = run.output_dir / f"scores_{stage.name}.json"
    if path.is_file():
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["judged"] == judged and kept["scores"].get("judged_on") and kept["scores"]["model"] == model:
                return Scores(**kept["scores"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("%s cannot be read (%s); the model is judged again", path, first_line(error)[:-1])
    recipe.script.max_eval_samples = run.judged["problems"]
    rows, what = rows_to_judge(recipe)
    scores = evaluate_model(
        model,
        rows,
        recipe,
        num_samples=run.judged["num_samples"],
        batch_size=BATCH_SIZE,
        seed=run.judged["seed"],
        label=stage.name,
        judged_on=what,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    run_dir.write_whole(path, json.dumps({"judged": judged, "scores": asdict(scores)}))
    runtime.say(f"{stage.label}: greedy {sum(scores.greedy) / len(rows):.1%}, sampled {sum(scores.sampled) / len(rows):.1%} right")
    return scores


def _report(run: _Run, outcomes: dict[str, Outcome]) -> str:
    pipeline = run.pipeline
    labels = {stage.name: stage.label for stage in pipeline.stages}
    lines = markdown_table([(labels[name], outcome.scores, outcome.yielded) for name, outcome in outcomes.items()]).splitlines()
    for before, after in pipeline.compare:
        what = f"{labels[after]} over {labels[before]}"
        lines += ["", difference_line(outcomes[before].scores, outcomes[after].scores, what)]
    samples, what = run.judged["num_samples"], next(o.scores for o in outcomes.values() if o.scores).judged_on
    lines += ["", f"Judged on {what}, {samples} sampled answer{'s'[: samples > 1]} each; seed "]
    lines[-1] += f"{run.judged['seed']}; in brackets: 95 % intervals."
    return "\n".join([*lines, pipeline.note] if pipeline.note else lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; see the module's first lines.

    Raises:
        SystemExit: 2 where something needed is missing, 130 where it was stopped.
    """
    parser = argparse.ArgumentParser(prog="python -m r1_recipes.pipeline", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("pipeline", type=Path, help="a file in recipes/pipelines")
    parser.add_argument("--output_dir", type=Path, help="where the runs go, in place of the file's own")
    parser.add_argument("--problems", type=int, help="held-out problems to judge, in place of the file's own")
    parser.add_argument("--num_samples", type=int, help="sampled answers a problem, in place of the file's own")
    parser.add_argument("--seed", type=int, default=1, help="of every stage and of the sampling (default 1)")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("r1_recipes").setLevel(logging.INFO)
    with runtime.reported_errors():
        settings = {"problems": options.problems, "num_samples": options.num_samples, "seed": options.seed}
        try:
            run_pipeline(options.pipeline, options.output_dir, **settings)
        except KeyboardInterrupt:
            sys.stderr.write("\nstopped; the same command goes on from here\n")
            raise SystemExit(130) from None


if __name__ == "__main__":
    main()
