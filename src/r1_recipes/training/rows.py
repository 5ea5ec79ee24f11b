"""The rows of a training run."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from r1_recipes.common.errors import RecipeError
from r1_recipes.data.load import LoadReport, drop_overlap, load_dataset
from r1_recipes.models.smoke import example_rows
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe import Recipe

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


@dataclass
class Splits:
    """A run's rows, disjoint by question, and what became of those that were read."""

    train: Dataset
    train_report: LoadReport
    test: Dataset | None = None
    test_report: LoadReport | None = None
    overlap: int = 0  # training rows that ask what the test split asks, left out of ``train``


def load_splits(recipe: Recipe, fmt: ResponseFormat, tokenizer: PreTrainedTokenizerBase | None) -> Splits:
    """Return training and evaluation rows; no evaluation rows if ``eval_strategy`` is "no".

    Raises:
        RecipeError: the data cannot be read, or are too few to train one step.
    """
    if recipe.script.smoke:
        rows = example_rows(recipe.script, recipe.method)
        return Splits(*load_dataset(recipe.script, fmt, recipe.method, tokenizer=tokenizer, rows=rows))
    splits = Splits(*load_dataset(recipe.script, fmt, recipe.method, split="train", tokenizer=tokenizer))
    logger.info("train: %s", splits.train_report)
    if recipe.training.eval_strategy != "no":
        splits.test, splits.test_report = load_dataset(recipe.script, fmt, recipe.method, split="test", tokenizer=tokenizer)
        logger.info("test: %s", splits.test_report)
        splits.train, splits.overlap = drop_overlap(splits.train, splits.test)
        if not len(splits.train):
            raise RecipeError(
                f"{recipe.path}: dataset_test_split: the test split asks everything that the training split asks, so no row is left to "
                "train on. Fix: dataset_train_split: 'train[:-128]' and dataset_test_split: 'train[-128:]', or eval_strategy: 'no'"
            )
        if splits.overlap:
            logger.warning("%d training rows ask what the test split asks; they are left out", splits.overlap)
    training, count = recipe.training, len(splits.train)
    prompts = training.generation_batch_size // training.num_generations if hasattr(training, "num_generations") else 1
    if count < prompts:
        raise RecipeError(
            f"{recipe.path}: {count} training rows for {prompts} prompts a batch (generation_batch_size / num_generations), so not one "
            "step would be trained. Fix: more rows, or a smaller per_device_train_batch_size or gradient_accumulation_steps"
        )
    return splits
