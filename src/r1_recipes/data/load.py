"""Turn a recipe's data keys into the dataset that its trainer takes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    weight: float = 1.0
    mapper: str | None = None
    mapper_config: dict[str, Any] | None = None
    task: str | None = None
    system_prompt: str | None = None
    task_config: dict[str, Any] | None = None


@dataclass
class LoadReport:
    """Counts the rows of one split that were read, kept and dropped.

    Attributes:
        read: Rows read from the source.
        kept: Rows in the dataset.
        dropped: The number of dropped rows for each reason. In a mixture, a reason starts with the
            name of its dataset.
        first_index: For each reason, the index of the first dropped row in the source. Prompts
            are measured after mapping, and have none.
        unused: Columns of the source that are in no prompt and no target.
    """

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first_index: dict[str, int] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)

    def drop(self, reason: str, index: int) -> None:
        """Count a dropped row. ``index`` is its row in the source."""
        self.dropped[reason] += 1
        self.first_index.setdefault(reason, index)

    def __str__(self) -> str:
        parts = [f"{self.kept} of {self.read} rows kept"]
        for reason, count in self.dropped.most_common():
            first = self.first_index.get(reason)
            where = f" (first: row {first})" if first is not None else ""
            parts.append(f"{count} dropped: {reason}{where}")
        return "; ".join(parts)


class Row(dict):
    """A row that notes which of its columns a mapper looks at, in ``read`` for the whole source."""

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
    """Load, map, render and select one split.

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
        tokenizer: Counts the tokens of prompts, and knows the tokens that no text may hold.
        rows: Source rows to use instead of loading them. For a mixture, one dataset per part.

    Returns:
        The rows, and a report on the rows that were dropped.

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
    how = Rendering(args, fmt, method, tokenizer, tokens, tools)
    report = LoadReport()
    if args.dataset_mixture:
        name = "dataset_mixture"
        dataset = _mixture(how, split, rows, report)
    else:
        name = args.dataset_name
        split_name = args.dataset_train_split if split == "train" else args.dataset_test_split
        part = Part(name, args.dataset_config, args.dataset_revision, split_name)
        dataset = _rendered(how, part, rows, report)
    if len(dataset) and tokenizer is not None and args.max_prompt_tokens is not None:
        dataset = _short_enough(dataset, how, report)
    limit = args.max_samples if split == "train" else args.max_eval_samples
    if limit is not None and len(dataset) > limit:
        dataset = dataset.select(range(limit))
    report.kept = len(dataset)
    if not report.kept:
        raise RecipeError(f"dataset {name}, split {split!r}: all rows were dropped: {report}")
    return dataset, report


def _rendered(
    how: Rendering, part: Part, given: Any, report: LoadReport, where: str = "", seed: int = 0
) -> Dataset:
    """Return the trainer's columns of one dataset's rows, and count the rows that are dropped."""
    from datasets import Image  # heavy
    from datasets.fingerprint import Hasher

    args = how.args
    rows = given
    if rows is None:
        task_config = part.task_config or args.task_config
        options = {"config": part.config, "revision": part.revision, "hub": args.hub}
        rows = load_rows(part.id, part.split, **options, task_config=task_config)
        if part.columns or part.weight != 1:
            rows = _share(rows, part, seed)
    columns = rows.column_names
    name, config = part.mapper or args.mapper, part.mapper_config or args.mapper_config or {}
    if name in COLUMNS_BY_KEYS:
        config = {key: getattr(args, key) for key in COLUMN_KEYS} | config
    if name == "auto":
        name, config, how = _recognised(how, part, columns, config)
    if part.system_prompt is not None or how.method == "reward":
        how = _instructed(how, part.system_prompt)
    mapper = get_mapper(name, columns, **config)
    keep = _kept_columns(args, how.method, columns)
    features = _features(how, rows, keep) if how.method == "sft" else None
    Row.read = set(keep if features else ())
    digest = hashlib.blake2b(digest_size=8)
    dataset = rows.map(
        functools.partial(_render, mapper, keep, how, report, where, digest, features),
        batched=True,
        with_indices=True,
        batch_size=8 if "image" in columns else 1000,  # decoded pictures stay in memory
        remove_columns=columns,
        features=features,
        load_from_cache_file=False,  # reasons are counted on every run
        new_fingerprint=Hasher.hash((rows._fingerprint, str(part), str(how))),
        desc=f"mapping {part.id}",
    )
    if "image" in dataset.column_names:
        # datasets keeps the type that a column of this name had: a file's bytes and path.
        dataset = dataset.cast_column("image", Image())
    # What a trainer caches belongs to these rows, whatever the code of a mapper was and is.
    dataset._fingerprint = digest.hexdigest()
    report.read += len(rows)
    if unused := [column for column in columns if column not in Row.read]:
        _report_unused(report, part, unused, keep)
    return dataset


