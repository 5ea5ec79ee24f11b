"""Measure the accuracy of models on a recipe's held-out rows, greedy and sampled, with intervals.

``python -m r1_recipes.evaluate recipes/NAME.yaml --model A --model B [--num_samples 4] [--backend
vllm] [--output DIR]``

docs/evaluate_and_serve.md explains the numbers.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import write_whole
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.evaluation import ask, evaluate_model, for_generation, held_out_rows
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.recipe import Recipe, load_recipe
from r1_recipes.recipe.types import Backend
from r1_recipes.scoring import report


def load_benchmark(argv: Sequence[str], *, asks: bool = False) -> Recipe:
    """Load a benchmark (which has ``num_samples``) or a GRPO recipe. ``asks``: or any other."""
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
        "seconds, with a tiny random model on a few rows. Defaults are the benchmark's.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("recipe", help="a benchmark or a GRPO recipe: test split, format, rewards, sampling")
    add("--model", action="append", help="path or id; repeat it to compare (default: the recipe's)")
    add("--num_samples", type=int, help="samples per row; 0: only greedy (else 4)")
    add("--batch_size", type=int, help="completions generated at once (else 128)")
    add("--seed", type=int, help="seed of the sampling (else 0)")
    add("--backend", choices=get_args(Backend), help="what generates (else transformers)")
    add("--output", type=Path, help="folder for numbers and completions, from which it resumes")
    add("--ask", metavar="QUESTION", help="only print each model's answer to this question")
    with console.reported_errors():
        options, overrides = parser.parse_known_args(argv)
        recipe = load_benchmark([options.recipe, *overrides], asks=options.ask is not None)
        console.set_up_logging(recipe.training)
        chosen: dict[str, Any] = {
            "num_samples": 4,
            "batch_size": 128,
            "seed": 0,
            "backend": "transformers",
        }
        if recipe.method == "evaluate":
            script, training = recipe.script, recipe.training
            chosen |= {"num_samples": script.num_samples, "backend": script.backend}
            chosen |= {"batch_size": training.generation_batch_size, "seed": training.seed}
        chosen |= {key: vars(options)[key] for key in chosen if vars(options)[key] is not None}
        num_samples, backend = chosen.pop("num_samples"), chosen["backend"]
        _check(recipe, num_samples, chosen["batch_size"], backend)
        models = options.model or [recipe.model.model_name_or_path]
        if None in models:
            raise RecipeError(
                f"--model: missing, and {options.recipe} names no model. Fix: a checkpoint's "
                "folder, or a hub id"
            )
        if options.ask is not None:
            for name in models:
                answer = ask(for_generation(recipe, name, **chosen), options.ask, backend)
                console.say(f"=== {name}\n{answer}\n")
            return
        rows, judged_on = held_out_rows(recipe)
        scores = []
        for number, name in enumerate(models, start=1):
            # Two checkpoints may have the same folder name.
            folder = options.output and options.output / f"{number}_{Path(name).name}"
            asked = for_generation(recipe, name, **chosen)
            scores.append(evaluate_model(asked, rows, num_samples, backend, folder))
        text = report(scores, judged_on)
        console.say(text)
        if options.output:
            # The bounds of a single row are infinite, which JSON cannot write.
            entries = json.loads(json.dumps(scores), parse_constant=lambda infinity: None)
            content = json.dumps(entries, indent=1, ensure_ascii=False)
            write_whole(options.output / "results.json", content)
            write_whole(options.output / "results.md", text + "\n")


def _check(recipe: Recipe, num_samples: int, batch_size: int, backend: str) -> None:
    if num_samples < 0 or batch_size < 1:
        raise RecipeError("--num_samples must be 0 or more, and --batch_size 1 or more")
    if recipe.training.temperature == 0 and num_samples > 1:
        raise RecipeError(
            f"--num_samples: temperature 0 gives {num_samples} identical samples per row. "
            f"Fix: --num_samples 0, or a temperature above 0"
        )
    if backend == "openai" and recipe.script.chat_template:
        raise RecipeError(
            f"{recipe.path}: chat_template: has no effect with backend openai, because the server "
            f"applies its own template. Fix: remove chat_template"
        )


if __name__ == "__main__":
    main()
