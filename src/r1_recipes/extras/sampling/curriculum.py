"""A curriculum: rows of one task after the other, by the held-out success.

Heavy: imports torch and TRL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from datasets import Dataset
from trl.trainer.utils import RepeatSampler

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.extras.sampling.draws import BatchSampler
from r1_recipes.recipe.types import GRPORecipeArguments
from r1_recipes.training.trainer import RecipeGRPOTrainer


class CurriculumGRPOTrainer(RecipeGRPOTrainer):
    """Train on one task's rows until its held-out rows are mostly right, then on the next one's."""

    def __init__(self, *, script: GRPORecipeArguments, **arguments: Any) -> None:
        self._threshold = script.curriculum_threshold
        self._train_rows = _rows_by_task(script, "train_dataset", arguments["train_dataset"])
        self._eval_rows = _rows_by_task(script, "eval_dataset", arguments["eval_dataset"])
        super().__init__(script=script, **arguments)

    @property
    def began(self) -> list[int]:
        """Return the first batch of each task that began. Checkpoints keep it with the trainer's
        state, so a resumed run draws the same rows.
        """
        return self.state.stateful_callbacks.setdefault("curriculum", [0])

    def _get_train_sampler(self, dataset=None) -> CurriculumSampler:
        self._sampler = CurriculumSampler(
            super()._get_train_sampler(dataset), self._train_rows, self
        )
        return self._sampler

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        """Evaluate on the task's held-out rows; if enough are right, batches that are not drawn yet
        are of the next task.
        """
        level = len(self.began)
        self._metrics["eval"]["curriculum/level"].append(level)
        kwargs["eval_dataset"] = self.eval_dataset.select(self._eval_rows[level - 1])
        metrics = super().evaluate(*args, **kwargs)
        enough = (metrics[f"eval_rewards/{self.reward_func_names[0]}/mean"] or 0) >= self._threshold
        # Nothing is drawn at eval_on_start, which a resumed run repeats.
        if enough and self._sampler.drawn and level < len(self._train_rows):
            self.began.append(self._sampler.drawn)
        return metrics


def _rows_by_task(script: GRPORecipeArguments, name: str, rows: Dataset) -> list[list[int]]:
    """Return the indices of each task's rows, in the order of ``curriculum``."""
    column = script.task_column or ("task" if "task" in rows.column_names else "data_source")
    tasks, levels = script.curriculum or (), []
    of_rows = list(map(str, rows[column])) if column in rows.column_names else []
    for task in tasks:
        levels.append([index for index, row_task in enumerate(of_rows) if row_task == task])
        if not levels[-1]:
            raise RecipeError(
                f"curriculum: {name}: "
                + unknown_name(f"value of column {column!r}", task, {*of_rows})
            )
    return levels


class CurriculumSampler(BatchSampler):
    """TRL's sampler; each draw stands for a row of the task that its batch is for."""

    def __init__(
        self, sampler: RepeatSampler, rows: Sequence[Sequence[int]], trainer: CurriculumGRPOTrainer
    ) -> None:
        super().__init__(sampler, trainer)
        self.rows, self.drawn = rows, 0

    def __iter__(self) -> Iterator[int]:
        size = self.batch_size * self.mini_repeat_count * self.repeat_count
        earlier = self.batch_numbers().start
        for place, draw in enumerate(super().__iter__()):
            self.drawn = earlier + place // size + 1
            rows = self.rows[sum(first < self.drawn for first in self.trainer.began) - 1]
            yield rows[draw % len(rows)]
