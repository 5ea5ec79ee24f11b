"""The rows that models are judged on, and the rewards that judge them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from r1_recipes.common.errors import RecipeError
from r1_recipes.data.load import drop_overlap, load_dataset
from r1_recipes.metrics.scores import compares_with_gold
from r1_recipes.models.smoke import example_rows
from r1_recipes.prompts import ResponseFormat, get_response_format
from r1_recipes.recipe import Recipe
from r1_recipes.rewards import answer_rewards, get_reward_funcs, route
from r1_recipes.rewards.call import readable_golds, try_own_rewards

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


def rows_to_judge(recipe: Recipe) -> tuple[Dataset, str]:
    """The rows of the recipe's test split that a reward can judge, and what they are in words.

    Raises:
        RecipeError: the split cannot be read, repeats training rows without saying so, or no row can be judged.
    """
    script = recipe.script
    script.max_prompt_tokens = script.max_solution_tokens = None  # length limits are for training
    fmt = get_response_format(script.response_format, system_prompt=script.system_prompt, prefill=script.prefill)
    source = example_rows(script, "grpo") if script.smoke else None
    rows, report = load_dataset(script, fmt, "grpo", split="test", rows=source)
    logger.info("to judge: %s", report)
    kind = _kind_of_rows(recipe, fmt, rows)
    rows = _judgeable(recipe, fmt, rows)
    return rows, f"{len(rows)} {kind}"


def _kind_of_rows(recipe: Recipe, fmt: ResponseFormat, rows: Dataset) -> str:
    """Whether the rows are held out, and where they are from."""
    script = recipe.script
    if script.smoke:
        return "example rows (smoke)"
    origin = f"split {script.dataset_test_split!r} of {script.dataset_name}" if script.dataset_name else "the test split of dataset_mixture"
    if recipe.method == "evaluate":  # a benchmark trains nothing
        return f"rows ({origin})"
    if script.dataset_name and script.dataset_test_split == script.dataset_train_split:
        return f"training rows ({origin}), none of them held out"
    shared = 0
    if recipe.training.eval_strategy == "no":  # else training leaves out what the test split asks
        _, shared = drop_overlap(rows, load_dataset(script, fmt, "grpo", split="train")[0])
    if shared > len(rows) / 2:
        raise RecipeError(
            f"{recipe.path}: dataset_test_split: must hold rows that are not trained on; of {origin}, {shared} of {len(rows)} ask what a "
            "training row asks. Fix: dataset_train_split: 'train[:-128]' and dataset_test_split: 'train[-128:]'; or, to judge training "
            f"rows, --dataset_test_split {script.dataset_train_split}"
        )
    return f"held-out rows ({origin})" + (f", {shared} of which ask what training rows ask" if shared else "")


def _judgeable(recipe: Recipe, fmt: ResponseFormat, rows: Dataset) -> Dataset:
    """The rows that some reward can say right or wrong of; it is an error if there are none."""
    judges = judges_of(recipe, fmt)
    try_own_rewards(list(judges), list(judges.values()), rows, fmt, None)
    found: set[int] = set()
    for name, judge in judges.items():
        if compares_with_gold(judge):
            found |= {index for index, read in readable_golds(name, judge, rows).items() if read}
        elif hasattr(judge, "judged"):
            found |= set(judge.judged({key: rows[key] for key in rows.column_names}))
        else:
            return rows
    left = [index for index in range(len(rows)) if index not in found]
    if not left:
        return rows
    said = f"{len(left)} of {len(rows)} rows are judged by none of {', '.join(judges)}"
    gold = rows["solution"][left[0]] if "solution" in rows.column_names else None
    first = f"the first is row {left[0]} (gold {gold!r})"
    if not found:
        raise RecipeError(f"{recipe.path}: {said}; {first}. Fix: for golds in words, reward_funcs: [answer_match]")
    logger.warning("%s and are left out; %s", said, first)
    return rows.select(sorted(found))


def judges_of(recipe: Recipe, fmt: ResponseFormat, *, with_models: bool = False) -> dict[str, Callable]:
    """The rewards that say what is right, by name; the first one that judges a row decides."""
    own = reward_functions(recipe, fmt, with_models=with_models)
    return {name: own[name] if name in own else get_reward_funcs([name], fmt)[0] for name in answer_rewards(own)}


def reward_functions(recipe: Recipe, fmt: ResponseFormat, *, with_models: bool) -> dict[str, Callable]:
    """The rewards by their names in the recipe; without ``with_models``, without those that ask a model of their own."""
    script, params = recipe.script, recipe.reward_params
    if "match_judge" in params and not with_models:
        params = {**params, "match_judge": ""}
    functions = get_reward_funcs(script.reward_funcs, fmt, **params)
    if script.task_rewards is not None:
        functions = route(functions, script.reward_funcs, script.task_rewards, script.task_column)
    named = zip(script.reward_funcs, functions, strict=True)
    return {name: function for name, function in named if with_models or name != "reward_model"}


def reward_weights(recipe: Recipe) -> dict[str, float]:
    names = recipe.script.reward_funcs
    return dict(zip(names, recipe.training.reward_weights or [1.0] * len(names), strict=True))
