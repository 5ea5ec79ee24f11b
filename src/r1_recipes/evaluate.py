"""Measure the accuracy of models on a recipe's held-out rows, greedy and sampled, with intervals.

``python -m r1_recipes.evaluate recipes/NAME.yaml --model A --model B [--num_samples 4] [--backend
vllm] [--output DIR]``

docs/evaluate_and_serve.md explains the numbers.
"""

import argparse
import dataclasses
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError, require
from r1_recipes.common.files import read_yaml, write_whole
from r1_recipes.data.load import drop_overlap, load_dataset
from r1_recipes.data.prompt import build_prompt
from r1_recipes.data.sources import split_fix
from r1_recipes.generation import complete, load_format
from r1_recipes.models.load import recipe_format
from r1_recipes.models.smoke import smoke_overrides, smoke_rows
from r1_recipes.recipe import Recipe, load_recipe
from r1_recipes.recipe.types import Backend, SamplingSettings
from r1_recipes.rewards import answer_rewards
from r1_recipes.rewards.call import try_own_rewards
from r1_recipes.scoring import Scores, report, reward_functions, score_table, summarize

# With `python -m`, __name__ is "__main__".
logger = logging.getLogger("r1_recipes.evaluate")

# Of a training recipe, these keys are about training. They count only on the command line.
_OF_TRAINING = {
    "generation_batch_size",
    "seed",
    "vllm_gpu_memory_utilization",
    "vllm_max_model_length",
}


def load_benchmark(argv: Sequence[str]) -> Recipe:
    # A benchmark has num_samples.
    method = "evaluate" if "num_samples" in read_yaml(Path(argv[0])) else "grpo"
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
    add("--batch_size", type=int, help="completions generated at once")
    add("--backend", choices=get_args(Backend), help="what generates (else transformers)")
    add("--output", type=Path, help="folder for numbers and completions, from which it resumes")
    add("--ask", metavar="QUESTION", help="only print each model's answer to this question")
    with console.reported_errors():
        options, overrides = parser.parse_known_args(argv)
        recipe = load_benchmark([options.recipe, *overrides])
        console.set_up_logging()
        for warning in dict.fromkeys(recipe.warnings):
            logger.warning(warning)
        # A GRPO recipe has neither key.
        backend = options.backend or getattr(recipe.script, "backend", "transformers")
        num_samples = (
            getattr(recipe.script, "num_samples", 4)
            if options.num_samples is None
            else options.num_samples
        )
        if backend == "openai" and recipe.script.chat_template:
            raise RecipeError(
                f"{recipe.path}: chat_template: has no effect with backend openai, because the "
                "server applies its own template. Fix: remove chat_template"
            )
        models = options.model or [recipe.model.model_name_or_path]
        if None in models:
            raise RecipeError(
                f"--model: missing, and {options.recipe} names no model. Fix: a checkpoint's "
                "folder, or a hub id"
            )
        if options.ask is not None:
            for name in models:
                answer = ask(for_generation(recipe, name, backend), options.ask, backend)
                console.say(f"=== {name}\n{answer}\n")
            return
        rows, judged_on = held_out_rows(recipe)
        scores = []
        for number, name in enumerate(models, start=1):
            # Two checkpoints may have the same folder name.
            folder = options.output and options.output / f"{number}_{Path(name).name}"
            asked = for_generation(recipe, name, backend, options.batch_size)
            scores.append(evaluate_model(asked, rows, num_samples, backend, folder))
        text = report(scores, judged_on)
        console.say(text)
        if options.output:
            # The bounds of a single row are infinite, which JSON cannot write.
            entries = json.loads(json.dumps(scores), parse_constant=lambda infinity: None)
            content = json.dumps(entries, indent=1, ensure_ascii=False)
            write_whole(options.output / "results.json", content)
            write_whole(options.output / "results.md", text + "\n")


