"""A recipe's data keys -> the dataset that its trainer takes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from r1_recipes.common import extras
from r1_recipes.common.errors import RecipeError, nearest, unknown_name
from r1_recipes.common.settings import from_mapping, limited
from r1_recipes.data.mappers import Mapper, conversation_mapper, get_mapper
from r1_recipes.data.render import LoadReport, Renderer, RowMapper, build_prompt
from r1_recipes.data.sources import load_rows
from r1_recipes.prompts import ResponseFormat

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["LoadReport", "build_prompt", "drop_overlap", "load_dataset"]

logger = logging.getLogger(__name__)

# Columns that trainers and reward calls use themselves; a source column of that name would collide.
_RESERVED = {"prompt", "prompts", "completion", "completions", "completion_ids", "messages"}
_RESERVED |= {"solution", "scorer", "question", "reasoning", "chosen", "rejected", "log_metric"}
_RESERVED |= {"image", "images", "environment", "environments", "trainer_state", "log_extra"}
_NO_TEST_SPLIT = "dataset_mixture: evaluation is on, but test_split_size is not set"
# Columns that SFTTrainer hands to the chat template.
_TEMPLATE_COLUMNS = ("chat_template_kwargs", "tools")
COLUMN_KEYS = ("prompt_column", "solution_column", "reasoning_column")
# Mappers whose columns these keys name.
COLUMNS_BY_KEYS = ("auto", "math", "prompt_solution", "verifiable_code")


@dataclass(frozen=True)
class Part:
    """One dataset; ``task`` is its rows' constant column of that name.

    What it does not say is as the recipe's own keys say.
    """

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
        """Return its share of rows, and where each stands in the source (``None``: in order)."""
        import numpy  # heavy

        rows = load_rows(
            self.id,
            self.split,
            config=self.config,
            revision=self.revision,
            hub=args.hub,
            task_config=self.task_config or args.task_config,
        )
        for column in self.columns or ():
            if column not in rows.column_names:
                unknown = unknown_name(f"column of {self.id}", column, rows.column_names)
                raise RecipeError(f"{where}: {unknown}")
        if self.columns:
            rows = rows.select_columns(list(self.columns))
        if self.weight == 1:
            return rows, None
        if self.first:
            return rows.select(range(int(self.weight * len(rows)))), None
        places = numpy.random.default_rng(seed).permutation(len(rows))
        places = places[: round(self.weight * len(rows))]
        return rows.select(places), places


@dataclass(frozen=True)
class Mixture:
    """The parts, the seed of the one shuffle, and what of it is the test split.

    That is a share below 1, or a number of rows. TRL's ``get_dataset`` concatenates the sources as
    they are, so it cannot take a part with a mapper, a task or an instruction of its own.
    """

    datasets: tuple[Part, ...]
    seed: int = 0
    test_split_size: float | None = None

    def of(self, split: str) -> Mixture:
        """Return the mixture of this split: for ``"test"`` the parts' own, if all have one."""
        if split != "test" or not all(part.test_split for part in self.datasets):
            return self
        parts = [replace(part, split=part.test_split or "", weight=1.0) for part in self.datasets]
        return replace(self, datasets=tuple(parts))

    def combine(self, parts: list[Dataset], with_tasks: bool) -> Dataset:
        """Shuffle the parts' mapped rows.

        ``with_tasks``: if any has a task, all get a column ``task``, the part's or the row's own.
        """
        from datasets import concatenate_datasets  # heavy

        tasks = [part.task for part in self.datasets]
        if with_tasks and (any(tasks) or any("task" in rows.column_names for rows in parts)):
            parts = [_with_task(rows, task) for rows, task in zip(parts, tasks, strict=True)]
        try:
            return concatenate_datasets(parts).shuffle(seed=self.seed)
        except ValueError as error:  # datasets names the column and its types
            fault = f"the datasets' columns do not agree: {error}"
            raise RecipeError(f"dataset_mixture: {fault}") from error

    def cut(self, rows: Dataset, split: str) -> Dataset:
        """Cut the test split, the first of the shuffled rows, from the training split."""
        if all(part.test_split for part in self.datasets):
            return rows
        size = self.test_split_size
        if size is None:
            if split == "test":
                raise RecipeError(_NO_TEST_SPLIT)
            return rows
        count = round(size * len(rows)) if size < 1 else int(size)
        if not 0 < count < len(rows):
            sides = f"leaves no rows on one side of {len(rows)}"
            raise RecipeError(f"dataset_mixture: test_split_size {size!r} {sides}")
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
    """Load, map, select and render one split.

    Rows keep the source's order. A mixture is shuffled by its seed. ``prompt`` is a list of
    messages, the instruction first and the question last. ``method`` decides which other columns
    rows have:

    - ``"grpo"``: ``solution`` (text, if the source has it) and the task's columns;
    - ``"generate"``: the same, ``question`` and every other field of the mapped row;
    - ``"sft"``: ``completion``, one assistant message; ``mapper: auto`` takes whole conversations;
    - ``"reward"``: ``chosen`` and ``rejected``, one assistant message each;
    - ``"distill"``: nothing.

    Args:
        args: The recipe's keys: ``recipe.script``.
        fmt: The response format.
        method: The command.
        split: ``"train"`` or ``"test"``.
        tokenizer: Counts the tokens of prompts and solutions where the recipe limits them.
        rows: Source rows to use instead of loading them. For a mixture, one dataset per part.

    Returns:
        The rows, and a report on the rows that were dropped.

    Raises:
        RecipeError: No row is left, or a key does not fit the data.
    """
    if args.prompt_template is not None and "{question}" not in args.prompt_template:
        found = f"found {args.prompt_template!r}"
        raise RecipeError(f"prompt_template: needs {{question}} where the question goes; {found}")
    limit = args.max_samples if split == "train" else args.max_eval_samples
    report = LoadReport()
    if args.dataset_mixture:
        name = "dataset_mixture"
        dataset = _load_mixture(args, fmt, method, split, tokenizer, rows, report)
    else:
        name = args.dataset_name
        split_name = args.dataset_train_split if split == "train" else args.dataset_test_split
        part = Part(name, args.dataset_config, args.dataset_revision, split_name)
        source = part.load(args, 0, "")[0] if rows is None else rows
        dataset = _row_mapper(args, fmt, method, tokenizer, report, part, source)(source, limit)
    if not len(dataset):
        raise RecipeError(f"dataset {name}, split {split!r}: no row is left: {report}")
    if limit is not None and len(dataset) > limit:
        dataset = dataset.select(range(limit))
    if isinstance(args.environment, dict) and method in ("grpo", "generate"):
        _check_environments(dataset, args.environment)
    report.kept = len(dataset)
    return dataset, report


