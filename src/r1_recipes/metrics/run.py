"""Evaluate a model: load the held-out rows, generate completions and score them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from r1_recipes.common import processes
from r1_recipes.common.console import progress
from r1_recipes.common.errors import RecipeError
from r1_recipes.completions import get_backend, load_format
from r1_recipes.completions.store import ShardStore, row_digests
from r1_recipes.completions.types import (
    Backend,
    Completion,
    Request,
    SamplingPlan,
    close,
)
from r1_recipes.data.load import build_prompt, drop_overlap, load_dataset
from r1_recipes.data.sources import split_fix
from r1_recipes.metrics.scores import Scores, compares_with_gold, judge
from r1_recipes.models.smoke import example_rows
from r1_recipes.models.tokenizer import recipe_format
from r1_recipes.prompts import ResponseFormat
from r1_recipes.recipe import Recipe
from r1_recipes.recipe.types import SamplingSettings, namespace_value
from r1_recipes.rewards import answer_rewards, get_reward_funcs
from r1_recipes.rewards.routing import route
from r1_recipes.rewards.trial import judged_rows, readable_golds, try_own_rewards

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

# Completions per batch: enough to use a CPU core well, and few enough for the memory of a laptop.
BATCH_SIZE = 128


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The backend, and the number of samples per row in addition to the greedy completion."""

    num_samples: int = 4
    batch_size: int = BATCH_SIZE
    seed: int | None = 0
    backend: str = "transformers"


def rows_to_judge(recipe: Recipe) -> tuple[Dataset, str]:
    """Return the rows of the test split that a reward can score, and a description of them."""
    script = recipe.script
    script.max_prompt_tokens = None  # The limit is for training.
    fmt = recipe_format(recipe)
    source = example_rows(script, "grpo") if script.smoke else None
    rows, report = load_dataset(script, fmt, "grpo", split="test", rows=source)
    logger.info("rows to score: %s", report)
    rows = _judgeable(recipe, fmt, rows)
    description = _describe_rows(recipe, fmt, rows)
    return rows, f"{len(rows)} {description}"


def _describe_rows(recipe: Recipe, fmt: ResponseFormat, rows: Dataset) -> str:
    script = recipe.script
    if script.smoke:
        return "example rows (smoke)"
    origin = "the test split of dataset_mixture"
    if script.dataset_name:
        origin = f"split {script.dataset_test_split!r} of {script.dataset_name}"
    if recipe.method == "evaluate":  # A benchmark has no training rows.
        return f"rows ({origin})"
    if script.dataset_name and script.dataset_test_split == script.dataset_train_split:
        return f"training rows ({origin}), none of them held out"
    shared = 0
    if recipe.training.eval_strategy == "no":  # Else training drops shared questions.
        _, shared = drop_overlap(rows, load_dataset(script, fmt, "grpo", split="train")[0])
    if shared > len(rows) / 2:
        raise RecipeError(
            f"{recipe.path}: dataset_test_split: {shared} of {len(rows)} rows in {origin} are also "
            f"training questions, so this would not measure held-out accuracy. "
            f"Fix: {split_fix(len(rows))}; or, to measure accuracy on training rows, "
            f"--dataset_test_split {script.dataset_train_split}"
        )
    overlap = f", {shared} of which are also training questions" if shared else ""
    return f"held-out rows ({origin}){overlap}"


def _judgeable(recipe: Recipe, fmt: ResponseFormat, rows: Dataset) -> Dataset:
    """Return the rows that some reward can score. Raise if there are none."""
    judges = judges_of(recipe, fmt)
    if not judges:  # The environment scores all rows.
        return rows
    try_own_rewards(list(judges), list(judges.values()), rows, fmt, None)
    judged: set[int] = set()
    for name, reward in judges.items():
        if compares_with_gold(reward):
            golds = readable_golds(name, reward, rows)
            judged.update(index for index, readable in golds.items() if readable)
        else:
            judged.update(judged_rows(reward, rows))
    unscored = [index for index in range(len(rows)) if index not in judged]
    if not unscored:
        return rows
    first = unscored[0]
    solution = rows["solution"][first] if "solution" in rows.column_names else None
    problem = (
        f"{len(unscored)} of {len(rows)} rows cannot be scored by {', '.join(judges)} "
        f"(first: row {first}, reference answer {solution!r})"
    )
    if not judged:
        raise RecipeError(
            f"{recipe.path}: reward_funcs: {problem}. Fix: for reference answers in words, "
            f"reward_funcs: [answer_match]"
        )
    logger.warning("dataset_test_split: dropping rows: %s", problem)
    return rows.select(sorted(judged))


