"""Evaluate a model: the held-out rows, its completions of them, and their scores."""

from __future__ import annotations

import dataclasses
import logging
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from r1_recipes.common.errors import RecipeError
from r1_recipes.data.load import build_prompt, drop_overlap, load_dataset
from r1_recipes.data.sources import split_fix
from r1_recipes.generation import get_generator, load_format
from r1_recipes.models.smoke import example_rows
from r1_recipes.models.tokenizer import recipe_format
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe.types import Recipe, SamplingSettings
from r1_recipes.rewards.call import score
from r1_recipes.scoring import Scores, judges_of, reward_functions, score_table, summarize
from r1_recipes.store import complete, made_by

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

_TRIED = 16  # rows on which rewards are tried before anything is generated


def held_out_rows(recipe: Recipe) -> tuple[Dataset, str]:
    """Return the rows of the test split, and a description of them.

    Raise RecipeError if most of them are training questions, or if no reward scores them.
    """
    script, fmt = recipe.script, recipe_format(recipe)
    script.max_prompt_tokens = None  # the limit is for training
    source = example_rows(script, "grpo") if script.smoke else None
    rows, report = load_dataset(script, fmt, "grpo", split="test", rows=source)
    logger.info("rows to score: %s", report)
    name, split = script.dataset_name or "dataset_mixture", script.dataset_test_split
    said = f"{len(rows)} rows of split {split!r} of {name}"
    if script.dataset_name and split == script.dataset_train_split:
        said += ", which are training rows"
    elif recipe.method == "grpo" and not script.smoke:  # a benchmark has no training rows
        said += _shared_with_training(recipe, fmt, rows, said)
    judges = judges_of(recipe, reward_functions(recipe, fmt), fmt)
    sample = rows.select(range(min(_TRIED, len(rows)))).remove_columns(
        [column for column in ("image",) if column in rows.column_names]
    )
    tried = [score(n, judge, [*sample], [""] * len(sample), None) for n, judge in judges.items()]
    if judges and all(value is None for value in chain(*tried)):
        gold = sample[0].get("solution")
        raise RecipeError(
            f"{recipe.path}: reward_funcs: {', '.join(judges)} cannot score the rows (first "
            f"reference answer {gold!r}). Fix: for reference answers in words, reward_funcs: "
            f"[answer_match]"
        )
    return rows, said


def _shared_with_training(recipe: Recipe, fmt: ResponseFormat, rows: Dataset, said: str) -> str:
    """Return what to say about rows that are training questions, too. Refuse if most are."""
    script = recipe.script
    if recipe.training.eval_strategy != "no":  # then training drops shared questions
        return ""
    _, shared = drop_overlap(rows, load_dataset(script, fmt, "grpo", split="train")[0])
    if shared > len(rows) / 2:
        raise RecipeError(
            f"{recipe.path}: dataset_test_split: {shared} of {said} are also training questions, "
            f"so this would not measure held-out accuracy. Fix: {split_fix(len(rows))}; or, to "
            f"measure accuracy on training rows, --dataset_test_split {script.dataset_train_split}"
        )
    return f", {shared} of which are also training questions" if shared else ""


def for_generation(recipe: Recipe, name: str, batch_size: int, seed: int, backend: str) -> Recipe:
    """Return the recipe for a model, with its sampling settings.

    With a training recipe, vLLM uses the precision of training instead of that of the weights. It
    uses the recipe's engine settings only if they are on the command line, because in training the
    engine shares the GPU.
    """
    trained = recipe.training
    model = dataclasses.replace(recipe.model, model_name_or_path=name)
    names = {field.name for field in dataclasses.fields(SamplingSettings)}
    if recipe.method != "evaluate":
        names -= {"vllm_gpu_memory_utilization", "vllm_max_model_length"} - recipe.typed
        if backend == "vllm" and "dtype" not in recipe.typed and (trained.bf16 or trained.fp16):
            model.dtype = "bfloat16" if trained.bf16 else "float16"
    shared = {name: getattr(trained, name) for name in names if hasattr(trained, name)}
    shared |= {"generation_batch_size": batch_size, "seed": seed}
    return dataclasses.replace(recipe, model=model, training=SamplingSettings(**shared))


def evaluate_model(
    recipe: Recipe, rows: Dataset, num_samples: int, backend: str, folder: Path | None = None
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
    name, settings = str(recipe.model.model_name_or_path), recipe.training
    tokenizer, fmt = load_format(recipe, backend)
    plans = [(0.0, 1), (settings.temperature, num_samples)][: 1 + bool(num_samples)]
    groups = complete(
        lambda: get_generator(recipe, tokenizer, fmt, backend, rows),
        rows,
        plans,
        folder and folder / "completions.jsonl",
        made_by(recipe, tokenizer, backend, plans),
        settings.generation_batch_size,
        Path(name).name,
    )
    table = score_table(recipe, fmt, rows, groups, tokenizer)
    if folder:
        table.to_parquet(folder / "completions.parquet", index=False)
    return {"model": name, **summarize(table)}


def ask(recipe: Recipe, question: str, backend: str) -> str:
    """Return a model's greedy answer to a question, with the prompt of the recipe."""
    from datasets import Dataset

    if recipe.script.environment:
        raise RecipeError("--ask: an environment needs a row to play. Fix: remove --ask")
    tokenizer, fmt = load_format(recipe, backend)
    question = (recipe.script.prompt_template or "{question}").replace("{question}", question)
    rows = Dataset.from_list([{"prompt": build_prompt(question, fmt, recipe.script.few_shot)}])
    [[made]] = complete(
        lambda: get_generator(recipe, tokenizer, fmt, backend, rows), rows, [(0.0, 1)]
    )
    return fmt.full_text(made.text)
