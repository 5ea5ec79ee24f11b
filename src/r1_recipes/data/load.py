"""A recipe's data keys -> a dataset of prompts and solutions (GRPO) or prompts and completions (SFT)."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from r1_recipes.data.mappers import Mapper, SkipRow, get_mapper
from r1_recipes.data.sources import load_rows
from r1_recipes.errors import RecipeError, unknown_name
from r1_recipes.formats import ResponseFormat

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

# Columns that the trainers and reward calls use themselves; a source column of that name would collide.
_RESERVED = {"prompt", "prompts", "completion", "completions", "completion_ids", "messages", "solution", "scorer", "question", "reasoning"}
_RESERVED |= {"image", "images", "environment", "environments", "trainer_state", "log_extra", "log_metric"}
_MIXTURE_KEYS = {"datasets", "seed", "test_split_size"}
_MIXTURE_DATASET_KEYS = {"id", "config", "revision", "split", "columns", "weight", "mapper", "mapper_config", "task_config"}
# Columns that hold whole conversations, as SFT takes them.
_CONVERSATIONS = (["messages"], ["prompt", "completion"])


@dataclass
class LoadReport:
    """What became of the rows of one split.

    Attributes:
        read: rows read: with ``max_samples`` no more than it takes, else all of the source.
        kept: rows in the dataset.
        dropped: count by reason.
        first_index: source row index of the first row dropped for each reason.
    """

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first_index: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str, index: int) -> None:
        self.dropped[reason] += 1
        self.first_index.setdefault(reason, index)

    def __str__(self) -> str:
        parts = [f"{count} dropped: {reason} (first: row {self.first_index[reason]})" for reason, count in self.dropped.items()]
        return "; ".join([f"{self.kept} of {self.read} rows kept", *parts])


def load_dataset(
    args: Any, fmt: ResponseFormat, method: str, *, split: str = "train", tokenizer: Any = None, rows: Dataset | None = None
) -> tuple[Dataset, LoadReport]:
    """Load, map, select and render one split of a recipe's data.

    Args:
        args: :class:`~r1_recipes.arguments.RecipeArguments`.
        fmt: the response format, which writes prompts and targets.
        method: ``"grpo"``: ``prompt`` (messages), ``solution`` (str) and task columns; ``"sft"``: ``prompt`` and ``completion``
            (messages), or ``messages`` where the source has whole conversations.
        split: ``"train"`` or ``"test"``; the recipe's ``dataset_*_split`` says what the source calls it.
        tokenizer: needed where ``max_prompt_tokens`` or ``max_solution_tokens`` is set; anything with Transformers' tokenizer calls.
        rows: source rows to use instead of loading them (``--smoke``, tests).

    Returns:
        The dataset, in source order (a mixture: shuffled by its seed), and what was dropped.

    Raises:
        RecipeError: the source cannot be read, a column is missing (it names the column, the dataset and the columns there are), or
            no row is left.
    """
    limit = args.max_samples if split == "train" else args.max_eval_samples
    job = _Job(args, fmt, method, tokenizer, LoadReport())
    name = args.dataset_name or "dataset_mixture"
    if rows is not None:
        dataset = job.map_rows(rows, name, limit=limit)
    elif args.dataset_mixture:
        dataset = _load_mixture(job, split)
    else:
        source_split = args.dataset_train_split if split == "train" else args.dataset_test_split
        options = {
            "config": args.dataset_config,
            "revision": args.dataset_revision,
            "hub": args.hub,
            "task_config": args.task_config,
        }
        dataset = job.map_rows(load_rows(args.dataset_name, source_split, **options), name, limit=limit)
    if not len(dataset):
        raise RecipeError(f"dataset {name}, split {split!r}: no row is left: {job.report}")
    if limit is not None and len(dataset) > limit:
        dataset = dataset.select(range(limit))
    job.report.kept = len(dataset)
    return dataset, job.report


def drop_overlap(train: Dataset, held_out: Dataset) -> tuple[Dataset, int]:
    """Training rows whose last user message does not occur in ``held_out``, and how many were left out."""
    questions = (_question(row) for row in _questions_only(train))
    seen = {_question(row) for row in _questions_only(held_out)}
    keep = [index for index, question in enumerate(questions) if question not in seen]
    return (train.select(keep) if len(keep) < len(train) else train), len(train) - len(keep)


def _questions_only(rows: Dataset) -> Dataset:
    # The other columns may be heavy, and reading a row decodes all that are there.
    return rows.select_columns("prompt" if "prompt" in rows.column_names else "messages")


def _question(row: dict[str, Any]) -> str:
    prompt = row.get("prompt") or row["messages"]
    turns = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt if message["role"] == "user"]
    return " ".join(str(turns[-1] if turns else "").split())


def build_prompt(question: str, fmt: ResponseFormat, few_shot: list[dict[str, str]] | None = None) -> list[dict[str, str]]:
    """The conversation that the model answers: instruction, worked turns, question.

    Args:
        question: the user's words.
        fmt: writes the instruction and the worked turns.
        few_shot: mappings with ``question``, ``reasoning`` and ``answer``.

    Raises:
        RecipeError: a worked turn lacks a key or cannot be rendered.
    """
    messages = [{"role": "system", "content": fmt.system_prompt}] if fmt.system_prompt else []
    for number, turn in enumerate(few_shot or [], start=1):
        if not isinstance(turn, dict) or set(turn) != {"question", "reasoning", "answer"}:
            raise RecipeError(f"few_shot: entry {number} needs question, reasoning and answer, found {turn!r}")
        try:
            worked = fmt.render(str(turn["reasoning"]), str(turn["answer"]))
        except ValueError as error:
            raise RecipeError(f"few_shot: entry {number}: {error}") from error
        messages += [{"role": "user", "content": str(turn["question"])}, {"role": "assistant", "content": worked}]
    return [*messages, {"role": "user", "content": question}]


@dataclass
class _Job:
    """What every source of one load shares."""

    args: Any
    fmt: ResponseFormat
    method: str
    tokenizer: Any
    report: LoadReport

    def map_rows(self, rows: Dataset, source: str, *, limit: int | None = None, part: dict[str, Any] | None = None) -> Dataset:
        """Map and select the rows of one source; with ``limit``, only as far as that many rows are kept."""
        from datasets import concatenate_datasets

        part = part or {}
        columns = list(rows.column_names)
        name = part.get("mapper") or self.args.mapper
        if self.method == "sft" and name == "auto":
            wanted = next((names for names in _CONVERSATIONS if set(names) <= set(columns)), None)
            if wanted:
                logger.info("%s: conversations are taken as they are (%s)", source, ", ".join(wanted))
                return self._conversations(rows.select_columns(wanted), limit)
        named = {key: getattr(self.args, key) for key in ("prompt_column", "solution_column", "reasoning_column")}
        if name not in ("auto", "math", "prompt_solution"):
            named = {}
        mapper = get_mapper(name, columns, **named, **(part.get("mapper_config") or self.args.mapper_config or {}))
        absent = mapper.missing(columns)
        if absent:
            raise RecipeError(
                f"dataset {source}: mapper {mapper.name!r} needs column {', '.join(map(repr, absent))}; the columns there are: "
                f"{', '.join(columns)}"
            )
        keep = self._extra_columns(columns, source)
        pieces, kept, start = [], 0, 0
        step = len(rows) if limit is None else max(2 * limit, 1000)
        while start < len(rows) and (limit is None or kept < limit):
            piece = rows.select(range(start, min(start + step, len(rows))))
            mapped = self._render_rows(piece, start, mapper, keep)
            if len(mapped):  # a piece without rows has no column types either
                pieces.append(mapped)
            kept += len(mapped)
            start += len(piece)
        return concatenate_datasets(pieces) if pieces else rows.select([])

    def _extra_columns(self, columns: list[str], source: str) -> list[str]:
        """Source columns that go on to the rewards. A mixture keeps those it is told to: its parts' types may not agree."""
        wanted = self.args.keep_columns
        for column in wanted or ():
            if column not in columns:
                raise RecipeError(f"keep_columns: dataset {source}: " + unknown_name("column", column, columns))
            if column in _RESERVED:
                raise RecipeError(f"keep_columns: {column!r} is a name that trainers and rewards use themselves; rename it in the data")
        if wanted is None:
            wanted = [] if self.method == "sft" or self.args.dataset_mixture else columns
        return [column for column in wanted if column not in _RESERVED]

    def _conversations(self, rows: Dataset, limit: int | None) -> Dataset:
        """The rows whose conversation is there and short enough, untouched: they are selected, not written again."""
        keep = []
        for index, row in enumerate(rows):
            if limit is not None and len(keep) == limit:
                break
            self.report.read += 1
            try:
                _check_conversation(row, self.args, self.tokenizer)
            except SkipRow as reason:
                self.report.drop(str(reason), index)
            else:
                keep.append(index)
        return rows if len(keep) == len(rows) else rows.select(keep)

    def _render_rows(self, rows: Dataset, offset: int, mapper: Mapper, keep: list[str]) -> Dataset:
        """Rows that the mapper and the limits accept, rendered, with the source's ``keep`` columns; the others are counted."""
        # Under its own name a source column would lend its type to ours: text such as "007" would become the number 7.
        renamed = {column: f"source:{column}" for column in rows.column_names if column not in keep}

        def apply(batch: dict[str, list], indices: list[int]) -> dict[str, list]:
            source = {column: batch[renamed.get(column, column)] for column in rows.column_names}
            results = []
            for position, index in enumerate(indices):
                row = {column: values[position] for column, values in source.items()}
                try:
                    results.append({column: row[column] for column in keep} | self._render(mapper(row)))
                except SkipRow as reason:
                    self.report.drop(str(reason), offset + index)
            columns = dict.fromkeys(column for result in results for column in result)
            return {column: [result.get(column) for result in results] for column in columns or keep}

        self.report.read += len(rows)
        return rows.rename_columns(renamed).map(
            apply,
            batched=True,
            with_indices=True,
            remove_columns=list(renamed.values()),
            desc="mapping rows",
            load_from_cache_file=False,  # what is dropped must be counted each time
        )

    def _render(self, fields: dict[str, Any]) -> dict[str, Any]:
        prompt = build_prompt(fields["question"], self.fmt, self.args.few_shot)
        reference = "\n".join((fields.get("reasoning") or "", fields["solution"])).strip()
        _check_lengths(prompt, reference, self.args, self.tokenizer)
        if self.method == "sft":
            return _target(fields, prompt, self.fmt)
        return {"prompt": prompt, **{key: value for key, value in fields.items() if key not in ("question", "reasoning")}}