def held_out_rows(recipe: Recipe) -> tuple[Any, str]:
    """Return the rows of the test split, and a description of them.

    Raise RecipeError if most of them are training questions, or if your own reward fails on them.
    """
    script, fmt = recipe.script, recipe_format(recipe)
    script.max_prompt_tokens = None  # the limit is for training
    source = smoke_rows(script, "grpo") if script.smoke else None
    rows, found = load_dataset(script, fmt, "grpo", split="test", rows=source)
    logger.info("rows to score: %s", found)
    require("image" not in rows.features, "mapper", "one without pictures", script.mapper)
    functions = reward_functions(recipe, fmt)
    # What says whether an answer is right: an environment, such a reward, or a reference answer
    require(
        script.environment
        or "solution" in rows.features
        or not functions.keys().isdisjoint(answer_rewards(functions)),
        "reward_funcs",
        "one that judges answers",
        script.reward_funcs,
    )
    try_own_rewards([*functions], [*functions.values()], rows, fmt, None)
    test, train = script.dataset_test_split, script.dataset_train_split
    said = f"{len(rows)} rows of split {test!r} of {script.dataset_name or 'dataset_mixture'}"
    if script.dataset_name and test == train:
        return rows, f"{said}, which are training rows"
    # A benchmark has no training rows. Training with an evaluation drops shared questions.
    if recipe.method == "evaluate" or script.smoke or recipe.training.eval_strategy != "no":
        return rows, said
    _, shared = drop_overlap(rows, load_dataset(script, fmt, "grpo", split="train")[0])
    if shared > len(rows) / 2:
        raise RecipeError(
            f"{recipe.path}: dataset_test_split: {shared} of {said} are also training questions, "
            f"so this would not measure held-out accuracy. Fix: {split_fix(len(rows))}; or, to "
            f"measure accuracy on training rows, --dataset_test_split {train}"
        )
    return rows, f"{said}, {shared} of which are also training questions" if shared else said


def for_generation(
    recipe: Recipe, name: str, backend: str, batch_size: int | None = None
) -> Recipe:
    """Return the recipe for a model, with its sampling settings.

    With a training recipe, vLLM uses the precision of training instead of that of the weights. It
    uses the recipe's engine settings only if they are on the command line, because in training the
    engine shares the GPU.
    """
    model, training = dataclasses.replace(recipe.model, model_name_or_path=name), recipe.training
    names = {field.name for field in dataclasses.fields(SamplingSettings)}
    if recipe.method != "evaluate":
        names -= _OF_TRAINING - recipe.typed
        if backend == "vllm" and "dtype" not in recipe.typed and (training.bf16 or training.fp16):
            model.dtype = "bfloat16" if training.bf16 else "float16"
    shared = {name: getattr(training, name) for name in names if hasattr(training, name)}
    settings = SamplingSettings(**{"generation_batch_size": 128, "seed": 0, **shared})
    settings.generation_batch_size = batch_size or settings.generation_batch_size
    return dataclasses.replace(recipe, model=model, training=settings)


def evaluate_model(
    recipe: Recipe, rows: Any, num_samples: int, backend: str, folder: Path | None = None
) -> Scores:
    """Generate completions for every row, and score them.

    Every row gets a greedy completion and ``num_samples`` samples at the recipe's temperature.

    Args:
        recipe: From :func:`for_generation`.
        rows: From :func:`held_out_rows`.
        num_samples: Samples of each row.
        backend: What generates.
        folder: Where to keep the completions. An interrupted evaluation resumes from there.
    """
    name = str(recipe.model.model_name_or_path)
    tokenizer, fmt = load_format(recipe, backend)
    plans = [(0.0, 1), (recipe.training.temperature, num_samples)][: 1 + bool(num_samples)]
    groups = complete(
        recipe, tokenizer, fmt, backend, rows, plans, folder and folder / "completions.jsonl"
    )
    table = score_table(recipe, fmt, rows, groups, tokenizer)
    if folder:
        table.to_parquet(folder / "completions.parquet", index=False)
    return {"model": name, **summarize(table)}


def ask(recipe: Recipe, question: str, backend: str) -> str:
    """Return a model's greedy answer to a question, with the prompt of the recipe."""
    from datasets import Dataset

    tokenizer, fmt = load_format(recipe, backend)
    question = (recipe.script.prompt_template or "{question}").replace("{question}", question)
    asked = [{"role": "user", "content": question}]
    rows = Dataset.from_list([{"prompt": build_prompt(asked, fmt, recipe.script.few_shot)}])
    [[made]] = complete(recipe, tokenizer, fmt, backend, rows, [(0.0, 1)])
    return fmt.full_text(made.text)


if __name__ == "__main__":
    main()
