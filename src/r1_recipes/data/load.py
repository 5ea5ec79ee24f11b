"""Turn a recipe's data keys into the dataset that its trainer takes."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from r1_recipes.common.errors import RecipeError, located, unknown_name
from r1_recipes.data.mappers import Mapper, SkipRow, get_mapper
from r1_recipes.data.messages import say_once
from r1_recipes.data.prompt import Rendering, build_prompt, trainer_columns, turn_tokens
from r1_recipes.data.sources import load_rows
from r1_recipes.prompts import ResponseFormat

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["LoadReport", "build_prompt", "drop_overlap", "drop_unanswered", "load_dataset"]

logger = logging.getLogger(__name__)

# Columns that trainers and reward calls use. A source column with one of these names would collide.
_RESERVED_NAMES = """
prompt prompts completion completions completion_ids messages solution question reasoning
chosen rejected image images environment environments trainer_state log_extra log_metric
"""
_RESERVED = frozenset(_RESERVED_NAMES.split())
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
    columns: list[str] | None = None
    weight: float = 1.0  # the share of its rows
    mapper: str | None = None
    mapper_config: dict[str, Any] | None = None
    task: str | None = None
    system_prompt: str | None = None
    task_config: dict[str, Any] | None = None


@dataclass
class LoadReport:
    """Counts the rows of one split that were read, kept and dropped, with the reasons.

    ``unused`` are the columns of the source that are in no prompt and no target.
    """

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    unused: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        dropped = [f"{count} dropped: {reason}" for reason, count in self.dropped.most_common()]
        return "; ".join([f"{self.kept} of {self.read} rows kept", *dropped])


class Row(dict):
    """A row that notes which columns are looked at, in ``read`` for all rows of a source."""

    read: ClassVar[set[str]] = set()

    def __getitem__(self, column: str) -> Any:
        self.read.add(column)
        return super().__getitem__(column)

    def get(self, column: str, default: Any = None) -> Any:
        """Return a cell."""
        self.read.add(column)
        return super().get(column, default)


def load_dataset(
    args: Any,
    fmt: ResponseFormat,
    method: str,
    *,
    split: str = "train",
    tokenizer: Any = None,
    rows: Dataset | Sequence[Dataset] | None = None,
) -> tuple[Dataset, LoadReport]:
    """Load, map, render and select one split. Rows keep the source's order.

    ``prompt`` is a list of messages, the instruction first and the question last. ``method``
    decides which other columns rows have: for ``grpo`` ``solution`` (a text, if the source has it)
    and the columns of the task, for ``generate`` also ``question`` and every other field of the
    mapped row, for ``sft`` ``completion``, for ``reward`` ``chosen`` and ``rejected``.

    Args:
        args: The recipe's keys: ``recipe.script``.
        fmt: The response format.
        method: The command.
        split: ``"train"`` or ``"test"``.
        tokenizer: Counts the tokens of prompts, and knows the tokens that no text may hold.
        rows: Source rows to use instead of loading them. For a mixture, one dataset per part.

    Raises:
        RecipeError: No row is left, or a key does not fit the data.
    """
    say_once.cache_clear()
    if args.prompt_template is not None and "{question}" not in args.prompt_template:
        raise RecipeError(
            f"prompt_template: must contain {{question}}, which the question replaces, "
            f"got {args.prompt_template!r}"
        )
    tools = None
    if args.tools or args.environment:
        from r1_recipes.extras.agents.registry import schemas

        tools = schemas(args.tools or (), args.environment)
    tokens = turn_tokens(tokenizer) if tokenizer is not None else ()
    if method == "reward":  # pairs are used as they are
        fmt = replace(fmt, system_prompt="")
    how = Rendering(args, fmt, method, tokenizer, tokens, tools)
    report = LoadReport()
    if args.dataset_mixture:
        dataset = _mixture(how, split, rows, report)
    else:
        name = args.dataset_train_split if split == "train" else args.dataset_test_split
        part = Part(args.dataset_name, args.dataset_config, args.dataset_revision, name)
        dataset = _rendered(how, part, rows, report)
    if len(dataset) and tokenizer is not None and args.max_prompt_tokens is not None:
        dataset = _short_enough(dataset, how, report)
    limit = args.max_samples if split == "train" else args.max_eval_samples
    if limit is not None and len(dataset) > limit:
        dataset = dataset.select(range(limit))
    report.kept = len(dataset)
    if not report.kept:
        name = args.dataset_name or "dataset_mixture"
        raise RecipeError(f"dataset {name}, split {split!r}: all rows were dropped: {report}")
    return dataset, report


def _rendered(
    how: Rendering, part: Part, given: Any, report: LoadReport, where: str = "", seed: int = 0
) -> Dataset:
    """Return the trainer's columns of one dataset's rows, and count the rows that are dropped."""
    from datasets.fingerprint import Hasher  # heavy

    args, rows = how.args, given
    if rows is None:
        options = {"config": part.config, "revision": part.revision, "hub": args.hub}
        options["task_config"] = part.task_config or args.task_config
        rows = load_rows(part.id, part.split, **options)
        if part.columns or part.weight != 1:
            rows = _share(rows, part, seed)
    columns = rows.column_names
    name, config = part.mapper or args.mapper, part.mapper_config or args.mapper_config or {}
    if name in COLUMNS_BY_KEYS:
        config = {key: getattr(args, key) for key in COLUMN_KEYS} | config
    if name == "auto" and how.method == "sft" and not any(map(config.get, COLUMN_KEYS)):
        name, config = _conversations(columns, config)
    if part.system_prompt is not None:
        how = replace(how, fmt=replace(how.fmt, system_prompt=part.system_prompt))
    mapper = get_mapper(name, columns, **config)
    keep = _kept_columns(args, how.method, columns)
    features = _features(how, rows, keep) if how.method == "sft" else None
    Row.read = set(keep if features else ())
    digest = hashlib.blake2b(digest_size=8)
    # map() would cast a mapper's text to the type of the source's column of the same name.
    rows = rows.rename_columns({name: f"source {name}" for name in columns if name in _RESERVED})
    dataset = rows.map(
        functools.partial(_render, mapper, columns, keep, how, report, where, digest, features),
        batched=True,
        batch_size=8 if "image" in columns else 1000,  # decoded pictures stay in memory
        remove_columns=rows.column_names,
        features=features,
        load_from_cache_file=False,  # reasons are counted on every run
        new_fingerprint=Hasher.hash((rows._fingerprint, str(part), str(how))),
        desc=f"mapping {part.id}",
    )
    # What a trainer caches belongs to these rows, whatever the code of a mapper was and is.
    dataset._fingerprint = digest.hexdigest()
    report.read += len(rows)
    unused = [column for column in columns if column not in Row.read]
    if unused:
        logger.info("%s: columns in no prompt and no target: %s", part.id, ", ".join(unused))
        report.unused += unused
    return dataset


def _render(
    mapper: Mapper,
    columns: list[str],
    keep: list[str],
    how: Rendering,
    report: LoadReport,
    where: str,
    digest: Any,
    features: Any,
    batch: dict[str, list[Any]],
) -> dict[str, list[Any]]:
    """Return a batch of rows as the trainer's columns, without those that are dropped."""
    made: list[dict[str, Any]] = []
    for cells in zip(*batch.values(), strict=True):
        row = Row(zip(columns, cells, strict=True))
        kept = {name: dict.__getitem__(row, name) for name in keep}
        try:
            made.append(kept | trainer_columns(row, mapper(row), how))
        except SkipRow as reason:
            report.dropped[f"{where}{reason}"] += 1
    # A picture counts by its size.
    text = json.dumps(made, default=lambda value: getattr(value, "size", None) or str(value))
    digest.update(text.encode())
    names = dict.fromkeys(chain(features or ["prompt"], *made))
    return {name: [row.get(name) for row in made] for name in names}


