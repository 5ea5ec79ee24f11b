"""Measure the accuracy of models on a recipe's held-out rows, greedy and sampled, with intervals.

``python -m r1_recipes.evaluate recipes/NAME.yaml --model A --model B [--num_samples 4] [--backend
vllm] [--output DIR]``

Several processes (``accelerate launch``, ``torchrun``) share the rows, and the first one scores all
completions. docs/evaluate_and_serve.md explains the numbers.
"""

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from r1_recipes.common import console, processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import write_whole
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.metrics.intervals import mean_interval
from r1_recipes.metrics.run import BATCH_SIZE, Sampling, ask, evaluate_model, rows_to_judge
from r1_recipes.metrics.scores import COMPARED, Scores
from r1_recipes.metrics.tables import difference_line, differences, markdown_table
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.recipe import Recipe, load_recipe
from r1_recipes.recipe.types import Backend


def load_benchmark(argv: Sequence[str], *, asks: bool = False) -> Recipe:
    """Load the recipe of a command line, whose first word is the path.

    It must be a benchmark (which has ``num_samples``) or a GRPO recipe. With ``asks``, any training
    recipe is allowed.
    """
    keys = read_yaml(Path(argv[0]))
    method = "grpo"
    if "num_samples" in keys:
        method = "evaluate"
    elif asks and not keys.keys() & {"reward_funcs", "environment", "num_generations"}:
        method = "distill" if "teacher_model_name_or_path" in keys else "sft"
    return load_recipe(argv, method, smoke=smoke_overrides)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line. Exit with 2 if the recipe, its data or a model cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m r1_recipes.evaluate",
        description=__doc__.splitlines()[0],
        epilog="Override any key of the recipe with --key value. --smoke tries the command in "
        "seconds, with a tiny random model on a few rows.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "recipe",
        help="a benchmark or a GRPO recipe, for its test split, format, rewards and generation "
        "settings",
    )
    parser.add_argument(
        "--model",
        action="append",
        help="path or id; repeat it to compare models (default: the recipe's model)",
    )
    parser.add_argument(
        "--num_samples",
        type=int,
        help="sampled completions per row; 0: only greedy (default: the benchmark's, else 4)",
    )
    parser.add_argument(
        "--batch_size",
        type=int,
        help=f"completions generated at once (default: the benchmark's, else {BATCH_SIZE})",
    )
    parser.add_argument(
        "--seed", type=int, help="seed of the sampling (default: the benchmark's, else 0)"
    )
    parser.add_argument(
        "--backend",
        choices=get_args(Backend),
        help="what generates the completions (default: the benchmark's, else transformers)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="folder for all numbers (JSON) and completions (Parquet); an interrupted evaluation "
        "resumes from it",
    )
    parser.add_argument(
        "--with_models",
        "--with-models",
        action="store_true",
        help="also score with reward_models and match_judge (OPENAI_BASE_URL)",
    )
    parser.add_argument(
        "--ask",
        metavar="QUESTION",
        help="do not evaluate: print each model's answer to this question",
    )
    with console.reported_errors():
        options, overrides = parser.parse_known_args(argv)
        recipe = load_benchmark([options.recipe, *overrides], asks=options.ask is not None)
        console.set_up_logging(recipe.training)
        models = options.model or [recipe.model.model_name_or_path]
        if None in models:
            raise RecipeError(
                f"--model: missing, and {options.recipe} names no model. Fix: a checkpoint's "
                "folder, or a hub id"
            )
        processes.connect(use_cpu=recipe.training.use_cpu)
        if options.ask is not None:
            backend = options.backend or getattr(recipe.script, "backend", "transformers")
            for name in models:
                console.say(f"=== {name}\n{ask(recipe, name, options.ask, backend)}\n")
            return
        sampling = _sampling(recipe, options)
        rows, judged_on = rows_to_judge(recipe)
        scores: list[Any] = []
        for number, name in enumerate(models, start=1):
            # Two checkpoints may have the same folder name.
            folder = options.output / f"{number}_{Path(name).name}" if options.output else None
            scores.append(
                evaluate_model(
                    name,
                    rows,
                    recipe,
                    sampling,
                    folder=folder,
                    with_models=options.with_models,
                    judged_on=judged_on,
                )
            )
        if None not in scores:  # only the first process has them
            _report(scores, options.output)


def _sampling(recipe: Recipe, options: argparse.Namespace) -> Sampling:
    """Return how to sample: from the command line, the benchmark, or the defaults, in this
    order.
    """
    sampling = Sampling()
    if recipe.method == "evaluate":
        training = recipe.training
        script = recipe.script
        sampling = Sampling(
            script.num_samples, training.generation_batch_size, training.seed, script.backend
        )
    typed = {name: getattr(options, name) for name in asdict(sampling)}
    given = {name: value for name, value in typed.items() if value is not None}
    sampling = replace(sampling, **given)
    if sampling.num_samples < 0 or sampling.batch_size < 1:
        raise RecipeError("--num_samples must be 0 or more, and --batch_size 1 or more")
    if recipe.training.temperature == 0 and sampling.num_samples > 1:
        raise RecipeError(
            f"--num_samples: temperature 0 gives {sampling.num_samples} identical samples per row. "
            f"Fix: --num_samples 0, or a temperature above 0"
        )
    return sampling


def _report(scores: Sequence[Scores], output: Path | None) -> None:
    """Print the tables. With ``output``, write them to ``results.md`` and all numbers to
    ``results.json``.
    """
    parts = [markdown_table([(score.model, score, None) for score in scores], full=True)]
    entries = [_entry(score) for score in scores]
    for number, (before, after) in enumerate(itertools.pairwise(scores), start=1):
        what = f"{after.model} compared with {before.model}"
        parts.append(difference_line(before, after, what, full=True))
        entries[number]["difference"] = {"over": before.model, **differences(before, after)}
    parts.append(f"Judged on {scores[0].judged_on}.")
    report = "\n\n".join(parts)
    console.say(report)
    if output:
        # The bounds of a single row are infinite, which JSON cannot write.
        entries = json.loads(json.dumps(entries), parse_constant=lambda infinity: None)
        write_whole(output / "results.json", json.dumps(entries, indent=1, ensure_ascii=False))
        write_whole(output / "results.md", report + "\n")


def _entry(scores: Scores) -> dict[str, Any]:
    """Return one model's part of ``results.json``. Intervals are ``[mean, low, high]``."""
    n = scores.num_samples
    intervals = {
        name: mean_interval(values, max(1, n))
        for name in (*COMPARED, "majority")
        if (values := getattr(scores, name))
    }
    ks = {2**i for i in range(n.bit_length())}
    if n:
        ks.add(n)
    pass_at = {k: mean_interval(scores.pass_at(k), n) for k in sorted(ks)}
    return {**asdict(scores), "intervals": intervals, "pass_at": pass_at}


if __name__ == "__main__":
    main()