def judges_of(
    recipe: Recipe, fmt: ResponseFormat, *, with_models: bool = False
) -> dict[str, Callable]:
    """Return the rewards that decide what is correct, by name. The first that scores a row decides.

    Return an empty dict if the environment decides.
    """
    functions = reward_functions(recipe, fmt, with_models=with_models)
    models = recipe.reward_params.get("reward_models", ())
    if recipe.script.environment:
        from r1_recipes.extras.agents.registry import all_score

        if all_score(recipe.script.environment):
            return {}
    if models and set(recipe.script.reward_funcs) <= set(models):
        raise RecipeError(
            f"{recipe.path}: reward_funcs: names only reward_models, which cannot decide what is "
            "correct. Fix: --reward_funcs accuracy, with a reference answer in the rows"
        )
    answers = answer_rewards(name for name in functions if name not in models)
    return {
        name: functions[name] if name in functions else get_reward_funcs([name], fmt)[0]
        for name in answers
    }


def reward_functions(
    recipe: Recipe, fmt: ResponseFormat, *, with_models: bool
) -> dict[str, Callable]:
    """Return the rewards by their names in the recipe.

    Without ``with_models``, leave out reward models and judge models.
    """
    script = recipe.script
    params = dict(recipe.reward_params)
    if "match_judge" in params and not with_models:
        params["match_judge"] = ""
    functions = get_reward_funcs(script.reward_funcs, fmt, **params)
    if script.task_rewards is not None:
        functions = route(functions, script.reward_funcs, script.task_rewards, script.task_column)
    named = dict(zip(script.reward_funcs, functions, strict=True))
    if not with_models:
        for model in params.get("reward_models", ()):
            named.pop(model, None)
    return named


def evaluate_model(
    name: str,
    rows: Dataset,
    recipe: Recipe,
    sampling: Sampling,
    *,
    folder: Path | None = None,
    with_models: bool = False,
    judged_on: str = "",
) -> Scores | None:
    """Generate completions for every row, and score them.

    Every row gets a greedy completion and ``num_samples`` samples at the recipe's temperature. All
    processes must call this function, and each generates a share of the rows.

    Args:
        name: The model.
        rows: The rows of :func:`rows_to_judge`.
        recipe: The recipe, with its rewards and sampling settings.
        sampling: The backend and the number of samples.
        folder: Where to keep the completions. An interrupted evaluation resumes from there. Other
            rows, settings or weights are refused.
        with_models: Also score with ``reward_models`` and ``match_judge``.
        judged_on: The description of the rows from :func:`rows_to_judge`.

    Returns:
        The scores in the first process, ``None`` in the others.

    Raises:
        RecipeError: The recipe does not fit the backend, or a row cannot be completed.
    """
    backend = sampling.backend
    if backend == "openai" and recipe.script.chat_template:
        raise RecipeError(
            f"{recipe.path}: chat_template: has no effect with backend openai, because the server "
            f"applies its own template. Fix: remove chat_template"
        )
    recipe = _for_generation(recipe, name, sampling)
    tokenizer, fmt = load_format(recipe, backend)
    judges = judges_of(recipe, fmt, with_models=with_models)
    rewards = reward_functions(recipe, fmt, with_models=with_models)
    if rewards and tokenizer is None:
        logger.info(
            "not scoring with the recipe's rewards: some count tokens, and only the server has the "
            "tokenizer"
        )
        rewards = {}
    groups = _complete(recipe, rows, tokenizer, sampling, folder)
    if not processes.is_main_process():
        return None
    scores, table = judge(name, fmt, rows, groups, judges, rewards, tokenizer)
    if folder is not None:
        with open(folder / "completions.parquet", "wb") as file:
            table.to_parquet(file, index=False)
    return dataclasses.replace(scores, judged_on=judged_on)


def _complete(
    recipe: Recipe,
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase | None,
    sampling: Sampling,
    folder: Path | None,
) -> list[list[Completion]]:
    """Return the completions of each row. Those that ``folder`` lacks are generated and stored."""
    count = len(rows)
    plans = [(0.0, 1)]
    if sampling.num_samples:
        plans.append((recipe.training.temperature, sampling.num_samples))
    done = {}
    digests = _digests(recipe, rows, plans, sampling.backend) if folder else []
    with ShardStore(folder / "completions") if folder else contextlib.nullcontext() as store:
        if store is not None:
            store.check_rows(digests)
            for record in store:
                done[record["index"]] = [Completion(**made) for made in record["completions"]]
        # Use the list of the first process, because hosts may not share the folder.
        pending = processes.first(lambda: [index for index in range(count) if index not in done])
        if done and pending:
            logger.info(
                "%s: %d of %d rows are already complete",
                recipe.model.model_name_or_path,
                len(done),
                count,
            )
        if pending:
            prompts = rows["prompt"]
            share = pending[processes.rank() :: processes.world_size()]
            requests = [Request(index, prompts[index]) for index in share]
            model = get_backend(recipe, tokenizer, sampling.backend, rows)
            try:
                made = _generate(recipe, model, requests, plans, store, digests)
            finally:
                close(model)
            done |= dict(processes.gather(list(made.items())))
    return [done[index] for index in range(count)] if processes.is_main_process() else []