def _features(how: Rendering, rows: Dataset, keep: list[str]) -> Any:
    """Return the types of SFT's columns. Some messages have calls of tools, with any arguments.

    The columns of other methods are typed by their first rows.
    """
    from datasets import Features, Json, List, Value  # heavy

    types = {column: rows.features[column] for column in keep}
    types |= {"prompt": List(Json()), "completion": List(Json())}
    return Features(types | ({"tools": Value("string")} if how.tools else {}))


def _share(rows: Dataset, part: Part, seed: int) -> Dataset:
    """Return a dataset's columns, and the share of its rows that the seed draws."""
    import numpy  # heavy

    if part.columns:
        rows = rows.select_columns(part.columns)
    order = numpy.random.default_rng(seed).permutation(len(rows))
    return rows if part.weight == 1 else rows.select(order[: round(part.weight * len(rows))])


def _conversations(columns: list[str], config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the mapper that SFT's ``auto`` takes: whole conversations as they are, if any."""
    if {"messages", "conversations"} & {*columns} and "reannotated_messages" not in columns:
        return "conversations", {"whole": True} | config
    if {"prompt", "completion"} <= {*columns}:
        return "prompt_completion", {"whole": True} | config
    return "auto", config


def _kept_columns(args: Any, method: str, columns: list[str]) -> list[str]:
    """Return the source columns that the rewards or the chat template get.

    A mixture keeps only the columns in ``keep_columns``, because its datasets may have different
    types in the same column.
    """
    for column in args.keep_columns or ():
        if column not in columns or column in _RESERVED:
            usable = [name for name in columns if name not in _RESERVED]
            raise RecipeError(f"keep_columns: {unknown_name('column', column, usable)}")
    if method in ("distill", "reward"):
        return []
    if args.keep_columns is not None:
        return args.keep_columns
    if method == "sft":
        return [column for column in columns if column in _TEMPLATE_COLUMNS]
    mixed = args.dataset_mixture and not args.environment
    return [] if mixed else [column for column in columns if column not in _RESERVED]


def _mixture(how: Rendering, split: str, given: Any, report: LoadReport) -> Dataset:
    """Return the shuffled rows of a mixture. ``given`` rows are not split any further.

    TRL's ``get_dataset`` splits without a seed (trl/scripts/utils.py:485), so each rank and each
    resumed run would train on other rows. It gives no dataset a mapper, a task or an instruction.
    """
    from datasets import concatenate_datasets  # heavy

    mixture = how.args.dataset_mixture
    parts, seed, size = _parts(mixture), mixture.get("seed") or 0, mixture.get("test_split_size")
    if size is None and split == "test" and not given:
        raise RecipeError(
            "dataset_mixture: test_split_size: must be set, because evaluation needs a test split. "
            "Fix: test_split_size: 128"
        )
    mapped = []
    for number, part in enumerate(parts):
        where = f"dataset_mixture: dataset {number + 1} ({part.id}, weight {part.weight})"
        try:
            rows = _rendered(how, part, given and given[number], report, f"{part.id}: ", seed)
        except RecipeError as error:
            raise RecipeError(f"{where}: {error}") from error
        if not len(rows):
            raise RecipeError(f"{where}: all rows were dropped: {report}")
        mapped.append(rows)
    if how.method in ("grpo", "generate"):
        named = any(part.task for part in parts) or any("task" in rows.features for rows in mapped)
        mapped = [_with_task(*each, named) for each in zip(mapped, parts, strict=True)]
    with located("dataset_mixture: the datasets have different types in one column"):
        whole = concatenate_datasets(mapped).shuffle(seed=seed)
    with located("dataset_mixture: test_split_size"):
        return whole if given or not size else whole.train_test_split(size, seed=seed)[split]


def _parts(mixture: dict[str, Any]) -> list[Part]:
    """Return the datasets of a mixture. Raise RecipeError that names the dataset and the key."""
    known, entries = [field.name for field in fields(Part)], mixture.get("datasets")
    parts = []
    with located("dataset_mixture"):
        _check_keys(mixture, ["datasets", "seed", "test_split_size"])
        if not isinstance(entries, list) or not entries:
            raise ValueError(f"datasets: must be a list of mappings of {', '.join(known)}")
        for number, entry in enumerate(entries, start=1):
            with located(f"dataset {number}"):
                _check_keys(entry, known)
                if "id" not in entry:
                    raise ValueError("id: missing")
                part = Part(**{key: value for key, value in entry.items() if value is not None})
                if not isinstance(part.weight, int | float) or not 0 < part.weight <= 1:
                    share = "must be the share of its rows, in (0, 1]"
                    raise ValueError(f"weight: {share}, got {part.weight!r}")
                parts.append(part)
    return parts


def _check_keys(mapping: Any, known: list[str]) -> None:
    if not isinstance(mapping, dict):
        raise ValueError(f"must be a mapping of {', '.join(known)}, got {mapping!r}")
    for key in mapping:
        if key not in known:
            raise ValueError(unknown_name("key", key, known))


def _with_task(rows: Dataset, part: Part, named: bool) -> Dataset:
    """Return rows with a column ``task``, if any has one. That of the dataset comes first."""
    if part.task and "task" in rows.features:
        rows = rows.remove_columns("task")
    if not named or "task" in rows.features:
        return rows
    return rows.add_column("task", [part.task or ""] * len(rows))


def _short_enough(dataset: Dataset, how: Rendering, report: LoadReport) -> Dataset:
    """Return the rows whose prompts have at most ``max_prompt_tokens`` tokens."""
    limit, kept = how.args.max_prompt_tokens, []
    options = {"tools": json.loads(how.tools)} if how.tools else {}
    for start in range(0, len(dataset), 1000):
        prompts = dataset[start : start + 1000]["prompt"]
        encoded = how.tokenizer.apply_chat_template(
            prompts, add_generation_prompt=True, return_dict=True, **options
        )
        ids = enumerate(encoded["input_ids"], start=start)
        kept += [row for row, tokens in ids if len(tokens) <= limit]
    if len(kept) < len(dataset):
        report.dropped[f"prompt over max_prompt_tokens {limit}"] += len(dataset) - len(kept)
    return dataset.select(kept)


def drop_unanswered(rows: Dataset, report: LoadReport) -> Dataset:
    """Return the rows that have a reference answer, for a reward that compares with one."""
    if "solution" not in rows.features or "nums" in rows.features:
        return rows
    kept = [row for row, solution in enumerate(rows["solution"]) if solution]
    if len(kept) < len(rows):
        reason = "no reference answer, with which a reward compares"
        report.dropped[reason] += len(rows) - len(kept)
    report.kept = len(kept)
    return rows.select(kept)


def drop_overlap(train: Dataset, held_out: Dataset) -> tuple[Dataset, int]:
    """Return the training rows whose question is not in ``held_out``, and how many are gone.

    Many rows with pictures, or of one environment, ask the same question and still differ.
    """
    if {"image", "environment"} & {*train.column_names}:
        return train, 0
    seen = set(map(question_key, held_out["prompt"]))
    kept = [row for row, prompt in enumerate(train["prompt"]) if question_key(prompt) not in seen]
    return train.select(kept), len(train) - len(kept)


def question_key(prompt: list[dict[str, Any]]) -> str:
    """Return a prompt's questions with white space normalized. Equal texts are the same question.

    Two conversations may end in the same "go on" and still differ, so all of the user's messages
    count.
    """
    questions = [message["content"] for message in prompt if message["role"] == "user"]
    return "\n".join(" ".join(question.split()) for question in questions)
