"""A recipe's data keys -> a dataset of prompts and solutions (GRPO), prompts and completions (SFT), or prompts alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from r1_recipes.common import extras
from r1_recipes.common.errors import RecipeError, nearest, unknown_name
from r1_recipes.common.settings import from_mapping, limited
from r1_recipes.data.mappers import Conversations, Mapper, get_mapper, read_conversation, read_turns
from r1_recipes.data.render import LoadReport, Renderer, RowMapper, build_prompt
from r1_recipes.data.sources import load_rows
from r1_recipes.prompts import ResponseFormat, get_response_format

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["LoadReport", "build_prompt", "drop_overlap", "load_dataset"]

logger = logging.getLogger(__name__)

# Columns that the trainers and reward calls use themselves; a source column of that name would collide.
_RESERVED = {"prompt", "prompts", "completion", "completions", "completion_ids", "messages", "solution", "scorer", "question", "reasoning"}
_RESERVED |= {"chosen", "rejected", "image", "images", "environment", "environments", "trainer_state", "log_extra", "log_metric"}
# Columns that SFTTrainer hands to the chat template.
_TEMPLATE_COLUMNS = ("chat_template_kwargs", "tools")
COLUMN_KEYS = ("prompt_column", "solution_column", "reasoning_column")
COLUMNS_BY_KEYS = ("auto", "math", "prompt_solution", "verifiable_code")  # mappers whose columns these keys name


@dataclass(frozen=True)
class Part:
    """One dataset; ``task`` is its rows' constant column of that name. What it does not say is as the recipe's own keys say."""

    id: str
    config: str | None = None
    revision: str | None = None
    split: str = "train"
    columns: tuple[str, ...] | None = None
    test_split: str | None = None
    weight: float = limited(lambda value: 0 < value <= 1, "the share of its rows, in (0, 1]", 1.0)
    first: bool = False  # the share is of the first rows, not drawn
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
        if strange := [column for column in self.columns or () if column not in rows.column_names]:
            raise RecipeError(f"{where}: " + unknown_name(f"column of {self.id}", strange[0], rows.column_names))
        rows = rows.select_columns(list(self.columns)) if self.columns else rows
        if self.weight == 1:
            return rows, None
        if self.first:
            return rows.select(range(int(self.weight * len(rows)))), None
        indices = numpy.random.default_rng(seed).permutation(len(rows))[: round(self.weight * len(rows))]
        return rows.select(indices), indices


@dataclass(frozen=True)
class Mixture:
    """The parts, the seed of the one shuffle, and what of it is the test split: a share below 1, or a number of rows."""

    datasets: tuple[Part, ...]
    seed: int = 0
    test_split_size: float | None = None

    def of(self, split: str) -> Mixture:
        """The mixture of this split: of ``"test"`` all rows of the parts' own test splits, if they name them."""
        if split != "test" or not all(part.test_split for part in self.datasets):
            return self
        return replace(self, datasets=tuple(replace(part, split=part.test_split or "", weight=1.0) for part in self.datasets))

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
        size = None if all(part.test_split for part in self.datasets) else self.test_split_size
        if size is None:
            if split == "test" and not all(part.test_split for part in self.datasets):
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


def load_dataset(
    args: Any,
    fmt: ResponseFormat,
    method: str,
    *,
    split: str = "train",
    tokenizer: Any = None,
    rows: Dataset | Sequence[Dataset] | None = None,
) -> tuple[Dataset, LoadReport]:
    """Load, map, select and render one split of a recipe's data, in source order (a mixture: shuffled by its seed).

    ``prompt`` is messages, the instruction first and the user's turn last. ``method`` says what else rows have: ``"grpo"`` ``solution``
    (str, if the source has golds) and task columns; ``"generate"`` the same, ``question`` and every other field of the mapper; ``"sft"``
    ``completion`` (one assistant's turn; ``mapper: auto`` takes whole conversations as they are); ``"reward"`` ``chosen`` and ``rejected``,
    such turns; ``"distill"`` nothing. Questions are asked with ``args.prompt_template``, if there is one. ``rows`` are source rows to use
    instead of loading them; for a mixture, one dataset a part.
    """
    template = getattr(args, "prompt_template", None)
    if template is not None and "{question}" not in template:
        raise RecipeError(f"prompt_template: needs {{question}} where the question goes; found {template!r}")
    limit = args.max_samples if split == "train" else args.max_eval_samples
    report = LoadReport()
    name, mixed = args.dataset_name or "dataset_mixture", bool(args.dataset_mixture)
    if mixed:
        mixture = from_mapping(Mixture, args.dataset_mixture, "dataset_mixture").of(split)
    else:
        there = args.dataset_train_split if split == "train" else args.dataset_test_split
        mixture = Mixture((Part(name, args.dataset_config, args.dataset_revision, there),))
    given = rows if isinstance(rows, Sequence) else [rows]
    parts = []
    for number, part in enumerate(mixture.datasets):
        where = f"dataset_mixture: dataset {number + 1}"
        source, indices = part.load(args, mixture.seed, where) if rows is None else (given[number], None)
        parts.append(_mapper(args, fmt, method, tokenizer, report, part, source, indices)(source, None if mixed else limit))
        if mixed and not len(parts[-1]):
            raise RecipeError(f"{where} ({part.id}, weight {part.weight}): no row is left: {report}")
    dataset = mixture.combine(parts, with_tasks=method != "distill") if mixed else parts[0]
    if mixed and rows is None:
        dataset = mixture.cut(dataset, split)
    if not len(dataset):
        raise RecipeError(f"dataset {name}, split {split!r}: no row is left: {report}")
    if limit is not None and len(dataset) > limit:
        dataset = dataset.select(range(limit))
    if isinstance(kinds := getattr(args, "environment", None), dict) and method in ("grpo", "generate"):
        for row, one in enumerate(dataset["environment"] if "environment" in dataset.column_names else [""]):
            if one not in kinds:
                raise RecipeError(f"environment: row {row}: column 'environment' must be one of {', '.join(map(str, kinds))}, got {one!r}")
    report.kept = len(dataset)
    return dataset, report