def _render(
    mapper: Mapper,
    keep: list[str],
    how: Rendering,
    report: LoadReport,
    where: str,
    digest: Any,
    features: Any,
    batch: dict[str, list[Any]],
    indices: list[int],
) -> dict[str, list[Any]]:
    """Return a batch of rows as the trainer's columns, without those that are dropped."""
    kept: list[dict[str, Any]] = []
    for index, *cells in zip(indices, *batch.values(), strict=True):
        row = Row(zip(batch, cells, strict=True))
        try:
            made = trainer_columns(row, mapper(row), how)
        except SkipRow as reason:
            report.drop(f"{where}{reason}", index)
        else:
            kept.append({name: dict.__getitem__(row, name) for name in keep} | made)
    digest.update(json.dumps(kept, default=_stamp).encode())
    names = dict.fromkeys(chain(features or ["prompt"], *kept))
    return {name: [columns.get(name) for columns in kept] for name in names}


def _stamp(value: Any) -> Any:
    """Return what stands for a value in the fingerprint: the size of a picture, else its text."""
    return getattr(value, "size", None) or str(value)


def _features(how: Rendering, rows: Dataset, keep: list[str]) -> Any:
    """Return the types of SFT's columns. Some messages have calls of tools, with any arguments.

    The columns of other methods are typed by their first rows.
    """
    from datasets import Features, Json, List, Value  # heavy

    types = {column: rows.features[column] for column in keep}
    types |= {"prompt": List(Json()), "completion": List(Json())}
    return Features(types | ({"tools": Value("string")} if how.tools else {}))


def _report_unused(report: LoadReport, part: Part, unused: list[str], keep: list[str]) -> None:
    """Log the columns of a source that no prompt and no target holds."""
    report.unused += unused
    groups = {
        "no prompt and no target holds": [name for name in unused if name not in keep],
        "only rewards see": [name for name in unused if name in keep],
    }
    for which, names in groups.items():
        if names:
            logger.info("%s: columns that %s: %s", part.id, which, ", ".join(names))


def _share(rows: Dataset, part: Part, seed: int) -> Dataset:
    """Return a dataset's columns, and the share of its rows that the seed draws."""
    import numpy  # heavy

    if part.columns:
        rows = rows.select_columns(part.columns)
    if part.weight == 1:
        return rows
    order = numpy.random.default_rng(seed).permutation(len(rows))
    return rows.select(order[: round(part.weight * len(rows))])


def _recognised(
    how: Rendering, part: Part, columns: list[str], config: dict[str, Any]
) -> tuple[str, dict[str, Any], Rendering]:
    """Return what ``auto`` stands for, if it is not the mapper that fits the columns best.

    For SFT, whole conversations are used as they are, without the recipe's instruction.
    """
    if part.id.startswith("environment:"):  # its other columns are arbitrary
        return "environment", config, how
    if how.method != "sft" or any(config.get(key) for key in COLUMN_KEYS):
        return "auto", config, how
    if {"messages", "conversations"} & {*columns} and "reannotated_messages" not in columns:
        name = "conversations"
    elif {"prompt", "completion"} <= {*columns}:
        name = "prompt_completion"
    else:
        return "auto", config, how
    logger.info("%s: conversations are used as they are", part.id)
    return name, {"well_formed": False} | config, _instructed(how, None)


def _instructed(how: Rendering, system_prompt: str | None) -> Rendering:
    """Return the rendering with the instruction of a dataset.

    Without one, its rows are used as they are, without worked examples.
    """
    args = how.args if system_prompt is not None else dataclasses.replace(how.args, few_shot=None)
    fmt = dataclasses.replace(how.fmt, system_prompt=system_prompt or "")
    return dataclasses.replace(how, args=args, fmt=fmt)


def _kept_columns(args: Any, method: str, columns: list[str]) -> list[str]:
    """Return the source columns that the rewards or the chat template get.

    A mixture keeps only the columns in ``keep_columns``, because its datasets may have different
    types in the same column.
    """
    for column in args.keep_columns or ():
        if column not in columns:
            raise RecipeError(f"keep_columns: {unknown_name('column', column, columns)}")
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


def _mixture(how: Rendering, split: str, given: Any, report: LoadReport) -> Dataset:
    """Return the shuffled rows of a mixture. ``given`` rows are not split any further.

    TRL's ``get_dataset`` splits without a seed (trl/scripts/utils.py:485), so each rank and each
    resumed run would train on other rows. It gives no dataset a mapper, a task or an instruction.
    """
    from datasets import concatenate_datasets  # heavy

    mixture = how.args.dataset_mixture
    parts, seed = _parts(mixture), mixture.get("seed") or 0
    mapped = []
    for number, part in enumerate(parts):
        try:
            rows = _rendered(how, part, given and given[number], report, f"{part.id}: ", seed)
        except RecipeError as error:
            raise RecipeError(f"dataset_mixture: dataset {number + 1}: {error}") from error
        if not len(rows):
            raise RecipeError(
                f"dataset_mixture: dataset {number + 1} ({part.id}, weight {part.weight}): all "
                f"rows were dropped: {report}"
            )
        mapped.append(rows)
    named = any(part.task for part in parts) or any("task" in rows.column_names for rows in mapped)
    if named and how.method in ("grpo", "generate"):
        mapped = [_with_task(rows, part.task) for rows, part in zip(mapped, parts, strict=True)]
    with located("dataset_mixture: the datasets have different types in one column"):
        whole = concatenate_datasets(mapped).shuffle(seed=seed)
    size = mixture.get("test_split_size")
    if size is None and split == "test" and not given:
        raise RecipeError(
            "dataset_mixture: test_split_size: must be set, because evaluation needs a test split. "
            "Fix: test_split_size: 128"
        )
    if size is None or given:
        return whole
    with located("dataset_mixture: test_split_size"):
        return whole.train_test_split(size, seed=seed)[split]


