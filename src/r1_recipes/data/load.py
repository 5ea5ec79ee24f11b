"""Turn a recipe's data keys into the dataset that its trainer takes."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, located, nearest, unknown_name
from r1_recipes.common.settings import from_mapping, limited
from r1_recipes.data.mappers import Mapper, conversation_mapper, get_mapper
from r1_recipes.data.render import LoadReport, Renderer, RowMapper, build_prompt
from r1_recipes.data.sources import load_rows
from r1_recipes.prompts import ResponseFormat

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["LoadReport", "build_prompt", "drop_overlap", "load_dataset"]

logger = logging.getLogger(__name__)

# Columns that trainers and reward calls use. A source column with one of these names would collide.
_RESERVED_NAMES = """
prompt prompts completion completions completion_ids messages solution scorer question reasoning
chosen rejected image images environment environments trainer_state log_extra log_metric
"""
_RESERVED = frozenset(_RESERVED_NAMES.split())
_NO_TEST_SPLIT = (
    "dataset_mixture: test_split_size: must be set, because evaluation needs a test split. "
    "Fix: test_split_size: 128"
)
# Columns that SFTTrainer passes to the chat template.
_TEMPLATE_COLUMNS = ("chat_template_kwargs", "tools")
COLUMN_KEYS = ("prompt_column", "solution_column", "reasoning_column")
# Mappers that read their column names from COLUMN_KEYS.
COLUMNS_BY_KEYS = ("auto", "math", "prompt_solution", "verifiable_code")


@dataclass(frozen=True)
class Part:
    """One dataset of a mixture. ``task`` fills a column of that name in all its rows.

    A key that is not set has the value of the recipe's key.
    """

    id: str
    config: str | None = None
    revision: str | None = None
    split: str = "train"
    columns: tuple[str, ...] | None = None
    test_split: str | None = None
    weight: float = limited(lambda value: 0 < value <= 1, "the share of its rows, in (0, 1]", 1.0)
    first: bool = False  # Take the first rows instead of random ones.
    mapper: str | None = None
    mapper_config: dict[str, Any] | None = None
    task: str | None = None
    system_prompt: str | None = None
    task_config: dict[str, Any] | None = None

    def load(self, args: Any, seed: int, where: str) -> tuple[Dataset, Sequence[int] | None]:
        """Return this dataset's share of rows, and their indices in the source (None: in order)."""
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
        share = self.weight * len(rows)
        if self.first:
            return rows.select(range(int(share))), None
        places = numpy.random.default_rng(seed).permutation(len(rows))[: round(share)]
        return rows.select(places), places


@dataclass(frozen=True)
class Mixture:
    """The datasets of a mixture, the seed of its shuffle, and the size of its test split.

    ``test_split_size`` is a share below 1, or a number of rows. TRL's ``get_dataset`` concatenates
    the sources unchanged, so it cannot give each dataset a mapper, a task or an instruction.
    """

    datasets: tuple[Part, ...]
    seed: int = 0
    test_split_size: float | None = None

    def of(self, split: str) -> Mixture:
        """Return the mixture of a split: for "test" the datasets' test splits, if all have one."""
        if split != "test" or not all(part.test_split for part in self.datasets):
            return self
        parts = [replace(part, split=part.test_split or "", weight=1.0) for part in self.datasets]
        return replace(self, datasets=tuple(parts))

    def combine(self, parts: list[Dataset], with_tasks: bool) -> Dataset:
        """Concatenate and shuffle the mapped rows of all datasets.

        ``with_tasks``: if any dataset has tasks, all rows get a column ``task``. The task of the
        dataset overrides the task of a row.
        """
        from datasets import concatenate_datasets  # heavy

        tasks = [part.task for part in self.datasets]
        if with_tasks and (any(tasks) or any("task" in rows.column_names for rows in parts)):
            parts = [_with_task(rows, task) for rows, task in zip(parts, tasks, strict=True)]
        # The message of datasets names the column and its types.
        with located("dataset_mixture: the datasets have different types in one column"):
            return concatenate_datasets(parts).shuffle(seed=self.seed)

    def cut(self, rows: Dataset, split: str) -> Dataset:
        """Return the rows of one split. A draw by question says where each row belongs."""
        if all(part.test_split for part in self.datasets):
            return rows
        size = self.test_split_size
        if size is None and split == "test":
            raise RecipeError(_NO_TEST_SPLIT)
        if size is None:
            return rows
        draws = [_draw(self.seed, question_key(identity)) for identity in identities(rows)]
        # An evaluation drops fewer rows than training did, and must not move training rows here.
        limit = size if size < 1 else sorted([*draws, 1.0])[min(int(size), len(draws))]
        places = [index for index, draw in enumerate(draws) if (draw < limit) == (split == "test")]
        if not 0 < len(places) < len(rows):
            raise RecipeError(
                f"dataset_mixture: test_split_size {size!r} leaves either the training or the test "
                f"split of {len(rows)} rows empty. Fix: a number between 1 and {len(rows) - 1}, or "
                "a share below 1"
            )
        return rows.select(places)


