"""Turn a recipe's data keys into the dataset that its trainer takes.

Where does a row, or a part of it, go missing?

- A **row** is dropped by ``SkipRow``, which a mapper, ``data/messages.py`` or ``data/prompt.py``
  raises, by ``max_prompt_tokens`` or :func:`drop_unanswered`: :class:`LoadReport` counts each
  reason. ``max_samples``, a mixture's ``weight`` and ``test_split_size`` leave out what they say,
  and ``training/train.py`` logs what :func:`drop_overlap` leaves out.
- A **column** reaches the model through its mapper alone. :class:`Row` notes which columns the
  mapper and ``prompt_template`` look at. The others are in ``LoadReport.unused``, and in the log.
  Those that :func:`_kept_columns` returns still reach the rewards of GRPO: of one source all
  but the names in ``_RESERVED``, of a mixture ``keep_columns``.
- A **message** or a part of it that no prompt can hold is named by ``data/messages.py``.
- A **field of the mapped row** that no reward sees is in ``data/prompt.py``: ``_HIDDEN``.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, located, unknown_name
from r1_recipes.common.settings import from_mapping, limited
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
    columns: tuple[str, ...] | None = None
    weight: float = limited(lambda share: 0 < share <= 1, "the share of its rows, in (0, 1]", 1.0)
    mapper: str | None = None
    mapper_config: dict[str, Any] | None = None
    task: str | None = None
    system_prompt: str | None = None
    task_config: dict[str, Any] | None = None


@dataclass(frozen=True)
class Mixture:
    """The key ``dataset_mixture``. ``test_split_size`` is a number of rows, or a share of them."""

    datasets: tuple[Part, ...]
    seed: int = 0
    test_split_size: float | None = None


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
        dropped = [f"{count} dropped: {reason}" for reason, count in self.dropped.most_common(20)]
        return "; ".join([f"{self.kept} of {self.read} rows kept", *dropped])


class Row(dict):
    """A row that notes in ``read``, which all rows of a source share, the columns looked at."""

    read: set[str]

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
            f"prompt_template: must contain {{question}}, which the question replaces, got "
            f"{args.prompt_template!r}"
        )
    tools = None
    if args.tools or args.environment:
        from r1_recipes.extras.agents.build import schemas

        tools = schemas(args.tools or (), args.environment)
    tokens = turn_tokens(tokenizer) if tokenizer is not None else ()
    if method == "reward":  # pairs are used as they are
        fmt = replace(fmt, system_prompt="")
    how, report = Rendering(args, fmt, method, tokenizer, tokens, tools), LoadReport()
    if args.dataset_mixture:
        dataset = _mixture(how, split, rows, report)
    else:
        name = args.dataset_train_split if split == "train" else args.dataset_test_split
        part = Part(args.dataset_name, args.dataset_config, args.dataset_revision, name)
        dataset = _rendered(how, part, rows, report)
    if len(dataset) and tokenizer is not None and args.max_prompt_tokens is not None:
        dataset = _short_enough(dataset, how, report)
    limit = args.max_samples if split == "train" else args.max_eval_samples
    dataset = dataset.select(range(min(len(dataset), limit or len(dataset))))
    report.kept = len(dataset)
    if not report.kept:
        name = args.dataset_name or "dataset_mixture"
        raise RecipeError(f"dataset {name}, split {split!r}: all rows were dropped: {report}")
    return dataset, report


def _rendered(
    how: Rendering, part: Part, rows: Any, report: LoadReport, where: str = "", seed: int = 0
) -> Dataset:
    """Return the trainer's columns of one dataset's rows, and count the rows that are dropped."""
    from datasets.fingerprint import Hasher  # heavy

    args = how.args
    if rows is None:
        options = {"config": part.config, "revision": part.revision, "hub": args.hub}
        options["task_config"] = part.task_config or args.task_config
        rows = load_rows(part.id, part.split, **options)
        if part.columns or part.weight != 1:
            rows = _share(rows, part, seed)
    columns = rows.column_names
    mapper = _mapper(how, part, columns)
    if part.system_prompt is not None:
        how = replace(how, fmt=replace(how.fmt, system_prompt=part.system_prompt))
    keep = _kept_columns(args, how.method, columns)
    features = _features(how, rows, keep) if how.method == "sft" else None
    read = {*keep} if features else set()
    # map() would cast a mapper's text to the type of the source's column of the same name.
    rows = rows.rename_columns({name: f"source {name}" for name in columns if name in _RESERVED})
    dataset = rows.map(
        functools.partial(_render, mapper, columns, keep, how, report.dropped, where, read),
        batched=True,
        batch_size=8 if "image" in columns else 1000,  # decoded pictures stay in memory
        remove_columns=rows.column_names,
        features=features,
        load_from_cache_file=False,  # reasons are counted on every run
        new_fingerprint=Hasher.hash((rows._fingerprint, str(part), str(how))),
        desc=f"mapping {part.id}",
    )
    # What a trainer caches belongs to these rows, whatever the code of a mapper was and is.
    digest = hashlib.blake2b(digest_size=8)
    for batch in dataset.data.to_batches():
        digest.update(batch.serialize())
    dataset._fingerprint = digest.hexdigest()
    report.read += len(rows)
    unused = [column for column in columns if column not in read]
    report.unused += unused
    if unused:
        logger.info("%s: columns in no prompt and no target: %s", part.id, ", ".join(unused))
    return dataset


def _render(
    mapper: Mapper,
    columns: list[str],
    keep: list[str],
    how: Rendering,
    dropped: Counter[str],
    where: str,
    read: set[str],
    batch: dict[str, list[Any]],
) -> dict[str, list[Any]]:
    """Return a batch of rows as the trainer's columns, without those that are dropped."""
    made: list[dict[str, Any]] = []
    for values in zip(*batch.values(), strict=True):
        cells = dict(zip(columns, values, strict=True))
        row = Row(cells)
        row.read = read
        try:
            rendered = trainer_columns(row, mapper(row), how)
            made.append({name: cells[name] for name in keep} | rendered)
        except SkipRow as reason:
            dropped[f"{where}{reason}"] += 1
    names = dict.fromkeys(chain(["prompt"], *made))
    return {name: [row.get(name) for row in made] for name in names}