def _parts(mixture: dict[str, Any]) -> list[Part]:
    """Return the datasets of a mixture. Raise RecipeError that names the dataset and the key."""
    with located("dataset_mixture"):
        _check_keys(mixture, ["datasets", "seed", "test_split_size"])
        if not mixture.get("datasets") or not isinstance(mixture["datasets"], list):
            raise ValueError("datasets: must be a list of mappings with id, weight, mapper, …")
    parts = []
    for number, entry in enumerate(mixture["datasets"], start=1):
        with located(f"dataset_mixture: dataset {number}"):
            _check_keys(entry, [field.name for field in dataclasses.fields(Part)])
            if "id" not in entry:
                raise ValueError("id: missing")
            part = Part(**{key: value for key, value in entry.items() if value is not None})
            if not isinstance(part.weight, int | float) or not 0 < part.weight <= 1:
                raise ValueError(
                    f"weight: must be the share of its rows, in (0, 1], got {part.weight!r}"
                )
        parts.append(part)
    return parts


def _check_keys(mapping: Any, known: list[str]) -> None:
    if not isinstance(mapping, dict):
        raise ValueError(f"must be a mapping of {', '.join(known)}, got {mapping!r}")
    for key in mapping:
        if key not in known:
            raise ValueError(unknown_name("key", key, known))


def _with_task(rows: Dataset, task: str | None) -> Dataset:
    """Return rows with a column ``task``. The task of the dataset overrides that of a row."""
    if "task" in rows.column_names:
        if not task:
            return rows
        rows = rows.remove_columns("task")
    return rows.add_column("task", [task or ""] * len(rows))


def _short_enough(dataset: Dataset, how: Rendering, report: LoadReport) -> Dataset:
    """Return the rows whose prompts have at most ``max_prompt_tokens`` tokens."""
    limit = how.args.max_prompt_tokens
    options = {"tools": json.loads(how.tools)} if how.tools else {}
    over = []
    for start in range(0, len(dataset), 1000):
        prompts = dataset[start : start + 1000]["prompt"]
        texts = how.tokenizer.apply_chat_template(
            prompts, add_generation_prompt=True, tokenize=False, **options
        )
        # A token is at least one ASCII character, so most texts need not be tokenized.
        long = [row for row, text in enumerate(texts) if len(text) > limit or not text.isascii()]
        if long:
            encoded = how.tokenizer([texts[row] for row in long], add_special_tokens=False)
            lengths = map(len, encoded["input_ids"])
            over += [start + row for row, n in zip(long, lengths, strict=True) if n > limit]
    if over:
        report.dropped[f"prompt over max_prompt_tokens {limit}"] += len(over)
    dropped = {*over}
    return dataset.select([row for row in range(len(dataset)) if row not in dropped])


def drop_overlap(train: Dataset, held_out: Dataset) -> tuple[Dataset, int]:
    """Remove training rows whose question is in ``held_out``, ignoring white space.

    Many rows with pictures, or of one environment, ask the same question and still differ.

    Returns:
        The rows left, and the number of rows removed.
    """
    if {"image", "environment"} & {*train.column_names}:
        return train, 0
    seen = set(map(question_key, held_out["prompt"]))
    kept = [row for row, prompt in enumerate(train["prompt"]) if question_key(prompt) not in seen]
    dropped = len(train) - len(kept)
    return train.select(kept) if dropped else train, dropped


def drop_unanswered(rows: Dataset, report: LoadReport) -> Dataset:
    """Return the rows that have a reference answer, for rewards that compare with one."""
    if "solution" not in rows.column_names or "nums" in rows.column_names:
        return rows
    empty = [row for row, solution in enumerate(rows["solution"]) if not solution]
    for row in empty:
        report.drop("no reference answer, with which a reward compares", row)
    report.kept -= len(empty)
    return rows.select([row for row in range(len(rows)) if row not in {*empty}]) if empty else rows


def question_key(prompt: list[dict[str, Any]]) -> str:
    """Return a prompt's questions with white space normalized. Equal texts are the same question.

    Two conversations may end in the same "go on" and still differ, so all of the user's messages
    count.
    """
    questions = [message["content"] for message in prompt if message["role"] == "user"]
    return "\n".join(" ".join(question.split()) for question in questions)
