"""The datasets that a recipe names: one, or open-r1's ``dataset_mixture``, checked, loaded and shuffled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.data.sources import load_rows

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class Part:
    """One dataset.

    Attributes:
        weight: the share of its own rows that it contributes.
        task: its rows' constant column ``task``.
        system_prompt: its own instruction; ``None``: the response format's.
    """

    id: str
    config: str | None = None
    revision: str | None = None
    split: str = "train"
    columns: list[str] | None = None
    weight: float = 1.0
    mapper: str | None = None
    mapper_config: dict[str, Any] | None = None
    task: str | None = None
    system_prompt: str | None = None
    task_config: dict[str, Any] | None = None

    def load(self, hub: str, seed: int, where: str) -> tuple[Dataset, Sequence[int] | None]:
        """The share of its rows, and where each stands in the source (``None``: all, in order)."""
        import numpy  # heavy

        rows = load_rows(self.id, self.split, config=self.config, revision=self.revision, hub=hub, task_config=self.task_config)
        for column in self.columns or ():
            if column not in rows.column_names:
                raise RecipeError(f"{where}: " + unknown_name(f"column of {self.id}", column, rows.column_names))
        rows = rows.select_columns(self.columns) if self.columns else rows
        if self.weight == 1:
            return rows, None
        indices = numpy.random.default_rng(seed).permutation(len(rows))[: round(self.weight * len(rows))]
        return rows.select(indices), indices


@dataclass(frozen=True)
class Mixture:
    """The parts, the seed of the one shuffle, and what of it is the test split: a share below 1, or a number of rows."""

    datasets: list[Part]
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


def read_mixture(args: Any) -> Mixture:
    """The recipe's mixture, checked; its parts inherit ``task_config``."""
    told = args.dataset_mixture
    if not isinstance(told, dict) or not isinstance(told.get("datasets"), list) or not told["datasets"]:
        raise RecipeError(f"dataset_mixture: needs datasets: a list of mappings with id, found {told!r}")
    _check("dataset_mixture", told, Mixture)
    parts = []
    for number, part in enumerate(told["datasets"], start=1):
        where = f"dataset_mixture: dataset {number}"
        if not isinstance(part, dict) or "id" not in part:
            raise RecipeError(f"{where}: needs id, found {part!r}")
        _check(where, part, Part)
        parts.append(Part(**{"task_config": args.task_config} | part))
        if not 0 < parts[-1].weight <= 1:
            raise RecipeError(f"{where}: weight: must be the share of its rows, in (0, 1], got {parts[-1].weight!r}")
    return Mixture(**told | {"datasets": parts})


def _check(where: str, told: dict[str, Any], kind: type) -> None:
    """Refuse unknown keys, and values of another type than the field's."""
    hints = get_type_hints(kind)
    for key, value in told.items():
        if key not in hints:
            raise RecipeError(f"{where}: " + unknown_name("key", key, hints))
        types = [get_origin(hint) or hint for hint in get_args(hints[key]) or [hints[key]] if get_origin(hints[key]) is not list]
        if types and not isinstance(value, (*types, int) if float in types else tuple(types)):
            raise RecipeError(f"{where}: {key}: must be {' or '.join(one.__name__ for one in types)}, got {value!r}")


def _with_task(rows: Dataset, task: str | None) -> Dataset:
    if "task" in rows.column_names:
        if not task:
            return rows
        rows = rows.remove_columns("task")
    return rows.add_column("task", [task or ""] * len(rows))