def _for_generation(recipe: Recipe, name: str, sampling: Sampling) -> Recipe:
    """Return the recipe for a model, with its sampling settings.

    With a training recipe, vLLM uses the precision of training instead of that of the weights. It
    uses the recipe's engine settings only if they are on the command line, because in training the
    engine shares the GPU.
    """
    trained = recipe.training
    model = dataclasses.replace(recipe.model, model_name_or_path=name)
    names = {f.name for f in dataclasses.fields(SamplingSettings)}
    if recipe.method != "evaluate":
        names -= {"vllm_gpu_memory_utilization", "vllm_max_model_length"} - recipe.typed
        if sampling.backend == "vllm" and "dtype" not in recipe.typed:
            if trained.bf16:
                model.dtype = "bfloat16"
            elif trained.fp16:
                model.dtype = "float16"
    shared = {name: getattr(trained, name) for name in names if hasattr(trained, name)}
    settings = {"generation_batch_size": sampling.batch_size, "seed": sampling.seed}
    training = SamplingSettings(**{**shared, **settings})
    return dataclasses.replace(recipe, model=model, training=training)


def _digests(recipe: Recipe, rows: Dataset, plans: list[SamplingPlan], backend: str) -> list[str]:
    """Return a digest for each row of everything that affects its completions and their scores."""
    shaping = [
        "seed",
        "max_completion_length",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "vllm_max_model_length",
    ]
    if backend == "transformers":
        shaping.append("generation_batch_size")  # It samples a batch together.
    model = recipe.model.model_name_or_path
    # The key "ways" holds the sampling plans. Renaming it would change stored digests.
    made_by = {
        "ways": plans,
        "backend": backend,
        "model": model,
    }
    made_by |= {name: getattr(recipe.training, name) for name in shaping}
    # Add these only if they are set, so that digests of older folders stay valid.
    newer = ["chat_template_kwargs", "tools", "environment", "max_tool_calling_iterations"]
    newer += ["response_format", "prefill", "chat_template", "dtype", "model_revision"]
    if recipe.script.tools or recipe.script.environment:
        newer += ["tool_timeout", "tool_output_chars"]
    for name in newer:
        value = namespace_value(recipe, name)
        if value:
            made_by[name] = value
    return row_digests(rows, made_by | recipe.environment_params)


def _generate(
    recipe: Recipe,
    backend: Backend,
    requests: list[Request],
    plans: list[SamplingPlan],
    store: ShardStore | None,
    digests: list[str],
) -> dict[int, list[Completion]]:
    done: dict[int, list[Completion]] = {}
    name = Path(recipe.model.model_name_or_path).name
    copies = sum(count for _, count in plans)
    with progress(len(requests) * copies, name, recipe.training.generation_batch_size) as count:

        def sink(index: int, completions: list[Completion], error: str | None) -> None:
            if error:
                raise RecipeError(f"row {index} cannot be completed: {error}")
            if store is not None:
                made = [vars(completion) for completion in completions]
                store.append(
                    {"index": index, "digest": digests[index], "error": None, "completions": made}
                )
            done[index] = completions
            count(copies)

        backend.run(requests, sink, plans)
    return done


def ask(recipe: Recipe, name: str, question: str, backend: str) -> str:
    """Return a model's greedy answer to a question, with the prompt of the recipe.

    Raises:
        RecipeError: The recipe has an environment, which needs a row instead of a question.
    """
    if recipe.script.environment:
        raise RecipeError(
            "--ask does not work with an environment, because an environment needs a row to play "
            "and not a question. Fix: remove --ask"
        )
    recipe = _for_generation(recipe, name, Sampling(batch_size=1, backend=backend))
    tokenizer, fmt = load_format(recipe, backend)
    question = (recipe.script.prompt_template or "{question}").replace("{question}", question)
    request = Request(0, build_prompt(question, fmt, recipe.script.few_shot))
    model = get_backend(recipe, tokenizer, backend, {"prompt": [request.prompt]})
    try:
        (completion,) = _generate(recipe, model, [request], [(0.0, 1)], None, [])[0]
    finally:
        close(model)
    return fmt.full_text(completion.text)
