"""Turn a recipe's data keys into the dataset that its trainer takes.

Where does a row, or a part of it, go missing?

- A **row** is dropped by ``SkipRow``, which a mapper, ``data/messages.py`` or ``data/prompt.py``
  raises, or by ``max_prompt_tokens``: :class:`LoadReport` counts each reason. ``max_samples``,
  a mixture's ``weight`` and ``test_split_size`` leave out what they say, and ``training/train.py``
  logs what :func:`drop_overlap` leaves out.
- A **column** reaches the model through its mapper alone. :class:`Row` notes which columns the
  mapper and ``prompt_template`` look at. The others are in ``LoadReport.unused``, and in the log.
  Those that :func:`_kept_columns` returns still reach the rewards of GRPO: of one source all
  but the names in ``_RESERVED``, of a mixture ``keep_columns``.
- A **message** or a part of it that no prompt can hold is named by ``data/messages.py``.
- A **field of the mapped row** that no reward sees is in ``data/prompt.py``: ``_HIDDEN``.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, from_mapping, limited, located, require
from r1_recipes.common.messages import say_once
from r1_recipes.data.mappers import SkipRow, get_mapper
from r1_recipes.data.prompt import Rendering, trainer_columns, turn_tokens
from r1_recipes.data.sources import load_rows
from r1_recipes.prompts import ResponseFormat
from r1_recipes.rewards import READS_GOLD

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

# Columns that trainers and reward calls use. A source column with one of these names would collide.
_RESERVED_NAMES = """
prompt prompts completion completions completion_ids messages solution question reasoning
chosen rejected image images environment environments trainer_state log_extra log_metric
"""
_RESERVED = frozenset(_RESERVED_NAMES.split())
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

    ``unused`` are the columns that are in no prompt and no target; in a mixture, after the name of
    their dataset.
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
    template = args.prompt_template
    if template is not None and "{question}" not in template:
        raise RecipeError(f"prompt_template: must be a text with {{question}}, got {template!r}")
    tools = None
    if args.tools or args.environment:
        from r1_recipes.extras.agents.build import schemas

        tools = schemas(args.tools or (), args.environment)
    if method == "reward":  # pairs are used as they are
        fmt = replace(fmt, system_prompt="")
    tokens = turn_tokens(tokenizer) if tokenizer is not None else ()
    how, report = Rendering(args, fmt, method, tokenizer, tokens, tools), LoadReport()
    if args.dataset_mixture:
        dataset = _mixture(how, split, rows, report)
    else:
        name = args.dataset_train_split if split == "train" else args.dataset_test_split
        part = Part(args.dataset_name, args.dataset_config, args.dataset_revision, name)
        dataset = _rendered(how, part, rows, report)
    if report.unused:
        logger.info("columns in no prompt and no target: %s", ", ".join(report.unused))
    if tokenizer is not None and args.max_prompt_tokens is not None:
        dataset = _short_enough(dataset, how, report)
    limit = args.max_samples if split == "train" else args.max_eval_samples
    dataset = dataset.select(range(min(len(dataset), limit or len(dataset))))
    report.kept = len(dataset)
    if not report.kept:
        raise RecipeError(
            f"dataset {args.dataset_name or 'dataset_mixture'}, split {split!r}: all rows were "
            f"dropped: {report}"
        )
    return dataset, report


def _rendered(
    how: Rendering, part: Part, rows: Any, report: LoadReport, where: str = "", seed: int = 0
) -> Dataset:
    """Return the trainer's columns of one dataset's rows, and count the rows that are dropped."""
    from datasets import Features, Json, List, Value  # heavy
    from datasets.fingerprint import Hasher

    if rows is None:
        rows = load_rows(
            part.id,
            part.split,
            config=part.config,
            revision=part.revision,
            hub=how.args.hub,
            task_config=part.task_config or how.args.task_config,
        )
        rows = rows.select_columns([*part.columns]) if part.columns else rows
        share = range(round(part.weight * len(rows)))
        rows = rows if part.weight == 1 else rows.shuffle(seed=seed).select(share)
    columns = rows.column_names
    mapper, keep = _mapper(how, part, columns), _kept_columns(how.args, how.method, columns)
    asked = how.fmt.system_prompt if part.system_prompt is None else part.system_prompt
    how = replace(how, fmt=replace(how.fmt, system_prompt=asked))
    task = {"task": part.task} if part.task and how.method in ("grpo", "generate") else {}
    read: set[str] = set()
    features = None
    if how.method == "sft":
        # Messages may have calls of tools, with any arguments. What other methods get is typed by
        # the first rows.
        types = {
            column: Json() if "{" in str(rows.features[column]) else rows.features[column]
            for column in keep
        }
        types |= {"prompt": List(Json()), "completion": List(Json())}
        features = Features(types | ({"tools": Value("string")} if how.tools else {}))
        read.update(keep)
        if "tools" in keep and (
            how.tools or "tools" not in str(getattr(how.tokenizer, "chat_template", "tools"))
        ):
            say_once(
                "column tools: no prompt has it. The recipe's tools replace it, or the chat "
                "template writes none"
            )

    # In a JSON file a null is one that somebody wrote.
    typed = how.method == "sft" and rows.info.builder_name != "json"
    # With task_rewards, another reward may score a row without a reference answer.
    judged = how.method == "grpo" and not getattr(how.args, "task_rewards", None)
    compare = READS_GOLD.intersection(getattr(how.args, "reward_funcs", ()) if judged else ())

    def render(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        made: list[dict[str, Any]] = []
        for values in zip(*batch.values(), strict=True):
            cells = {
                name: _without_nones(cell) if typed and isinstance(cell, list) else cell
                for name, cell in zip(columns, values, strict=True)
            }
            row = Row(cells)
            row.read = read
            try:
                rendered = trainer_columns(row, mapper(row), how)
                if compare and rendered.get("solution") in (None, ""):
                    raise SkipRow(
                        f"no reference answer, with which reward {min(compare)!r} compares. Fix: "
                        "solution_column: COLUMN; a mapper that returns 'solution'; or another "
                        "reward"
                    )
                # SFT's rows without tools have none, or a blank text.
                kept = {
                    name: cells[name] for name in keep if how.method != "sft" or cells[name] != ""
                }
                made.append(kept | rendered | task)
            except SkipRow as reason:
                report.dropped[f"{where}{reason}"] += 1
        names = dict.fromkeys(chain(["prompt"], keep, *made))
        return {name: [row.get(name) for row in made] for name in names}

    # map() would cast a mapper's text to the type of the source's column of the same name.
    rows = rows.rename_columns({name: f"source {name}" for name in columns if name in _RESERVED})
    dataset: Dataset = rows.map(
        render,
        batched=True,
        # Decoded pictures stay in memory.
        batch_size=8 if "Image(" in str(rows.features) else 1000,
        remove_columns=rows.column_names,
        features=features,
        load_from_cache_file=False,  # reasons are counted on every run
        new_fingerprint=Hasher.hash((rows._fingerprint, str(part), str(how))),
        desc=f"mapping {part.id}",
    )
    # What a trainer caches belongs to these rows, whatever the code of a mapper was and is.
    batches = (batch.serialize().to_pybytes() for batch in dataset.data.to_batches())
    dataset._fingerprint = Hasher.hash([*map(Hasher.hash, batches)])
    report.read += len(rows)
    report.unused += [f"{where}{column}" for column in columns if column not in read]
    return dataset


def _without_nones(value: Any) -> Any:
    """Leave out the keys that Parquet adds to messages and tools because other rows have them."""
    if isinstance(value, dict):
        return {key: _without_nones(item) for key, item in value.items() if item is not None}
    return [*map(_without_nones, value)] if isinstance(value, list) else value


def _mapper(how: Rendering, part: Part, columns: list[str]) -> Any:
    args, found = how.args, {*columns}
    name, config = part.mapper or args.mapper, part.mapper_config or args.mapper_config or {}
    if name == "auto" and args.environment:
        name = "environment"  # its rows may have the columns of another mapper, too
    # Another mapper refuses them by name. In a mixture they are for the parts that read them.
    if name in COLUMNS_BY_KEYS or not args.dataset_mixture:
        config = {key: getattr(args, key) for key in COLUMN_KEYS} | config
    # SFT takes whole conversations as they are, unless keys say which column or how.
    if name == "auto" and how.method == "sft" and all(value is None for value in config.values()):
        if {"messages", "conversations"} & found and "reannotated_messages" not in found:
            name = "conversations"
        elif {"prompt", "completion"} <= found:
            name = "prompt_completion"
        if name != "auto":
            config = {"whole": True}
            for key in ("system_prompt", "prompt_template", "few_shot"):
                own = getattr(part, key, None)  # of the three, a part has system_prompt
                asked = getattr(args, key) if own is None else own
                require(
                    not asked,
                    key,
                    "unset for whole conversations",
                    asked,
                    f"mapper: {name}, with mapper_config: {{well_formed: false}}",
                )
    return get_mapper(name, columns, **config)


def _kept_columns(args: Any, method: str, columns: list[str]) -> list[str]:
    """Return the source columns that the rewards or the chat template get.

    A mixture keeps only the columns in ``keep_columns``, because its datasets may have different
    types in the same column.
    """
    usable = [column for column in columns if column not in _RESERVED]
    for column in args.keep_columns or ():
        require(column in usable, "keep_columns", f"some of {', '.join(usable)}", column)
    if method in ("distill", "reward"):
        return []
    if args.keep_columns is not None:
        return args.keep_columns
    if method == "sft":  # what SFTTrainer passes to the chat template
        return [column for column in columns if column in ("chat_template_kwargs", "tools")]
    return [] if args.dataset_mixture and not args.environment else usable


def _mixture(how: Rendering, split: str, given: Any, report: LoadReport) -> Dataset:
    """Return the shuffled rows of a mixture. ``given`` rows are not split any further.

    TRL's ``get_dataset`` splits without a seed (trl/scripts/utils.py:485), so each rank and each
    resumed run would train on other rows. It gives no dataset a mapper, a task or an instruction.
    """
    from datasets import concatenate_datasets  # heavy

    mixture = from_mapping(Mixture, how.args.dataset_mixture, "dataset_mixture")
    size, mapped = mixture.test_split_size, []
    require(
        how.args.dataset_train_split == "train",
        "dataset_train_split",
        "unset with dataset_mixture",
        how.args.dataset_train_split,
        "split of each dataset",
    )
    require(
        size or split == "train" or given,
        "dataset_mixture: test_split_size",
        "set, because evaluation needs a test split",
        size,
        "test_split_size: 128",
    )
    for number, part in enumerate(mixture.datasets):
        with located(f"dataset_mixture: dataset {number + 1} ({part.id}, weight {part.weight})"):
            source = given and given[number]
            mapped.append(_rendered(how, part, source, report, f"{part.id}: ", mixture.seed))
            if not len(mapped[-1]):
                raise RecipeError(f"all rows were dropped: {report}")
    if any("task" in rows.features for rows in mapped):
        mapped = [
            rows if "task" in rows.features else rows.add_column("task", [""] * len(rows))
            for rows in mapped
        ]
    with located("dataset_mixture"):
        whole = concatenate_datasets(mapped).shuffle(seed=mixture.seed)
        if given or not size:
            return whole
        return whole.train_test_split(size, seed=mixture.seed)[split]


def _short_enough(dataset: Dataset, how: Rendering, report: LoadReport) -> Dataset:
    limit, fits = how.args.max_prompt_tokens, []
    tools = {"tools": json.loads(how.tools)} if how.tools else {}
    for batch in dataset.iter(1000):
        encoded = how.tokenizer.apply_chat_template(
            batch["prompt"], add_generation_prompt=True, return_dict=True, **tools
        )
        fits += [len(tokens) <= limit for tokens in encoded["input_ids"]]
    kept = [row for row, fit in enumerate(fits) if fit]
    # A sum of counters has no zeros.
    report.dropped += Counter({f"prompt over max_prompt_tokens {limit}": len(fits) - len(kept)})
    return dataset.select(kept)


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
