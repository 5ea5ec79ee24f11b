"""A recipe's data keys -> a dataset of prompts and solutions (GRPO), prompts and completions (SFT), or prompts alone."""

from __future__ import annotations

import copy
import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line, nearest, unknown_name
from r1_recipes.data.mappers import Conversations, Mapper, SkipRow, get_mapper, read_conversation, read_turns
from r1_recipes.data.sources import CsvStyle, load_rows
from r1_recipes.prompts.formats import ResponseFormat, get_response_format

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

# Columns that the trainers and reward calls use themselves; a source column of that name would collide.
_RESERVED = {"prompt", "prompts", "completion", "completions", "completion_ids", "messages", "solution", "scorer", "question", "reasoning"}
_RESERVED |= {"image", "images", "environment", "environments", "trainer_state", "log_extra", "log_metric"}
_MIXTURE_KEYS = {"datasets", "seed", "test_split_size"}
_MIXTURE_DATASET_KEYS = {"id", "config", "revision", "split", "columns", "weight", "mapper", "mapper_config", "task_config"}
_CSV_KEYS = ("csv_separator", "csv_encoding", "csv_decimal")
_MIXTURE_DATASET_KEYS |= {"task", "system_prompt", *_CSV_KEYS}
# Fields of a mapper that become no column.
_NO_COLUMN = {
    "grpo": {"question", "reasoning", "response", "messages", "well_formed"},
    "generate": {"messages", "well_formed"},
}
_SLOT = re.compile(r"\{([^{}\n]+)\}")


class _NewColumn(Exception):
    """A batch of rows brought a column, or the first value of one."""