def _load_mixture(
    args: Any,
    fmt: ResponseFormat,
    method: str,
    split: str,
    tokenizer: Any,
    given: Any,
    report: LoadReport,
) -> Dataset:
    """Return the mapped rows of a mixture's parts, shuffled; given rows have no test split."""
    mixture = from_mapping(Mixture, args.dataset_mixture, "dataset_mixture").of(split)
    mapped = []
    for number, part in enumerate(mixture.datasets):
        where = f"dataset_mixture: dataset {number + 1}"
        source, places = (given[number], None) if given else part.load(args, mixture.seed, where)
        row_mapper = _row_mapper(args, fmt, method, tokenizer, report, part, source)
        mapped.append(replace(row_mapper, where=f"{part.id}: ", places=places)(source))
        if not len(mapped[-1]):
            where = f"{where} ({part.id}, weight {part.weight})"
            raise RecipeError(f"{where}: no row is left: {report}")
    dataset = mixture.combine(mapped, with_tasks=method != "distill")
    return dataset if given else mixture.cut(dataset, split)


def _row_mapper(
    args: Any,
    fmt: ResponseFormat,
    method: str,
    tokenizer: Any,
    report: LoadReport,
    part: Part,
    rows: Dataset,
) -> RowMapper:
    """Return what maps the rows of a part, with the instruction that is meant for them."""
    mapper, takes_instruction = _choose_mapper(args, method, part, rows.column_names)
    system_prompt, few_shot = part.system_prompt, args.few_shot
    if system_prompt is None and not takes_instruction:
        system_prompt, few_shot = "", None
    if system_prompt is not None:
        fmt = replace(fmt, system_prompt=system_prompt)
    tools = None
    if args.tools or args.environment:
        tools = extras.needed("agents", "tools").schemas(args.tools or (), args.environment)
    renderer = Renderer(args, fmt, method, tokenizer, few_shot, tools)
    keep = _extra_columns(args, method, rows.column_names, part.id)
    return RowMapper(mapper, renderer, keep, report)


