"""Generate for every row, and judge: one model on a recipe's rows."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.completions import get_backend, load_format
from r1_recipes.completions.store import ShardStore, row_digest
from r1_recipes.completions.types import Backend, Completion, Request, SamplingPlan
from r1_recipes.data.load import build_prompt
from r1_recipes.metrics.rows import judges_of, reward_functions
from r1_recipes.metrics.scores import Scores, judge
from r1_recipes.recipe import Recipe
from r1_recipes.recipe.types import SamplingSettings
from r1_recipes.runs import run_dir

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

# Completions generated at once: enough to fill a core's matrix units, little enough for a laptop's memory.
BATCH_SIZE = 128


def evaluate_model(
    name: str,
    rows: Dataset,
    recipe: Recipe,
    *,
    num_samples: int,
    batch_size: int,
    seed: int,
    backend: str = "transformers",
    folder: Path | None = None,
    with_models: bool = False,
    judged_on: str = "",
) -> Scores | None:
    """Generate greedily and ``num_samples`` times at the recipe's temperature for every row, and judge.

    If the run has several processes, each generates its share of the rows, and all of them must call this; the first gets the scores.

    Args:
        name: model path or id; for backend ``"openai"``, the name that the server knows the model by.
        recipe: a benchmark or a GRPO recipe; its format, rewards and generation settings are used.
        folder: keeps the completions, and an interrupted evaluation goes on from them.
        with_models: score with ``reward_model`` and ``match_judge`` too, if the recipe names them.
        judged_on: what ``rows`` are, as :func:`r1_recipes.metrics.rows.rows_to_judge` says.

    Raises:
        RecipeError: the model cannot be loaded, or ``folder`` holds completions of other rows, settings or weights.
    """
    if backend == "openai" and recipe.script.chat_template:
        raise RecipeError(f"{recipe.path}: backend openai: the server has the chat template; leave chat_template out")
    recipe = _for_generation(recipe, name, batch_size, seed)
    tokenizer, fmt = load_format(recipe, backend)
    judges = judges_of(recipe, fmt, with_models=with_models)
    rewards = reward_functions(recipe, fmt, with_models=with_models)
    if rewards and tokenizer is None:
        logger.info("the recipe's rewards are left out: some count tokens, and the server keeps the tokenizer")
        rewards = {}
    plans = [(0.0, 1)]
    if num_samples:
        plans.append((recipe.training.temperature, num_samples))
    digests = _digests(recipe, rows, plans, backend) if folder else []
    with ShardStore(folder / "completions") if folder else contextlib.nullcontext() as store:
        done = {}
        if store is not None:
            store.check_rows(digests)
            done = {record["index"]: [Completion(**completion) for completion in record["completions"]] for record in store}
        # The first process's view: hosts may not share the folder.
        pending = processes.first(lambda: [index for index in range(len(rows)) if index not in done])
        if done and pending:
            logger.info("%s: %d of %d rows are there already", name, len(done), len(rows))
        if pending:
            mine = set(processes.share(pending))
            requests = [Request(index, prompt) for index, prompt in enumerate(rows["prompt"]) if index in mine]
            made = _generate(get_backend(recipe, tokenizer, backend), requests, plans, name, store, digests)
            done |= dict(processes.gather(list(made.items())))
    if not processes.is_main_process():
        return None
    scores, table = judge(name, fmt, rows, [done[index] for index in range(len(rows))], judges, rewards, tokenizer)
    if folder is not None:
        table.to_parquet(folder / "completions.parquet", index=False)
    return dataclasses.replace(scores, judged_on=judged_on)


def _for_generation(recipe: Recipe, name: str, batch_size: int, seed: int) -> Recipe:
    """The recipe for one model, with its sampling keys as :class:`~r1_recipes.recipe.types.SamplingSettings`."""
    shared = {f.name: getattr(recipe.training, f.name) for f in dataclasses.fields(SamplingSettings) if hasattr(recipe.training, f.name)}
    training = SamplingSettings(**{**shared, "generation_batch_size": batch_size, "seed": seed})
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, model_name_or_path=name), training=training)


def _digests(recipe: Recipe, rows: Dataset, plans: list[SamplingPlan], backend: str) -> list[str]:
    """A digest per row of everything that shapes its completions and their judgement."""
    shaping = ["seed", "max_completion_length", "top_p", "top_k", "min_p", "repetition_penalty", "vllm_max_model_length"]
    if backend == "transformers":
        shaping.append("generation_batch_size")  # it samples a batch at once
    model = recipe.model.model_name_or_path
    made_by = {name: getattr(recipe.training, name) for name in shaping}
    # "ways" are the sampling plans: the name that stored digests know them by.
    made_by |= {"ways": plans, "backend": backend, "model": model, "weights": run_dir.weights_stamp(Path(model))}
    solutions = rows["solution"] if "solution" in rows.column_names else [None] * len(rows)
    return [row_digest([prompt, made_by], solution) for prompt, solution in zip(rows["prompt"], solutions, strict=True)]


def _generate(
    backend: Backend, requests: list[Request], plans: list[SamplingPlan], name: str, store: ShardStore | None, digests: list[str]
) -> dict[int, list[Completion]]:
    from tqdm.auto import tqdm

    done: dict[int, list[Completion]] = {}
    copies = sum(count for _, count in plans)
    with tqdm(total=len(requests) * copies, desc=Path(name).name, unit="completion", disable=not processes.is_main_process()) as bar:

        def sink(index: int, completions: list[Completion], error: str | None) -> None:
            if error:
                raise RecipeError(f"row {index} cannot be completed: {error}")
            if store is not None:
                made = [dataclasses.asdict(completion) for completion in completions]
                store.append({"index": index, "digest": digests[index], "error": None, "completions": made})
            done[index] = completions
            bar.update(copies)

        backend.run(requests, sink, plans)
    return done


def ask(recipe: Recipe, name: str, question: str, backend: str) -> str:
    """A model's greedy answer to one question, in the recipe's own prompt."""
    recipe = _for_generation(recipe, name, 1, 0)
    tokenizer, fmt = load_format(recipe, backend)
    request = Request(0, build_prompt(question, fmt, recipe.script.few_shot))
    (completion,) = _generate(get_backend(recipe, tokenizer, backend), [request], [(0.0, 1)], name, None, [])[0]
    return fmt.full_text(completion.text)
