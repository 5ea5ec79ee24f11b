"""A recipe's data keys -> a dataset of prompts and solutions (GRPO), prompts and completions (SFT), or prompts alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, nearest, unknown_name
from r1_recipes.data.mappers import Conversations, Mapper, SkipRow, get_mapper, read_conversation, read_turns
from r1_recipes.data.mapping import LoadReport, RowMapper
from r1_recipes.data.mixture import CSV_KEYS, Part, load_mixture, load_part, read_mixture, split_mixture
from r1_recipes.data.render import Renderer, build_prompt
from r1_recipes.prompts import ResponseFormat, get_response_format

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["LoadReport", "build_prompt", "drop_overlap", "load_dataset"]

logger = logging.getLogger(__name__)

# Columns that the trainers and reward calls use themselves; a source column of that name would collide.
_RESERVED = {"prompt", "prompts", "completion", "completions", "completion_ids", "messages", "solution", "scorer", "question", "reasoning"}
_RESERVED |= {"image", "images", "environment", "environments", "trainer_state", "log_extra", "log_metric"}
COLUMN_KEYS = ("prompt_column", "solution_column", "reasoning_column")
COLUMNS_BY_KEYS = ("auto", "math", "prompt_solution")  # mappers whose columns these keys name


def load_dataset(
    args: Any,
    fmt: ResponseFormat,
    method: str,
    *,
    split: str = "train",
    tokenizer: Any = None,
    rows: Dataset | Sequence[Dataset] | None = None,
) -> tuple[Dataset, LoadReport]:
    """Load, map, select and render one split of a recipe's data.

    Args:
        args: :class:`~r1_recipes.recipe.types.RecipeArguments`.
        method: what the rows are for; ``prompt`` is messages, the instruction first and the user's turn last.

            - ``"grpo"``: ``prompt``, ``solution`` (str, where the source has golds) and task columns;
            - ``"generate"``: the same with ``question`` and every other field of the mapper; where ``args.prompt_template`` is set, the
              prompt asks with it: ``{question}``, and by name any other column or field of the row, are filled in;
            - ``"sft"``: ``prompt`` and ``completion`` (one assistant's turn), or two texts where a set of such pairs is taken as it is;
            - ``"distill"``: ``prompt``.

            For SFT and ``mapper: auto``, whole conversations are taken as they are; the last assistant's turn is the completion.
        split: ``"train"`` or ``"test"``; the recipe's ``dataset_*_split`` says what the source calls it.
        tokenizer: needed where ``max_prompt_tokens`` or ``max_solution_tokens`` is set; anything with Transformers' tokenizer calls.
        rows: source rows to use instead of loading them (``--smoke``, tests); for a mixture, one dataset a part, each taken whole.

    Returns:
        The dataset, in source order (a mixture: shuffled by its seed), and what was dropped.

    Raises:
        RecipeError: the source cannot be read, a column is missing (it names the column, the dataset and the columns there are), or
            no row is left.
    """
    template = getattr(args, "prompt_template", None)
    if method == "generate" and template is not None and "{question}" not in template:
        raise RecipeError(f"prompt_template: needs {{question}} where the question goes; found {template!r}")
    limit = args.max_samples if split == "train" else args.max_eval_samples
    job = _Job(args, fmt, method, tokenizer, LoadReport())
    name = args.dataset_name or "dataset_mixture"
    if args.dataset_mixture and (rows is None or not hasattr(rows, "column_names")):
        dataset = job.mixture(split, rows)
    else:
        if rows is None:
            part = Part(
                name,
                config=args.dataset_config,
                revision=args.dataset_revision,
                split=args.dataset_train_split if split == "train" else args.dataset_test_split,
                task_config=args.task_config,
                **{key: getattr(args, key) for key in CSV_KEYS},
            )
            rows = load_part(part, args.hub)
        dataset = job.map_rows(rows, name, limit=limit)
    if not len(dataset):
        raise RecipeError(f"dataset {name}, split {split!r}: no row is left: {job.report}")
    if limit is not None and len(dataset) > limit:
        dataset = dataset.select(range(limit))
    job.report.kept = len(dataset)
    return dataset, job.report


def drop_overlap(train: Dataset, held_out: Dataset) -> tuple[Dataset, int]:
    """Training rows that do not ask what a row of ``held_out`` asks (the user's turns, white space aside), and how many do."""
    # The other columns may be heavy, and reading a row decodes all that are there.
    seen = {_asked(row["prompt"]) for row in held_out.select_columns("prompt")}
    keep = [index for index, row in enumerate(train.select_columns("prompt")) if _asked(row["prompt"]) not in seen]
    return (train.select(keep) if len(keep) < len(train) else train), len(train) - len(keep)


def _asked(prompt: str | list[dict[str, str]]) -> tuple[str, ...]:
    # Every turn of the user's: that the last one is "go on" in both does not make two conversations one.
    turns = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt if message["role"] == "user"]
    return tuple(" ".join(turn.split()) for turn in turns)


@dataclass
class _Job:
    """What every dataset of one load shares."""

    args: Any
    fmt: ResponseFormat
    method: str
    tokenizer: Any
    report: LoadReport

    def mixture(self, split: str, rows: Sequence[Dataset] | None) -> Dataset:
        mixture = read_mixture(self.args)
        dataset = load_mixture(mixture, self.args.hub, self.map_rows, self.report, with_tasks=self.method != "distill", rows=rows)
        return dataset if rows is not None else split_mixture(dataset, mixture.test_split_size, split)

    def map_rows(
        self,
        rows: Dataset,
        source: str,
        *,
        limit: int | None = None,
        part: Part | None = None,
        indices: Sequence[int] | None = None,
    ) -> Dataset:
        """Map and select the rows of one dataset, or as many as give ``limit``; ``part``: its entry in a mixture."""
        columns, name = list(rows.column_names), (part.mapper if part else None) or self.args.mapper
        fmt = get_response_format(self.fmt, system_prompt=part.system_prompt if part else None)
        renderer = Renderer(self.args, fmt, self.method, self.tokenizer)
        mapper = _as_it_is(rows, part) if self.method == "sft" and name == "auto" else None
        if isinstance(mapper, _TextPairs):
            renderer = replace(renderer, text_pairs=True)
        elif mapper is not None:
            logger.info("%s: conversations are taken as they are (%s)", source, ", ".join(mapper.columns))
            # A recipe's instruction is for questions; a part that names one means it for its conversations.
            renderer = replace(renderer, own_prompts=part is None or part.system_prompt is None)
        else:
            mapper = self._mapper(name, columns, part)
        absent = mapper.missing(columns)
        if absent:
            raise RecipeError(
                f"dataset {source}: mapper {mapper.name!r} needs column {', '.join(map(repr, absent))}; the columns there are: "
                f"{', '.join(columns)}" + self._meant(absent, columns)
            )
        if mapper.images and self.method != "grpo":
            raise RecipeError(f"dataset {source}: mapper {mapper.name!r} gives pictures, which {self.method} does not take; grpo does")
        keep = self._extra_columns(columns, source)
        return RowMapper(mapper, renderer, keep, self.report, source if part else None, indices)(rows, limit)

    def _mapper(self, name: str, columns: list[str], part: Part | None) -> Mapper:
        named = {key: getattr(self.args, key) for key in COLUMN_KEYS} if name in COLUMNS_BY_KEYS else {}
        return get_mapper(name, columns, **named, **((part.mapper_config if part else None) or self.args.mapper_config or {}))

    def _meant(self, absent: Sequence[str], columns: Sequence[str]) -> str:
        """The hint for a column that the recipe itself names and misspells."""
        keys = [key for key in COLUMN_KEYS if getattr(self.args, key) in absent]
        close = nearest(getattr(self.args, keys[0]), columns, 1) if keys else []
        # A name such as " a" needs its quotes, in YAML and to be seen.
        return f". Fix: {keys[0]}: {close[0] if close[0].isidentifier() else json.dumps(close[0], ensure_ascii=False)}" if close else ""

    def _extra_columns(self, columns: list[str], source: str) -> list[str]:
        """Source columns that go on to the rewards. A mixture keeps those it is told to: its parts' types may not agree."""
        wanted = self.args.keep_columns
        for column in wanted or ():
            if column not in columns:
                raise RecipeError(f"keep_columns: dataset {source}: " + unknown_name("column", column, columns))
            if column in _RESERVED:
                raise RecipeError(f"keep_columns: {column!r} is a name that trainers and rewards use themselves; rename it in the data")
        if self.method == "distill":
            wanted = []
        elif wanted is None:
            wanted = [] if self.method == "sft" or self.args.dataset_mixture else columns
        return [column for column in wanted if column not in _RESERVED]


def _as_it_is(rows: Dataset, part: Part | None) -> Mapper | None:
    """The mapper that takes a set's conversations or pairs as they are, for SFT; ``None`` if it has none."""
    from datasets import Value  # heavy

    if Conversations.fit(rows.column_names):
        return Conversations(well_formed=False)
    if not _PromptCompletion.fit(rows.column_names):
        return None
    # Two texts are no conversation; but what is mixed with conversations becomes one.
    texts = part is None and all(isinstance(rows.features[column], Value) for column in _PromptCompletion.columns)
    return _TextPairs() if texts else _PromptCompletion()


@dataclass(frozen=True)
class _PromptCompletion(Mapper):
    """Pairs as TRL takes them, of turns or of texts: one conversation."""

    columns = ("prompt", "completion")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        turns = []
        for column, role in (("prompt", "user"), ("completion", "assistant")):
            value = row[column]
            turns += [{"role": role, "content": value}] if isinstance(value, str) else read_turns(value, column)
        return {**read_conversation(turns), "well_formed": False}


@dataclass(frozen=True)
class _TextPairs(Mapper):
    """Two texts, which no chat template is put around."""

    columns = ("prompt", "completion")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        for column in self.columns:
            if not isinstance(row[column], str) or not row[column].strip():
                raise SkipRow(f"column {column!r} is empty")
        return {column: row[column] for column in self.columns}