def _draw(seed: int, question: str) -> float:
    """Return a number from 0 to 1, which only the seed and the question decide."""
    digest = hashlib.sha256(f"{seed}:{question}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


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

    - ``"grpo"``: ``solution`` (text, if the source has it) and the columns of the task;
    - ``"generate"``: the same, ``question`` and every other field of the mapped row;
    - ``"sft"``: ``completion``, one assistant message; ``mapper: auto`` takes whole conversations;
    - ``"reward"``: ``chosen`` and ``rejected``, one assistant message each;
    - ``"distill"``: none.

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
        raise RecipeError(
            f"prompt_template: must contain {{question}}, which the question replaces, "
            f"got {args.prompt_template!r}"
        )
    limit = args.max_samples if split == "train" else args.max_eval_samples
    report = LoadReport()
    tools = None
    if args.tools or args.environment:
        from r1_recipes.extras.agents.registry import schemas

        tools = schemas(args.tools or (), args.environment)
    renderer = Renderer(args, fmt, method, tokenizer, args.few_shot, tools)
    if args.dataset_mixture:
        name = "dataset_mixture"
        dataset = _load_mixture(renderer, split, rows, report)
    else:
        name = args.dataset_name
        split_name = args.dataset_train_split if split == "train" else args.dataset_test_split
        part = Part(name, args.dataset_config, args.dataset_revision, split_name)
        source = part.load(args, 0, "")[0] if rows is None else rows
        dataset = _row_mapper(renderer, part, source, report)(source, limit)
    if not len(dataset):
        raise RecipeError(f"dataset {name}, split {split!r}: all rows were dropped: {report}")
    if limit is not None and len(dataset) > limit:
        dataset = dataset.select(range(limit))
    if isinstance(args.environment, dict) and method in ("grpo", "generate"):
        _check_environments(dataset, args.environment)
    report.kept = len(dataset)
    return dataset, report


def _load_mixture(renderer: Renderer, split: str, given: Any, report: LoadReport) -> Dataset:
    """Return the shuffled mapped rows of a mixture. ``given`` rows are not split any further."""
    args = renderer.args
    mixture = from_mapping(Mixture, args.dataset_mixture, "dataset_mixture").of(split)
    mapped = []
    for number, part in enumerate(mixture.datasets):
        where = f"dataset_mixture: dataset {number + 1}"
        source, places = (given[number], None) if given else part.load(args, mixture.seed, where)
        row_mapper = _row_mapper(renderer, part, source, report)
        rows = replace(row_mapper, where=f"{part.id}: ", places=places)(source)
        if not len(rows):
            where = f"{where} ({part.id}, weight {part.weight})"
            raise RecipeError(f"{where}: all rows were dropped: {report}")
        mapped.append(rows)
    dataset = mixture.combine(mapped, with_tasks=renderer.method != "distill")
    return dataset if given else mixture.cut(dataset, split)


def _row_mapper(renderer: Renderer, part: Part, rows: Dataset, report: LoadReport) -> RowMapper:
    """Return the mapper of a dataset's rows, with the instruction that its prompts start with."""
    args = renderer.args
    columns = rows.column_names
    mapper, takes_instruction = _choose_mapper(args, renderer.method, part, columns)
    system_prompt = part.system_prompt
    if system_prompt is None and not takes_instruction:
        system_prompt = ""
        renderer = replace(renderer, few_shot=None)
    if system_prompt is not None:
        fmt = replace(renderer.fmt, system_prompt=system_prompt)
        renderer = replace(renderer, fmt=fmt)
    keep = _extra_columns(args, renderer.method, columns, part.id)
    return RowMapper(mapper, renderer, keep, report)


def _choose_mapper(args: Any, method: str, part: Part, columns: list[str]) -> tuple[Mapper, bool]:
    """Return the mapper of a dataset, and whether its rows take the recipe's instruction.

    Questions take the instruction. Preference pairs and unchanged conversations do not.
    """
    name = part.mapper or args.mapper
    if name == "auto" and part.id.startswith("environment:"):  # Its other columns are arbitrary.
        name = "environment"
    config = part.mapper_config or args.mapper_config or {}
    named = {}
    if name in COLUMNS_BY_KEYS:
        named = {key: getattr(args, key) for key in COLUMN_KEYS}
    takes_whole = name == "auto" and method == "sft" and not any(named.values())
    whole = conversation_mapper(columns) if takes_whole else None
    if whole is not None:
        if config:
            raise RecipeError(
                f"mapper_config: dataset {part.id}: has no effect on conversations, which mapper "
                f"'auto' leaves unchanged, got {config!r}. Fix: mapper: conversations"
            )
        names = ", ".join(whole.columns)
        logger.info("%s: conversations are used unchanged (%s)", part.id, names)
        return whole, False
    mapper = get_mapper(name, columns, **{**named, **config})
    absent = mapper.missing(columns)
    if absent:
        raise _no_columns(mapper, absent, columns, part.id, named)
    if mapper.images and method != "grpo":
        raise RecipeError(
            f"dataset {part.id}: mapper {mapper.name!r} gives pictures, which {method} does not "
            "support. Fix: train with grpo"
        )
    return mapper, method != "reward"


def _no_columns(
    mapper: Mapper,
    absent: list[str],
    columns: list[str],
    source: str,
    named: dict[str, str | None],
) -> RecipeError:
    """Return the error for missing columns. ``named`` maps recipe keys to the columns they name."""
    fixes = []
    for key, column in named.items():
        close = nearest(column, columns) if column in absent else []
        if column and close:
            fixes.append(f"{key}: {close[0]}")
    fix = f". Fix: {', '.join(fixes)}" if fixes else ""
    return RecipeError(
        f"dataset {source}: mapper {mapper.name!r} needs column {', '.join(map(repr, absent))}; "
        f"the source has the columns {', '.join(columns)}{fix}"
    )


def _check_environments(dataset: Dataset, environments: dict[str, Any]) -> None:
    names = dataset["environment"] if "environment" in dataset.column_names else [""]
    for row, name in enumerate(names):
        if name not in environments:
            raise RecipeError(
                f"environment: row {row}: column 'environment' must be one of "
                f"{', '.join(map(str, environments))}, got {name!r}"
            )


def _extra_columns(args: Any, method: str, columns: list[str], source: str) -> list[str]:
    """Return the source columns that the rewards or the chat template get.

    A mixture keeps only the columns in ``keep_columns``, because its datasets may have different
    types in the same column.
    """
    for column in args.keep_columns or ():
        if column not in columns:
            unknown = unknown_name("column", column, columns)
            raise RecipeError(f"keep_columns: dataset {source}: {unknown}")
        if column in _RESERVED:
            cause = "is a name that trainers and rewards use. Fix: rename the column in your data"
            raise RecipeError(f"keep_columns: {column!r} {cause}")
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
    """Remove training rows whose question is in ``held_out``, ignoring white space.

    Returns:
        The rows left, and the number of rows removed.
    """
    seen = set(map(question_key, identities(held_out)))
    keep = [index for index, row in enumerate(identities(train)) if question_key(row) not in seen]
    dropped = len(train) - len(keep)
    return train.select(keep) if dropped else train, dropped


def identities(rows: Dataset) -> Iterable[Any]:
    """Return what identifies each row: its prompt, or the whole row if an environment plays it.

    Rows of an environment may share a question and still differ.
    """
    # Reading a row decodes all its columns, which may be large, so read only the prompts.
    if "environment" in rows.column_names:
        return rows
    if "image" in rows.column_names:  # many pictures have the same question
        pictures = rows.select_columns("image").with_format("arrow")
        whole = (repr(row["image"].to_pylist()) for row in pictures)  # str() would shorten it
        digests = [hashlib.sha256(picture.encode()).hexdigest() for picture in whole]
        return [
            [*prompt, {"role": "user", "content": digest}]
            for prompt, digest in zip(rows["prompt"], digests, strict=True)
        ]
    return rows["prompt"]


def question_key(identity: Any) -> str:
    """Return a row's question with white space normalized. Equal texts are the same question."""
    if isinstance(identity, dict):
        return str(identity)
    # Compare all user messages: two conversations may end in the same "go on" and still differ.
    questions = [message["content"] for message in identity if message["role"] == "user"]
    return "\n".join(" ".join(question.split()) for question in questions)