def _choose_mapper(
    args: Any,
    method: str,
    part: Part,
    columns: list[str],
) -> tuple[Mapper, bool]:
    """Return the mapper of a part, and whether its rows take the recipe's own instruction.

    That is for questions: conversations that are taken as they are, and pairs, go without it.
    """
    name = part.mapper or args.mapper
    if name == "auto" and part.id.startswith("environment:"):  # its other columns may be any
        name = "environment"
    whole = conversation_mapper(columns) if name == "auto" and method == "sft" else None
    if whole is not None:
        names = ", ".join(whole.columns)
        logger.info("%s: conversations are taken as they are (%s)", part.id, names)
        return whole, False
    named = {}
    if name in COLUMNS_BY_KEYS:
        named = {key: getattr(args, key) for key in COLUMN_KEYS}
    config = part.mapper_config or args.mapper_config or {}
    mapper = get_mapper(name, columns, **named, **config)
    if absent := mapper.missing(columns):
        raise _no_columns(mapper, absent, columns, part.id, named)
    if mapper.images and method != "grpo":
        fault = f"gives pictures, which {method} does not take; grpo does"
        raise RecipeError(f"dataset {part.id}: mapper {mapper.name!r} {fault}")
    return mapper, method != "reward"


def _no_columns(
    mapper: Mapper,
    absent: list[str],
    columns: list[str],
    source: str,
    named: dict[str, str | None],
) -> RecipeError:
    """Return the error for a source without a column; ``named`` are the keys that name columns."""
    fixes = []
    for key, column in named.items():
        close = nearest(column, columns) if column in absent else []
        if column and close:
            fixes.append(f"{key}: {close[0]}")
    fix = f". Fix: {', '.join(fixes)}" if fixes else ""
    return RecipeError(
        f"dataset {source}: mapper {mapper.name!r} needs column {', '.join(map(repr, absent))}; "
        f"the columns there are: {', '.join(columns)}{fix}"
    )


def _check_environments(dataset: Dataset, environments: dict[str, Any]) -> None:
    names = dataset["environment"] if "environment" in dataset.column_names else [""]
    for row, name in enumerate(names):
        if name not in environments:
            allowed = ", ".join(map(str, environments))
            fault = f"column 'environment' must be one of {allowed}, got {name!r}"
            raise RecipeError(f"environment: row {row}: {fault}")


def _extra_columns(args: Any, method: str, columns: list[str], source: str) -> list[str]:
    """Return the source columns that go on to the rewards, or to the chat template.

    A mixture keeps those that it is told to: the types of its datasets may not agree.
    """
    for column in args.keep_columns or ():
        if column not in columns:
            unknown = unknown_name("column", column, columns)
            raise RecipeError(f"keep_columns: dataset {source}: {unknown}")
        if column in _RESERVED:
            fault = "is a name that trainers and rewards use themselves; rename it in the data"
            raise RecipeError(f"keep_columns: {column!r} {fault}")
    if method == "distill":
        return []
    if args.keep_columns is not None:
        return args.keep_columns
    if method == "sft":
        return [column for column in columns if column in _TEMPLATE_COLUMNS]
    if method == "reward" or (args.dataset_mixture and not args.environment):
        return []
    return [column for column in columns if column not in _RESERVED]


def drop_overlap(train: Dataset, held_out: Dataset) -> tuple[Dataset, int]:
    """Return training rows that ask nothing that ``held_out`` asks, and how many do.

    A row asks what the user's messages say, white space aside.
    """
    seen = set(map(asked, identities(held_out)))
    keep = [index for index, row in enumerate(identities(train)) if asked(row) not in seen]
    return (train.select(keep) if len(keep) < len(train) else train), len(train) - len(keep)


def identities(rows: Dataset) -> Iterable[Any]:
    """Return what tells rows apart: the prompt, or the whole row if an environment plays it.

    Games may share one question.
    """
    # Other rows' columns may be heavy, and reading a row decodes all that are there.
    return rows if "environment" in rows.column_names else rows["prompt"]


def asked(identity: Any) -> str:
    """Return what a row asks, white space aside; rows that ask the same are one question."""
    if isinstance(identity, dict):
        return str(identity)
    # Every question: that the last one is "go on" in both does not make two conversations one.
    questions = [message["content"] for message in identity if message["role"] == "user"]
    return "\n".join(" ".join(question.split()) for question in questions)