def _features(how: Rendering, rows: Dataset, keep: list[str]) -> Any:
    """Return the types of SFT's columns. Some messages have calls of tools, with any arguments.

    The columns of other methods are typed by their first rows.
    """
    from datasets import Features, Json, List, Value  # heavy

    types = {column: rows.features[column] for column in keep}
    types |= {"prompt": List(Json()), "completion": List(Json())}
    return Features(types | ({"tools": Value("string")} if how.tools else {}))


def _mapper(how: Rendering, part: Part, columns: list[str]) -> Any:
    """Return the mapper of a dataset. SFT's ``auto`` takes whole conversations as they are."""
    args, found = how.args, {*columns}
    name, config = part.mapper or args.mapper, part.mapper_config or args.mapper_config or {}
    if name == "auto" and args.environment:
        name = "environment"  # its rows may have the columns of another mapper, too
    # Another mapper refuses them by name. In a mixture they are for the parts that read them.
    if name in COLUMNS_BY_KEYS or not args.dataset_mixture:
        config = {key: getattr(args, key) for key in COLUMN_KEYS} | config
    if name == "auto" and how.method == "sft" and not any(map(config.get, COLUMN_KEYS)):
        if {"messages", "conversations"} & found and "reannotated_messages" not in found:
            name, config = "conversations", {"whole": True}
        elif {"prompt", "completion"} <= found:
            name, config = "prompt_completion", {"whole": True}
    return get_mapper(name, columns, **config)


def _share(rows: Dataset, part: Part, seed: int) -> Dataset:
    """Return a dataset's columns, and the share of its rows that the seed draws."""
    import numpy  # heavy

    rows = rows.select_columns([*part.columns]) if part.columns else rows
    order = numpy.random.default_rng(seed).permutation(len(rows))
    return rows if part.weight == 1 else rows.select(order[: round(part.weight * len(rows))])


def _kept_columns(args: Any, method: str, columns: list[str]) -> list[str]:
    """Return the source columns that the rewards or the chat template get.

    A mixture keeps only the columns in ``keep_columns``, because its datasets may have different
    types in the same column.
    """
    usable = [column for column in columns if column not in _RESERVED]
    for column in args.keep_columns or ():
        if column not in usable:
            raise RecipeError(f"keep_columns: {unknown_name('column', column, usable)}")
    if method in ("distill", "reward"):
        return []
    if args.keep_columns is not None:
        return args.keep_columns
    if method == "sft":
        return [column for column in columns if column in _TEMPLATE_COLUMNS]
    return [] if args.dataset_mixture and not args.environment else usable


def _mixture(how: Rendering, split: str, given: Any, report: LoadReport) -> Dataset:
    """Return the shuffled rows of a mixture. ``given`` rows are not split any further.

    TRL's ``get_dataset`` splits without a seed (trl/scripts/utils.py:485), so each rank and each
    resumed run would train on other rows. It gives no dataset a mapper, a task or an instruction.
    """
    from datasets import concatenate_datasets  # heavy

    mixture = from_mapping(Mixture, how.args.dataset_mixture, "dataset_mixture")
    size, mapped = mixture.test_split_size, []
    if size is None and split == "test" and not given:
        raise RecipeError(
            "dataset_mixture: test_split_size: must be set, because evaluation needs a test split. "
            "Fix: test_split_size: 128"
        )
    for number, part in enumerate(mixture.datasets):
        with located(f"dataset_mixture: dataset {number + 1} ({part.id}, weight {part.weight})"):
            source = given and given[number]
            rows = _rendered(how, part, source, report, f"{part.id}: ", mixture.seed)
            if not len(rows):
                raise RecipeError(f"all rows were dropped: {report}")
        if part.task and how.method in ("grpo", "generate"):
            rows = rows.remove_columns([name for name in rows.column_names if name == "task"])
            rows = rows.add_column("task", [part.task] * len(rows))
        mapped.append(rows)
    if any("task" in rows.features for rows in mapped):
        without = [("task" not in rows.features, rows) for rows in mapped]
        mapped = [rows.add_column("task", [""] * len(rows)) if no else rows for no, rows in without]
    with located("dataset_mixture: the datasets have different types in one column"):
        whole = concatenate_datasets(mapped).shuffle(seed=mixture.seed)
    with located("dataset_mixture: test_split_size"):
        return (
            whole if given or not size else whole.train_test_split(size, seed=mixture.seed)[split]
        )


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
    return _selected(dataset, kept, report, f"prompt over max_prompt_tokens {limit}")


def _selected(rows: Dataset, kept: list[int], report: LoadReport, reason: str) -> Dataset:
    if len(kept) < len(rows):
        report.dropped[reason] += len(rows) - len(kept)
    return rows.select(kept)


def drop_unanswered(rows: Dataset, report: LoadReport) -> Dataset:
    """Return the rows that have a reference answer, for a reward that compares with one."""
    if "solution" not in rows.features or "nums" in rows.features:
        return rows
    kept = [row for row, solution in enumerate(rows["solution"]) if solution]
    report.kept = len(kept)
    return _selected(rows, kept, report, "no reference answer, with which a reward compares")


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
