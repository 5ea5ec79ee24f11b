"""The rows of a training run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.data.load import drop_overlap, load_dataset
from r1_recipes.models.smoke import example_rows
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe.load import Recipe
from r1_recipes.training.checks import check_steps

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


def load_splits(recipe: Recipe, fmt: ResponseFormat, tokenizer: Any) -> tuple[Dataset, Dataset | None]:
    """Return training and evaluation rows, disjoint by question; no evaluation rows if ``eval_strategy`` is "no".

    Raises:
        RecipeError: the data cannot be read, or are too few to train one step.
    """
    if recipe.script.smoke:
        rows = example_rows(recipe.script, recipe.method)
        return load_dataset(recipe.script, fmt, recipe.method, tokenizer=tokenizer, rows=rows)[0], None
    train, report = load_dataset(recipe.script, fmt, recipe.method, split="train", tokenizer=tokenizer)
    logger.info("train: %s", report)
    test = None
    if recipe.training.eval_strategy != "no":
        test, report = load_dataset(recipe.script, fmt, recipe.method, split="test", tokenizer=tokenizer)
        logger.info("test: %s", report)
        train, dropped = drop_overlap(train, test)
        if not len(train):
            raise RecipeError(
                f"{recipe.path}: dataset_test_split: the test split asks everything that the training split asks, so no row is left to "
                "train on. Fix: dataset_train_split: 'train[:-128]' and dataset_test_split: 'train[-128:]', or eval_strategy: 'no'"
            )
        if dropped:
            logger.warning("%d training rows ask what the test split asks; they are left out", dropped)
    check_steps(recipe, len(train))
    return train, test