def _target(fields: dict[str, Any], prompt: list[dict[str, str]], fmt: ResponseFormat) -> dict[str, Any]:
    if not fields.get("reasoning"):
        raise SkipRow("no reasoning to train on")
    try:
        # A prefill may say more than the layout does; the target is the whole turn, as it will stand after the prompt.
        target = fmt.full_text(fmt.render_completion(fields["reasoning"], fields.get("answer") or fields["solution"]))
    except ValueError:
        raise SkipRow(f"reasoning or answer cannot be written in format {fmt.name!r}") from None
    return {"prompt": prompt, "completion": [{"role": "assistant", "content": target}]}


def _check_conversation(row: dict[str, Any], args: Any, tokenizer: Any) -> None:
    for column, value in row.items():
        if not value:
            raise SkipRow(f"column {column!r} is empty")
    prompt, target = (row["prompt"], row["completion"]) if "prompt" in row else (row["messages"][:-1], row["messages"][-1:])
    reference = target if isinstance(target, str) else "\n".join(str(message["content"]) for message in target)
    _check_lengths(prompt, reference, args, tokenizer)


def _check_lengths(prompt: list[dict[str, str]] | str, reference: str, args: Any, tokenizer: Any) -> None:
    if args.max_prompt_tokens is not None:
        if isinstance(prompt, str):
            ids = tokenizer(prompt)["input_ids"]
        else:
            ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
        if len(ids) > args.max_prompt_tokens:
            raise SkipRow(f"prompt over max_prompt_tokens {args.max_prompt_tokens}")
    if args.max_solution_tokens is not None:
        ids = tokenizer(reference, add_special_tokens=False)["input_ids"]
        if len(ids) > args.max_solution_tokens:
            raise SkipRow(f"solution over max_solution_tokens {args.max_solution_tokens}")


