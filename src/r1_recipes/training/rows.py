"""The rows of a run: training and evaluation rows, disjoint by question."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import shipped
from r1_recipes.data.load import LoadReport, drop_overlap, drop_unanswered, load_dataset
from r1_recipes.data.sources import split_fix
from r1_recipes.models.smoke import example_rows
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe import Recipe
from r1_recipes.recipe.types import namespace_value
from r1_recipes.rewards import READS_GOLD

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class Splits:
    """A run's rows, and what became of those that were read."""

    train: Dataset
    train_report: LoadReport
    test: Dataset | None = None
    test_report: LoadReport | None = None
    overlap: int = 0  # training rows that ask what the test split asks, left out of ``train``


def load_splits(
    recipe: Recipe, fmt: ResponseFormat, tokenizer: PreTrainedTokenizerBase | None
) -> Splits:
    """Return training rows, and evaluation rows unless ``eval_strategy`` is "no".

    Then no question of the test split is trained on.
    """
    script = recipe.script
    # GOLD's data are prompts and answers: it learns from both, by lmbda.
    method = "sft" if namespace_value(recipe, "distill_with") == "gold" else recipe.method
    examples = example_rows(script, method) if script.smoke else None
    train, report = load_dataset(
        script, fmt, method, split="train", tokenizer=tokenizer, rows=examples
    )
    if method == "grpo" and script.task_rewards is None:
        train = _answered(recipe, train, report)
    splits = Splits(train, report)
    if script.smoke:
        return splits
    logger.info("train: %s", report)
    if recipe.training.eval_strategy == "no":
        if problem := nothing_held_out(recipe, report.read):
            logger.warning("%s", problem)
    else:
        _hold_out(recipe, fmt, tokenizer, method, splits)
    return splits


def _hold_out(
    recipe: Recipe, fmt: ResponseFormat, tokenizer: object, method: str, splits: Splits
) -> None:
    """Load the test split, and leave its questions out of the training rows."""
    script = recipe.script
    # Whatever is evaluated during training, no row of the test split may be trained on.
    whole = dataclasses.replace(script, max_eval_samples=None)
    test, report = load_dataset(whole, fmt, method, split="test", tokenizer=tokenizer)
    splits.train, splits.overlap = drop_overlap(splits.train, test)
    splits.test = test.select(range(min(len(test), script.max_eval_samples or len(test))))
    splits.test_report, report.kept = report, len(splits.test)
    logger.info("test: %s", report)
    if not len(splits.train):
        raise RecipeError(
            f"{recipe.path}: dataset_test_split: the test split asks everything that the training "
            "split asks, so no row is left to train on. Fix: "
            f"{split_fix(splits.train_report.read)}, or eval_strategy: 'no'"
        )
    if splits.overlap:
        logger.warning(
            "%d training rows ask what the test split asks; they are left out", splits.overlap
        )


def _answered(recipe: Recipe, rows: Dataset, report: LoadReport) -> Dataset:
    """Return the rows with what our rewards compare with. Refuse rows that all lack it."""
    for name in [name for name in recipe.script.reward_funcs if name in READS_GOLD]:
        if "solution" in rows.column_names:
            rows = drop_unanswered(rows, report)
        if not len(rows) or {"solution", "nums"}.isdisjoint(rows.column_names):
            raise RecipeError(
                f"{recipe.path}: mapper: reward {name!r} compares with a reference answer, which "
                "the rows do not have. Fix: solution_column: COLUMN; a mapper of your own that "
                "returns {'question': …, 'solution': …}; or another reward"
            )
    return rows


def nothing_held_out(recipe: Recipe, rows: int) -> str:
    """Say what to write if ``evaluate`` would be given the rows that GRPO trains on, or ``""``.

    A file without splits is every split.
    """
    name = recipe.script.dataset_name or ""
    named = "dataset_test_split" in recipe.settings or recipe.training.eval_strategy != "no"
    if named or recipe.method != "grpo" or not shipped(Path(name)).is_file():
        return ""
    return (
        f"dataset_test_split: not set, and {name} has no splits, so no row is held out for "
        f"evaluate. Fix: {split_fix(rows)}"
    )
