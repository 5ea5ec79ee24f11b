"""``dataset_mixture``: open-r1's mixture of datasets, checked, loaded and shuffled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.data.csv_files import CsvStyle
from r1_recipes.data.mapping import LoadReport
from r1_recipes.data.sources import load_rows

if TYPE_CHECKING:
    from datasets import Dataset

CSV_KEYS = ("csv_separator", "csv_encoding", "csv_decimal")


@dataclass(frozen=True)
class Part:
    """One dataset of a mixture.

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
    csv_separator: str | None = None
    csv_encoding: str = "utf-8"
    csv_decimal: str = "."


@dataclass(frozen=True)
class Mixture:
    """The parts, the seed of the one shuffle, and what of it is the test split: a share below 1, or a number of rows."""

    datasets: list[Part]
    seed: int = 0
    test_split_size: float | None = None


def read_mixture(args: Any) -> Mixture:
    """The recipe's mixture, checked; its parts inherit ``task_config`` and the CSV keys."""
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
        parts.append(Part(**{key: getattr(args, key) for key in ("task_config", *CSV_KEYS)} | part))
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


def load_mixture(
    mixture: Mixture,
    hub: str,
    map_rows: Callable[..., Dataset],
    report: LoadReport,
    *,
    with_tasks: bool,
    rows: Sequence[Dataset] | None = None,
) -> Dataset:
    """Load, map and shuffle all parts.

    Args:
        map_rows: takes a part's source rows, its id, ``part``, and ``indices``: where each row stands in its source.
        with_tasks: rows get a column ``task`` if any part has one: the part's own, else the row's, else ``""``.
        rows: source rows to use instead of loading them, one dataset a part, each taken whole.
    """
    import numpy  # heavy
    from datasets import concatenate_datasets  # heavy

    combined = []
    for number, part in enumerate(mixture.datasets, start=1):
        where, indices = f"dataset_mixture: dataset {number}", None
        source = rows[number - 1] if rows is not None else load_part(part, hub, where)
        if rows is None and part.weight < 1:
            indices = numpy.random.default_rng(mixture.seed).permutation(len(source))[: round(part.weight * len(source))]
            source = source.select(indices)
        combined.append(map_rows(source, part.id, part=part, indices=indices))
        if not len(combined[-1]):
            raise RecipeError(f"{where} ({part.id}, weight {part.weight}): no row is left: {report}")
    pairs = list(zip(mixture.datasets, combined, strict=True))
    if with_tasks and any(part.task or "task" in dataset.column_names for part, dataset in pairs):
        combined = [_with_task(dataset, part.task) for part, dataset in pairs]
    try:
        return concatenate_datasets(combined).shuffle(seed=mixture.seed)
    except ValueError as error:  # datasets names the column and its types
        raise RecipeError(f"dataset_mixture: the datasets' columns do not agree: {error}") from error


def load_part(part: Part, hub: str, where: str = "columns") -> Dataset:
    source = load_rows(
        part.id,
        part.split,
        config=part.config,
        revision=part.revision,
        hub=hub,
        task_config=part.task_config,
        csv_style=CsvStyle(part.csv_separator, part.csv_encoding, part.csv_decimal),
    )
    for column in part.columns or ():
        if column not in source.column_names:
            raise RecipeError(f"{where}: " + unknown_name(f"column of {part.id}", column, source.column_names))
    return source.select_columns(part.columns) if part.columns else source


def _with_task(dataset: Dataset, task: str | None) -> Dataset:
    if "task" in dataset.column_names:
        if not task:
            return dataset
        dataset = dataset.remove_columns("task")
    return dataset.add_column("task", [task or ""] * len(dataset))


def split_mixture(rows: Dataset, size: float | None, split: str) -> Dataset:
    """Cut the test split, the first of the shuffled rows, from the training split."""
    if size is None:
        if split == "test":
            raise RecipeError("dataset_mixture: evaluation is on, but test_split_size is not set")
        return rows
    count = round(size * len(rows)) if size < 1 else int(size)
    if not 0 < count < len(rows):
        raise RecipeError(f"dataset_mixture: test_split_size {size!r} leaves no rows on one side of {len(rows)}")
    return rows.select(range(count) if split == "test" else range(count, len(rows)))
