"""The datasets that a recipe names: one, or open-r1's ``dataset_mixture``, checked, loaded and shuffled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.common.settings import must
from r1_recipes.data.sources import load_rows

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class Part:
    """One dataset; ``task`` is its rows' constant column of that name. What it does not say is as the recipe's own keys say."""

    id: str
    config: str | None = None
    revision: str | None = None
    split: str = "train"
    columns: tuple[str, ...] | None = None
    weight: float = must("the share of its rows, in (0, 1]", lambda value: 0 < value <= 1, 1.0)
    mapper: str | None = None
    mapper_config: dict[str, Any] | None = None
    task: str | None = None
    system_prompt: str | None = None
    task_config: dict[str, Any] | None = None

    def load(self, args: Any, seed: int, where: str) -> tuple[Dataset, Sequence[int] | None]:
        """The share of its rows, and where each stands in the source (``None``: all, in order)."""
        import numpy  # heavy

        task_config = self.task_config or args.task_config
        rows = load_rows(self.id, self.split, config=self.config, revision=self.revision, hub=args.hub, task_config=task_config)
        for column in self.columns or ():
            if column not in rows.column_names:
                raise RecipeError(f"{where}: " + unknown_name(f"column of {self.id}", column, rows.column_names))
        rows = rows.select_columns(list(self.columns)) if self.columns else rows
        if self.weight == 1:
            return rows, None
        indices = numpy.random.default_rng(seed).permutation(len(rows))[: round(self.weight * len(rows))]
        return rows.select(indices), indices


@dataclass(frozen=True)
class Mixture:
    """The parts, the seed of the one shuffle, and what of it is the test split: a share below 1, or a number of rows."""

    datasets: tuple[Part, ...]
    seed: int = 0
    test_split_size: float | None = None

    def combine(self, parts: list[Dataset], with_tasks: bool) -> Dataset:
        """Shuffle the parts' mapped rows; ``with_tasks``: if any has a task, all get a column ``task``, the part's or the row's own."""
        from datasets import concatenate_datasets  # heavy

        if with_tasks and any(part.task or "task" in rows.column_names for part, rows in zip(self.datasets, parts, strict=True)):
            parts = [_with_task(rows, part.task) for part, rows in zip(self.datasets, parts, strict=True)]
        try:
            return concatenate_datasets(parts).shuffle(seed=self.seed)
        except ValueError as error:  # datasets names the column and its types
            raise RecipeError(f"dataset_mixture: the datasets' columns do not agree: {error}") from error

    def cut(self, rows: Dataset, split: str) -> Dataset:
        """Cut the test split, the first of the shuffled rows, from the training split."""
        size = self.test_split_size
        if size is None:
            if split == "test":
                raise RecipeError("dataset_mixture: evaluation is on, but test_split_size is not set")
            return rows
        count = round(size * len(rows)) if size < 1 else int(size)
        if not 0 < count < len(rows):
            raise RecipeError(f"dataset_mixture: test_split_size {size!r} leaves no rows on one side of {len(rows)}")
        return rows.select(range(count) if split == "test" else range(count, len(rows)))


def _with_task(rows: Dataset, task: str | None) -> Dataset:
    if "task" in rows.column_names:
        if not task:
            return rows
        rows = rows.remove_columns("task")
    return rows.add_column("task", [task or ""] * len(rows))