def _load_mixture(job: _Job, split: str) -> Dataset:
    """open-r1's mixture: ``weight`` is the share of its own rows that a dataset contributes; then one shuffle, then the test split."""
    from datasets import concatenate_datasets

    mixture = job.args.dataset_mixture
    if not isinstance(mixture, dict) or not isinstance(mixture.get("datasets"), list) or not mixture["datasets"]:
        raise RecipeError(f"dataset_mixture: needs datasets: a list of mappings with id, found {mixture!r}")
    for key in mixture:
        if key not in _MIXTURE_KEYS:
            raise RecipeError("dataset_mixture: " + unknown_name("key", key, _MIXTURE_KEYS))
    seed = mixture.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool):  # without one, training and test split would be two different draws
        raise RecipeError(f"dataset_mixture: seed: a whole number, found {seed!r}")
    test_size = mixture.get("test_split_size")
    if test_size is not None and (not isinstance(test_size, int | float) or isinstance(test_size, bool)):
        raise RecipeError(f"dataset_mixture: test_split_size: a share below 1 or a number of rows, found {test_size!r}")
    combined = []
    for number, part in enumerate(mixture["datasets"], start=1):
        where = f"dataset_mixture: dataset {number}"
        if not isinstance(part, dict) or "id" not in part:
            raise RecipeError(f"{where}: needs id, found {part!r}")
        for key in part:
            if key not in _MIXTURE_DATASET_KEYS:
                raise RecipeError(f"{where}: " + unknown_name("key", key, _MIXTURE_DATASET_KEYS))
        weight = part.get("weight", 1.0)
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight <= 1:
            raise RecipeError(f"{where} ({part['id']}): weight is the share of its rows, over 0 and at most 1; found {weight!r}")
        options = {"hub": job.args.hub, "task_config": part.get("task_config", job.args.task_config)}
        source = load_rows(part["id"], part.get("split", "train"), config=part.get("config"), revision=part.get("revision"), **options)
        for column in part.get("columns") or ():
            if column not in source.column_names:
                raise RecipeError(f"{where}: " + unknown_name(f"column of {part['id']}", column, source.column_names))
        if part.get("columns"):
            source = source.select_columns(part["columns"])
        if weight < 1:
            source = source.shuffle(seed=seed).select(range(round(weight * len(source))))
        mapped = job.map_rows(source, part["id"], part=part)
        if not len(mapped):
            raise RecipeError(f"{where} ({part['id']}, weight {weight}): no row is left: {job.report}")
        combined.append(mapped)
    shapes = [sorted({"messages", "prompt", "completion"} & set(part.column_names)) for part in combined]
    if shapes.count(shapes[0]) < len(shapes):
        raise RecipeError(f"dataset_mixture: the datasets hold different columns: {shapes}; name a mapper for each that is to change")
    try:
        dataset = concatenate_datasets(combined).shuffle(seed=seed)
    except ValueError as error:  # datasets names the column and its types
        raise RecipeError(f"dataset_mixture: the datasets' columns do not agree: {error}") from error
    if test_size is None:
        if split == "test":
            raise RecipeError("dataset_mixture: evaluation is on, but test_split_size is not set")
        return dataset
    count = round(test_size * len(dataset)) if test_size < 1 else int(test_size)
    if not 0 < count < len(dataset):
        raise RecipeError(f"dataset_mixture: test_split_size {test_size!r} leaves no rows on one side of {len(dataset)}")
    return dataset.select(range(count) if split == "test" else range(count, len(dataset)))
