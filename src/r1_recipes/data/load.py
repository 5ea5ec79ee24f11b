"""A recipe's data keys -> a dataset of prompts and solutions (GRPO), prompts and completions (SFT), or prompts alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, nearest, unknown_name
from r1_recipes.data.mappers import Conversations, Mapper, get_mapper, read_conversation, read_turns
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

            - ``"grpo"``: ``prompt``, ``solution`` (str, if the source has golds) and task columns;
            - ``"generate"``: the same with ``question`` and every other field of the mapper, asked with ``args.prompt_template``;
            - ``"sft"``: ``prompt`` and ``completion`` (one assistant's turn); ``mapper: auto`` takes whole conversations as they are;
            - ``"distill"``: ``prompt``.

        split: ``"train"`` or ``"test"``; the recipe's ``dataset_*_split`` says what the source calls it.
        tokenizer: needed for ``max_prompt_tokens`` and ``max_solution_tokens``.
        rows: source rows to use instead of loading them; for a mixture, one dataset a part, each taken whole.

    Returns:
        The dataset, in source order (a mixture: shuffled by its seed), and what was dropped.

    Raises:
        RecipeError: the source cannot be read, a column is missing, or no row is left.
    """
    template = getattr(args, "prompt_template", None)
    if method == "generate" and template is not None and "{question}" not in template:
        raise RecipeError(f"prompt_template: needs {{question}} where the question goes; found {template!r}")
    limit = args.max_samples if split == "train" else args.max_eval_samples
    report = LoadReport()
    map_rows = partial(_map_rows, args, fmt, method, tokenizer, report)
    name = args.dataset_name or "dataset_mixture"
    if args.dataset_mixture and (rows is None or not hasattr(rows, "column_names")):
        mixture = read_mixture(args)
        dataset = load_mixture(mixture, args.hub, map_rows, report, with_tasks=method != "distill", rows=rows)
        if rows is None:
            dataset = split_mixture(dataset, mixture.test_split_size, split)
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
        dataset = map_rows(rows, name, limit=limit)
    if not len(dataset):
        raise RecipeError(f"dataset {name}, split {split!r}: no row is left: {report}")
    if limit is not None and len(dataset) > limit:
        dataset = dataset.select(range(limit))
    report.kept = len(dataset)
    return dataset, report


def drop_overlap(train: Dataset, held_out: Dataset) -> tuple[Dataset, int]:
    """Training rows that do not ask what a row of ``held_out`` asks (the user's turns, white space aside), and how many do."""
    # The other columns may be heavy, and reading a row decodes all that are there.
    seen = {_asked(row["prompt"]) for row in held_out.select_columns("prompt")}
    keep = [index for index, row in enumerate(train.select_columns("prompt")) if _asked(row["prompt"]) not in seen]
    return (train.select(keep) if len(keep) < len(train) else train), len(train) - len(keep)


def _asked(prompt: list[dict[str, str]]) -> tuple[str, ...]:
    # Every turn of the user's: that the last one is "go on" in both does not make two conversations one.
    return tuple(" ".join(message["content"].split()) for message in prompt if message["role"] == "user")


def _map_rows(
    args: Any,
    fmt: ResponseFormat,
    method: str,
    tokenizer: Any,
    report: LoadReport,
    rows: Dataset,
    source: str,
    *,
    limit: int | None = None,
    part: Part | None = None,
    indices: Sequence[int] | None = None,
) -> Dataset:
    """Map and select the rows of one dataset, or as many as give ``limit``; ``part``: its entry in a mixture."""
    columns, name = rows.column_names, (part.mapper if part else None) or args.mapper
    system_prompt, few_shot = part.system_prompt if part else None, args.few_shot
    mapper = _as_it_is(columns) if method == "sft" and name == "auto" else None
    named = {key: getattr(args, key) for key in COLUMN_KEYS} if name in COLUMNS_BY_KEYS else {}
    if mapper is None:
        mapper = get_mapper(name, columns, **named, **((part.mapper_config if part else None) or args.mapper_config or {}))
    else:
        logger.info("%s: conversations are taken as they are (%s)", source, ", ".join(mapper.columns))
        # A recipe's instruction is for questions; a part that names one means it for its conversations.
        if system_prompt is None:
            system_prompt, few_shot = "", None
    absent = mapper.missing(columns)
    if absent:
        keys = {named[key]: key for key in named if named[key]}
        near = [f"{keys[column]}: {close[0]}" for column in absent if column in keys and (close := nearest(column, columns))]
        raise RecipeError(
            f"dataset {source}: mapper {mapper.name!r} needs column {', '.join(map(repr, absent))}; the columns there are: "
            f"{', '.join(columns)}" + (f". Fix: {', '.join(near)}" if near else "")
        )
    if mapper.images and method != "grpo":
        raise RecipeError(f"dataset {source}: mapper {mapper.name!r} gives pictures, which {method} does not take; grpo does")
    fmt = get_response_format(fmt, system_prompt=system_prompt)
    renderer = Renderer(args, fmt, method, tokenizer, few_shot)
    keep = _extra_columns(args, method, columns, source)
    return RowMapper(mapper, renderer, keep, report, f"{source}: " if part else "", indices)(rows, limit)


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
    if wanted is None:
        wanted = [] if method == "sft" or args.dataset_mixture else columns
    return [column for column in wanted if column not in _RESERVED]


def _as_it_is(columns: Sequence[str]) -> Mapper | None:
    """The mapper that takes a set's conversations or pairs as they are, for SFT."""
    if Conversations.fit(columns):
        return Conversations(well_formed=False)
    return _PromptCompletion() if _PromptCompletion.fit(columns) else None


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