@dataclass
class LoadReport:
    """What became of the rows of one split.

    Attributes:
        read: rows read: with ``max_samples`` no more than it takes, else all of the source.
        kept: rows in the dataset.
        dropped: count by reason.
        first_index: source row index of the first row dropped for each reason.
        first_source: in a mixture, the dataset that this row is of.
    """

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first_index: dict[str, int] = field(default_factory=dict)
    first_source: dict[str, str] = field(default_factory=dict)

    def drop(self, reason: str, index: int, source: str | None = None) -> None:
        self.dropped[reason] += 1
        if reason not in self.first_index:
            self.first_index[reason] = index
            if source is not None:
                self.first_source[reason] = source

    def __str__(self) -> str:
        parts = []
        for reason, count in self.dropped.items():
            source = f" of {self.first_source[reason]}" if reason in self.first_source else ""
            parts.append(f"{count} dropped: {reason} (first: row {self.first_index[reason]}{source})")
        return "; ".join([f"{self.kept} of {self.read} rows kept", *parts])


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
        fmt: the response format, which writes prompts and targets.
        method: what the rows are for; ``prompt`` is messages, the instruction first and the user's turn last.

            - ``"grpo"``: ``prompt``, ``solution`` (str, where the source has golds) and task columns;
            - ``"generate"``: the same with ``question`` and every other field of the mapper; where ``args.prompt_template`` is set, the
              prompt asks with it: ``{question}``, and by name any other column or field of the row, are filled in;
            - ``"sft"``: ``prompt`` and ``completion`` (one assistant's turn), or two texts where a set of such pairs is taken as it is;
            - ``"distill"``: ``prompt``.

            A set that has whole conversations (``messages``, ``conversations``, or ``prompt`` and ``completion``) is taken as it is for
            SFT where ``mapper`` is ``auto``: its own system messages, any shape of answer, the last assistant's turn as completion.
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
        dataset = _load_mixture(job, split, rows)
    elif rows is not None:
        dataset = job.map_rows(rows, name, limit=limit)
    else:
        source_split = args.dataset_train_split if split == "train" else args.dataset_test_split
        options = {
            "config": args.dataset_config,
            "revision": args.dataset_revision,
            "hub": args.hub,
            "task_config": args.task_config,
            "csv_style": _csv_style(args),
        }
        dataset = job.map_rows(load_rows(args.dataset_name, source_split, **options), name, limit=limit)
    if not len(dataset):
        raise RecipeError(f"dataset {name}, split {split!r}: no row is left: {job.report}")
    if limit is not None and len(dataset) > limit:
        dataset = dataset.select(range(limit))
    job.report.kept = len(dataset)
    return dataset, job.report


def _csv_style(args: Any, part: dict[str, Any] | None = None) -> CsvStyle:
    return CsvStyle(*((part or {}).get(key, getattr(args, key)) for key in _CSV_KEYS))


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

    def map_rows(
        self,
        rows: Dataset,
        source: str,
        *,
        limit: int | None = None,
        part: dict[str, Any] | None = None,
        indices: Sequence[int] | None = None,
    ) -> Dataset:
        """Map and select the rows of one source; with ``limit``, only as far as that many rows are kept.

        Args:
            part: the source's entry in a mixture.
            indices: where each row stands in the source, if not in order.
        """
        from datasets import concatenate_datasets

        columns = list(rows.column_names)
        work = _Source(source if part is not None else None, self._format(part or {}), indices)
        mapper = self._conversation_mapper(rows, part) if self.method == "sft" else None
        if mapper is not None:
            logger.info("%s: conversations are taken as they are (%s)", source, ", ".join(mapper.columns))
            # A recipe's instruction is for questions; a part that names one means it for its conversations.
            work.as_it_is = "system_prompt" not in (part or {})
        elif self.method == "sft" and self._mapper_name(part) == "auto" and {"prompt", "completion"} <= set(columns):
            return self._text_pairs(rows.select_columns(["prompt", "completion"]), limit)
        else:
            mapper = self._mapper(columns, part or {})
        absent = mapper.missing(columns)
        if absent:
            raise RecipeError(
                f"dataset {source}: mapper {mapper.name!r} needs column {', '.join(map(repr, absent))}; the columns there are: "
                f"{', '.join(columns)}" + self._meant(absent, columns)
            )
        if mapper.images and self.method != "grpo":
            raise RecipeError(f"dataset {source}: mapper {mapper.name!r} gives pictures, which {self.method} does not take; grpo does")
        keep = self._extra_columns(columns, source)
        pieces, kept, start = [], 0, 0
        step = len(rows) if limit is None else max(2 * limit, 1000)
        while start < len(rows) and (limit is None or kept < limit):
            piece = rows.select(range(start, min(start + step, len(rows))))
            mapped = self._render_rows(piece, start, mapper, keep, work)
            if len(mapped):  # a piece without rows has no column types either
                pieces.append(mapped)
            kept += len(mapped)
            start += len(piece)
        return concatenate_datasets(pieces) if pieces else rows.select([])

    def _meant(self, absent: Sequence[str], columns: Sequence[str]) -> str:
        """The hint for a column that the recipe itself names and misspells."""
        keys = [key for key in ("prompt_column", "solution_column", "reasoning_column") if getattr(self.args, key) in absent]
        close = nearest(getattr(self.args, keys[0]), columns, 1) if keys else []
        # A name such as " a" needs its quotes, in YAML and to be seen.
        return f". Fix: {keys[0]}: {close[0] if close[0].isidentifier() else json.dumps(close[0], ensure_ascii=False)}" if close else ""

    def _format(self, part: dict[str, Any]) -> ResponseFormat:
        return get_response_format(self.fmt, system_prompt=part.get("system_prompt"))

    def _mapper_name(self, part: dict[str, Any] | None) -> str:
        return (part or {}).get("mapper") or self.args.mapper

    def _mapper(self, columns: list[str], part: dict[str, Any]) -> Mapper:
        name = self._mapper_name(part)
        named = {key: getattr(self.args, key) for key in ("prompt_column", "solution_column", "reasoning_column")}
        if name not in ("auto", "math", "prompt_solution"):
            named = {}
        return get_mapper(name, columns, **named, **(part.get("mapper_config") or self.args.mapper_config or {}))

    def _conversation_mapper(self, rows: Dataset, part: dict[str, Any] | None) -> Mapper | None:
        """Where the recipe names no mapper: the one that takes a set's conversations as they are; ``None`` where it has none."""
        from datasets import Value

        if self._mapper_name(part) != "auto":
            return None
        if Conversations.fit(rows.column_names):
            return Conversations(well_formed=False)
        # Two texts are no conversation; but what is mixed with conversations becomes one.
        texts = part is None and all(isinstance(rows.features.get(column), Value) for column in _PromptCompletion.columns)
        return _PromptCompletion() if _PromptCompletion.fit(rows.column_names) and not texts else None

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

    def _text_pairs(self, rows: Dataset, limit: int | None) -> Dataset:
        """The pairs of texts that are there and short enough, untouched: they are selected, not written again."""
        keep = []
        for index, row in enumerate(rows):
            if limit is not None and len(keep) == limit:
                break
            self.report.read += 1
            try:
                for column, text in row.items():
                    if not isinstance(text, str) or not text.strip():
                        raise SkipRow(f"column {column!r} is empty")
                _check_lengths(row["prompt"], row["completion"], self.args, self.tokenizer)
            except SkipRow as reason:
                self.report.drop(str(reason), index)
            else:
                keep.append(index)
        return rows if len(keep) == len(rows) else rows.select(keep)

    def _render_rows(self, rows: Dataset, offset: int, mapper: Mapper, keep: list[str], work: _Source) -> Dataset:
        """Rows that the mapper and the limits accept, rendered, with the source's ``keep`` columns; the others are counted."""
        from datasets import Dataset, Features

        # Under its own name a source column would lend its type to ours: text such as "007" would become the number 7.
        renamed = {column: f"source:{column}" for column in rows.column_names if column not in keep}
        # What the mapper writes, as which type, and whether by a value. A batch may have none of a column, or no row that can be used.
        types: dict[str, tuple[Any, bool]] = {}

        def apply(batch: dict[str, list], indices: list[int]) -> dict[str, list]:
            source = {column: batch[renamed.get(column, column)] for column in rows.column_names}
            results, seen = [], {}
            for position, index in enumerate(indices):
                row = {column: values[position] for column, values in source.items()}
                index = offset + index if work.indices is None else int(work.indices[offset + index])
                try:
                    rendered = self._render(self._fields(mapper, row, index, work), row, work)
                except SkipRow as reason:
                    self.report.drop(str(reason), index, work.name)
                    continue
                results.append({column: row[column] for column in keep} | rendered)
                seen |= {column: seen.get(column) or value not in (None, [], "") for column, value in rendered.items()}
            if any(column not in types or (told and not types[column][1]) for column, told in seen.items()):
                found = Dataset.from_dict({column: [result.get(column) for result in results] for column in seen}).features
                types.update({column: (found[column], told) for column, told in seen.items() if column not in types or told})
                raise _NewColumn
            columns = dict.fromkeys([*keep, *types]) or ("prompt",)  # which every row has
            return {column: [result.get(column) for result in results] for column in columns}

        renamed_rows, before = rows.rename_columns(renamed), copy.deepcopy(self.report)
        while True:
            kinds = {column: kind for column, (kind, _) in types.items()}
            features = Features({column: rows.features[column] for column in keep} | kinds) if kinds else None
            try:
                mapped = renamed_rows.map(
                    apply,
                    batched=True,
                    with_indices=True,
                    remove_columns=list(renamed.values()),
                    features=features,
                    desc="mapping rows",
                    load_from_cache_file=False,  # what is dropped must be counted each time
                )
            except _NewColumn:  # from the start, with a place for it
                vars(self.report).update(vars(copy.deepcopy(before)))
                continue
            self.report.read += len(rows)
            return mapped

    def _fields(self, mapper: Mapper, row: dict[str, Any], index: int, work: _Source) -> dict[str, Any]:
        """What the mapper makes of a row; a row that it fails on is one more to be left out, not the end of the run."""
        try:
            fields = mapper(row)
        except (SkipRow, RecipeError):
            raise
        except Exception as error:
            reason = f"mapper {mapper.name!r} fails with {type(error).__name__}"
            if reason not in self.report.dropped:  # the message may differ from row to row
                logger.warning("%s row %d: %s", work.name or "dataset", index, first_line(error))
            raise SkipRow(reason) from error
        if not _is_unicode(fields):
            raise SkipRow("half a surrogate pair, which is no text")
        return fields

    def _render(self, fields: dict[str, Any], row: dict[str, Any], work: _Source) -> dict[str, Any]:
        prompt = self._prompt(fields, row, work)
        response = fields.get("response") if self.method == "sft" else None
        reference = response or "\n".join((fields.get("reasoning") or "", fields.get("solution") or "")).strip()
        _check_lengths(prompt, reference, self.args, self.tokenizer)
        if self.method == "distill":
            return {"prompt": prompt}
        if self.method in _NO_COLUMN:
            return {"prompt": prompt, **{key: value for key, value in fields.items() if key not in _NO_COLUMN[self.method]}}
        target = _target(fields, work.fmt) if response is None else _response(response, fields.get("well_formed", True), work.fmt)
        task = {"task": fields["task"]} if "task" in fields else {}
        return {"prompt": prompt, "completion": [{"role": "assistant", "content": target}], **task}

    def _prompt(self, fields: dict[str, Any], row: dict[str, Any], work: _Source) -> list[dict[str, str]]:
        question, history = fields["question"], fields.get("messages") or []
        system = [turn for turn in history if turn["role"] == "system"]
        earlier = [turn for turn in history if turn["role"] != "system"]
        template = getattr(self.args, "prompt_template", None) if self.method == "generate" else None
        if template is not None:
            question = _filled(template, {**row, **fields})
        elif earlier:
            question = earlier[-1]["content"]
        if work.as_it_is:
            return [*system, *earlier]
        *opening, last = build_prompt(question, work.fmt, self.args.few_shot)
        # The recipe's instruction says what shape is wanted; without one, the row's own stands.
        if not work.fmt.system_prompt:
            opening = [*system, *opening]
        return [*opening, *earlier[:-1], last]


@dataclass
class _Source:
    """One dataset of a load.

    Attributes:
        name: its name in the report; ``None`` outside a mixture.
        fmt: the response format with the part's own instruction.
        indices: where each row stands in the source; ``None``: in order.
        as_it_is: prompts are the rows' own conversations, without the recipe's instruction.
    """

    name: str | None
    fmt: ResponseFormat
    indices: Sequence[int] | None
    as_it_is: bool = False


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


def _filled(template: str, values: dict[str, Any]) -> str:
    """The template with ``{name}`` replaced where that is a name of ``values``; any other brace is text (LaTeX has many)."""
    return _SLOT.sub(lambda slot: _plain(values[slot[1]]) if slot[1] in values else slot[0], template)


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _is_unicode(value: Any) -> bool:
    """Whether every text in ``value`` can be written: JSON may hold half a surrogate pair, Arrow and tokenizers may not."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
        return True
    if isinstance(value, dict):
        return all(map(_is_unicode, value.values()))
    return all(map(_is_unicode, value)) if isinstance(value, list) else True


def _target(fields: dict[str, Any], fmt: ResponseFormat) -> str:
    if not fields.get("reasoning"):
        raise SkipRow("no reasoning to train on")
    try:
        # A prefill may say more than the layout does; the target is the whole turn, as it will stand after the prompt.
        return fmt.full_text(fmt.render_completion(fields["reasoning"], fields.get("answer") or fields["solution"]))
    except ValueError:
        raise SkipRow(f"reasoning or answer cannot be written in format {fmt.name!r}") from None


def _response(response: str, well_formed: bool, fmt: ResponseFormat) -> str:
    """A turn that the source has whole, as it will stand after the prompt: as it is, but for the words of a prefill."""
    if not response.strip():
        raise SkipRow("no response to train on")
    turn = _with_prefill(response, fmt)
    if well_formed and (turn is None or not fmt.parse(turn.removeprefix(fmt.prefill)).well_formed):
        raise SkipRow(f"response is not in format {fmt.name!r}")
    if turn is None:
        raise SkipRow(f"response does not start with the prefill {fmt.prefill!r}")
    return turn


def _with_prefill(response: str, fmt: ResponseFormat) -> str | None:
    """``response`` with the format's prefill in front; ``None`` where it starts otherwise."""
    if response.startswith(fmt.prefill):
        return response
    if not fmt.reasoning_tags or not fmt.prefill.rstrip().endswith(fmt.reasoning_tags[0]):
        return None
    opening, closing = fmt.reasoning_tags
    # A server whose template opens the reasoning gives what follows; any other data opens it with the tag alone.
    rest = response.lstrip().removeprefix(opening)
    if closing not in rest or opening in rest:
        return None
    return fmt.prefill + (rest.lstrip() if fmt.prefill[-1:].isspace() else rest)


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


def _load_mixture(job: _Job, split: str, rows: Sequence[Dataset] | None = None) -> Dataset:
    """open-r1's mixture: ``weight`` is the share of its own rows that a dataset contributes; then one shuffle, then the test split.

    DeepSeek-R1's second SFT (arXiv:2501.12948, section 2.3.3), about 600,000 reasoning and 200,000 general examples, is two parts: the
    first with the mapper of its traces, the second with ``mapper: conversations``, ``mapper_config: {well_formed: false}`` and
    ``system_prompt: ""``, and a ``weight`` for whichever set is larger than 3 to 1 asks for. ``task`` gives a part's rows a constant
    column of that name; rows of parts that set none have ``""``.
    """
    import numpy
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
        for key, least in (("task", 1), ("system_prompt", 0)):
            if key in part and (not isinstance(part[key], str) or len(part[key]) < least):
                raise RecipeError(f"{where} ({part['id']}): {key}: a text, found {part[key]!r}")
        indices = None
        if rows is not None:
            source = rows[number - 1]
        else:
            options = {"hub": job.args.hub, "task_config": part.get("task_config", job.args.task_config)}
            options["csv_style"] = _csv_style(job.args, part)
            source = load_rows(part["id"], part.get("split", "train"), config=part.get("config"), revision=part.get("revision"), **options)
            for column in part.get("columns") or ():
                if column not in source.column_names:
                    raise RecipeError(f"{where}: " + unknown_name(f"column of {part['id']}", column, source.column_names))
            if part.get("columns"):
                source = source.select_columns(part["columns"])
            if weight < 1:
                indices = numpy.random.default_rng(seed).permutation(len(source))[: round(weight * len(source))]
                source = source.select(indices)
        mapped = job.map_rows(source, part["id"], part=part, indices=indices)
        if not len(mapped):
            raise RecipeError(f"{where} ({part['id']}, weight {weight}): no row is left: {job.report}")
        combined.append(mapped)
    if job.method != "distill":
        combined = _with_tasks(combined, [part.get("task") for part in mixture["datasets"]])
    try:
        dataset = concatenate_datasets(combined).shuffle(seed=seed)
    except ValueError as error:  # datasets names the column and its types
        raise RecipeError(f"dataset_mixture: the datasets' columns do not agree: {error}") from error
    if rows is not None:
        return dataset
    if test_size is None:
        if split == "test":
            raise RecipeError("dataset_mixture: evaluation is on, but test_split_size is not set")
        return dataset
    count = round(test_size * len(dataset)) if test_size < 1 else int(test_size)
    if not 0 < count < len(dataset):
        raise RecipeError(f"dataset_mixture: test_split_size {test_size!r} leaves no rows on one side of {len(dataset)}")
    return dataset.select(range(count) if split == "test" else range(count, len(dataset)))


def _with_tasks(combined: list[Dataset], tasks: list[str | None]) -> list[Dataset]:
    """The parts with a column ``task`` each, if one of them has it: the part's own name, else the rows', else ``""``."""
    if not any(tasks) and not any("task" in part.column_names for part in combined):
        return combined
    named = []
    for part, task in zip(combined, tasks, strict=True):
        if task is not None and "task" in part.column_names:
            part = part.remove_columns("task")
        named.append(part if "task" in part.column_names else part.add_column("task", [task or ""] * len(part)))
    return named