def drop_overlap(train: Dataset, held_out: Dataset) -> tuple[Dataset, int]:
    """Training rows that do not ask what a row of ``held_out`` asks (the user's turns, white space aside), and how many do."""
    seen = set(map(asked, identities(held_out)))
    keep = [index for index, one in enumerate(identities(train)) if asked(one) not in seen]
    return (train.select(keep) if len(keep) < len(train) else train), len(train) - len(keep)


def identities(rows: Dataset) -> Iterable[Any]:
    """What tells rows apart: the prompt, or the whole row if an environment plays it, whose games may share one question."""
    # Other rows' columns may be heavy, and reading a row decodes all that are there.
    return rows if "environment" in rows.column_names else rows["prompt"]


def asked(identity: Any) -> str:
    """Return what a row asks, white space aside; rows that ask the same are one question."""
    if isinstance(identity, dict):
        return str(identity)
    # Every turn of the user's: that the last one is "go on" in both does not make two conversations one.
    return "\n".join(" ".join(message["content"].split()) for message in identity if message["role"] == "user")


def _mapper(
    args: Any,
    fmt: ResponseFormat,
    method: str,
    tokenizer: Any,
    report: LoadReport,
    part: Part,
    rows: Dataset,
    indices: Sequence[int] | None,
) -> RowMapper:
    columns, name = rows.column_names, part.mapper or args.mapper
    if name == "auto" and part.id.startswith("environment:"):  # its rows may have any other columns
        name = "environment"
    system_prompt, few_shot = part.system_prompt, args.few_shot
    named = {key: getattr(args, key) for key in COLUMN_KEYS} if name in COLUMNS_BY_KEYS else {}
    mapper: Mapper
    taken_whole = method == "sft" and name == "auto" and bool(Conversations.fit(columns) or _PromptCompletion.fit(columns))
    if taken_whole:
        mapper = Conversations(well_formed=False) if Conversations.fit(columns) else _PromptCompletion()
        logger.info("%s: conversations are taken as they are (%s)", part.id, ", ".join(mapper.columns))
    else:
        mapper = get_mapper(name, columns, **named, **(part.mapper_config or args.mapper_config or {}))
    # A recipe's instruction is for questions; a part that names one means it for its conversations.
    if system_prompt is None and (taken_whole or method == "reward"):
        system_prompt, few_shot = "", None
    if absent := mapper.missing(columns):
        keys = {named[key]: key for key in named if named[key]}
        near = [f"{keys[column]}: {close[0]}" for column in absent if column in keys and (close := nearest(column, columns))]
        raise RecipeError(
            f"dataset {part.id}: mapper {mapper.name!r} needs column {', '.join(map(repr, absent))}; the columns there are: "
            f"{', '.join(columns)}" + (f". Fix: {', '.join(near)}" if near else "")
        )
    if mapper.images and method != "grpo":
        raise RecipeError(f"dataset {part.id}: mapper {mapper.name!r} gives pictures, which {method} does not take; grpo does")
    tools, environment = getattr(args, "tools", None), getattr(args, "environment", None)
    schemas = extras.needed("agents", "tools").schemas(tools or (), environment) if tools or environment else None
    renderer = Renderer(args, get_response_format(fmt, system_prompt=system_prompt), method, tokenizer, few_shot, schemas)
    where = f"{part.id}: " if args.dataset_mixture else ""
    return RowMapper(mapper, renderer, _extra_columns(args, method, columns, part.id), report, where, indices)


def _extra_columns(args: Any, method: str, columns: list[str], source: str) -> list[str]:
    """Source columns that go on to the rewards. A mixture keeps those it is told to: its parts' types may not agree."""
    wanted = args.keep_columns
    for column in wanted or ():
        if column not in columns:
            raise RecipeError(f"keep_columns: dataset {source}: " + unknown_name("column", column, columns))
        if column in _RESERVED:
            raise RecipeError(f"keep_columns: {column!r} is a name that trainers and rewards use themselves; rename it in the data")
    if method == "distill":
        return []
    if wanted is None and method in ("sft", "reward"):
        wanted = [column for column in columns if method == "sft" and column in _TEMPLATE_COLUMNS]
    elif wanted is None:
        wanted = [] if args.dataset_mixture and not getattr(args, "environment", None) else columns
    return [column for column in wanted if column not in _RESERVED]


class _PromptCompletion(Mapper):
    """Pairs as TRL takes them, of turns or of texts: one conversation."""

    columns = ("prompt", "completion")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        speakers = (("prompt", "user"), ("completion", "assistant"))
        turns = [turn for column, speaker in speakers for turn in read_turns(row[column], column, speaker, called=True)]
        return {**read_conversation(turns), "well_formed": False}
