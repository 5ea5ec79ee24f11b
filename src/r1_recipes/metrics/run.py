"""Generate for every row, and judge: one model on a recipe's rows."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.processes import is_main_process
from r1_recipes.completions.backends import Backend, Completion, Request, get_backend, load_format
from r1_recipes.completions.store import ShardStore, row_digest
from r1_recipes.data.load import build_prompt
from r1_recipes.metrics.rows import judges_of, reward_functions
from r1_recipes.metrics.scores import Scores, judge
from r1_recipes.recipe.load import Recipe
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
    label: str | None = None,
    backend: str = "transformers",
    folder: Path | None = None,
    with_models: bool = False,
    judged_on: str = "",
) -> Scores | None:
    """Generate greedily and ``num_samples`` times at the recipe's temperature for every row, and judge.

    Where the run has several processes, each generates its share of the rows, and all of them have to call this.

    Args:
        name: model path or id.
        rows: ``prompt``, ``solution`` and task columns, as :func:`r1_recipes.data.load_dataset` gives them.
        recipe: a benchmark or a GRPO recipe; its format, rewards and generation settings are used.
        num_samples: sampled completions a row; 0: only the greedy one.
        batch_size: completions generated at once (Transformers).
        seed: of the sampling.
        label: what the progress bar calls it; ``None``: the last part of the name.
        backend: ``"transformers"``, ``"vllm"`` or ``"openai"``, a server that knows the model by this name.
        folder: completions are kept there, and an interrupted evaluation goes on from them; ``None``: nowhere.
        with_models: score with ``reward_model`` and ``match_judge`` too, if the recipe names them.
        judged_on: what the rows are, for the scores.

    Returns:
        The scores; ``None`` on processes other than the first.

    Raises:
        RecipeError: the model cannot be loaded, or ``folder`` holds completions made otherwise.
    """
    if backend == "openai" and recipe.script.chat_template:
        raise RecipeError(f"{recipe.path}: backend openai: the server has the chat template; leave chat_template out")
    recipe = _for_generation(recipe, name, batch_size, seed)
    tokenizer, fmt = load_format(recipe, backend)
    judges = judges_of(recipe, fmt, with_models=with_models)
    rewards = {key: reward for key, reward in reward_functions(recipe, fmt, with_models=with_models) if reward is not None}
    if rewards and tokenizer is None:
        logger.info("the recipe's rewards are left out: some count tokens, and the server keeps the tokenizer")
        rewards = {}
    ways = [(0.0, 1), (recipe.training.temperature, num_samples)][: 2 if num_samples else 1]
    if folder is None:
        requests = processes.share([Request(index, prompt) for index, prompt in enumerate(rows["prompt"])])
        done = dict(processes.gather(list(_generate(get_backend(recipe, tokenizer, backend), requests, ways, label or name).items())))
    else:
        done = _generate_and_keep(recipe, tokenizer, rows, ways, label or name, backend, folder)
    if not is_main_process():
        return None
    groups = [done[index] for index in range(len(rows))]
    scores, table = judge(name, fmt, rows, groups, num_samples, judges, rewards, tokenizer)
    if folder is not None:
        from datasets import Dataset

        Dataset.from_list(table).to_parquet(str(folder / "completions.parquet"))
    return dataclasses.replace(scores, judged_on=judged_on)


def _for_generation(recipe: Recipe, name: str, batch_size: int, seed: int) -> Recipe:
    """The recipe with its sampling keys as :class:`~r1_recipes.recipe.types.SamplingSettings`, for one model."""
    shared = {f.name: getattr(recipe.training, f.name) for f in dataclasses.fields(SamplingSettings) if hasattr(recipe.training, f.name)}
    training = SamplingSettings(**{**shared, "generation_batch_size": batch_size, "seed": seed})
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, model_name_or_path=name), training=training)


def _generate(
    backend: Backend,
    requests: list[Request],
    ways: list[tuple[float, int]],
    label: str,
    keep: Callable[[int, list[Completion]], None] | None = None,
) -> dict[int, list[Completion]]:
    from tqdm.auto import tqdm

    done: dict[int, list[Completion]] = {}
    copies = sum(count for _, count in ways)
    hidden = not is_main_process()
    with tqdm(total=len(requests) * copies, desc=Path(label).name, unit="completion", disable=hidden) as bar:

        def sink(index: int, completions: list[Completion], error: str | None) -> None:
            if error:
                raise RecipeError(f"row {index} cannot be completed: {error}")
            if keep is not None:
                keep(index, completions)
            done[index] = completions
            bar.update(copies)

        backend.run(requests, sink, ways)
    return done


def _generate_and_keep(
    recipe: Recipe, tokenizer: Any, rows: Dataset, ways: list[tuple[float, int]], label: str, backend: str, folder: Path
) -> dict[int, list[Completion]]:
    solutions = rows["solution"] if "solution" in rows.column_names else [None] * len(rows)
    # Everything that shapes a completion; whoever changes it has to choose another folder. Transformers samples a batch at once.
    shaping = ("seed", "max_completion_length", "top_p", "top_k", "min_p", "repetition_penalty", "vllm_max_model_length")
    shaping += ("generation_batch_size",) if backend == "transformers" else ()
    made_by = {name: getattr(recipe.training, name) for name in shaping}
    made_by |= {"ways": ways, "backend": backend, "model": recipe.model.model_name_or_path}
    made_by["weights"] = run_dir.weights_stamp(Path(recipe.model.model_name_or_path))
    digests = [row_digest([prompt, made_by], solution) for prompt, solution in zip(rows["prompt"], solutions, strict=True)]
    with ShardStore.shared(folder / "completions") as store:
        other = [index for index, digest in store.digests.items() if index >= len(digests) or digests[index] != digest]
        if other:
            raise RecipeError(f"{folder}: holds completions of other rows, settings or weights (row {other[0]}); choose another --output")

        def keep(index: int, completions: list[Completion]) -> None:
            record = {"index": index, "digest": digests[index], "error": None, "completions": [asdict(c) for c in completions]}
            store.append([record])

        pending = [Request(index, rows[index]["prompt"]) for index in range(len(rows)) if index not in store.digests]
        if pending:
            if len(store):
                logger.info("%s: %d of %d rows are there already", label, len(store), len(rows))
            _generate(get_backend(recipe, tokenizer, backend), processes.share(pending), ways, label, keep)
        processes.wait()
        if not is_main_process():
            return {}
        store.reload()
        store.check_whole(len(rows))
        return {record["index"]: [Completion(**c) for c in record["completions"]] for record in store}


def ask(recipe: Recipe, models: Sequence[str], question: str, backend: str = "transformers") -> list[str]:
    """Each model's greedy answer to one question, in the recipe's own prompt."""
    answers = []
    for name in models:
        own = _for_generation(recipe, name, 1, 0)
        tokenizer, fmt = load_format(own, backend)
        request = Request(0, build_prompt(question, fmt, recipe.script.few_shot))
        (completion,) = _generate(get_backend(own, tokenizer, backend), [request], [(0.0, 1)], name)[0]
        answers.append(fmt.full_text(completion.text))
    return answers
