"""Map every row of a dataset, and render mapped rows as the trainers' columns."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import (
    USER_ERRORS,
    RecipeError,
    first_line,
    located,
    user_code_place,
)
from r1_recipes.data.lengths import TokenCounter
from r1_recipes.data.mapped_row import MappedRow, Message, ToolCall, fault_of
from r1_recipes.data.mappers import Mapper, SkipRow
from r1_recipes.prompts.formats import ResponseFormat

if TYPE_CHECKING:
    from datasets import Dataset, Features
    from datasets.features.features import FeatureType

logger = logging.getLogger(__name__)

# Fields of a mapped row that do not become columns.
_NO_COLUMN = {
    "grpo": {"question", "reasoning", "response", "rejected", "messages", "well_formed"},
    "generate": {"rejected", "messages", "well_formed"},
}
_SLOT = re.compile(r"\{([^{}\n]+)\}")
_BATCH = 1000  # Rows mapped, rendered and written together.
_PICTURES = 4  # Rows per batch with pictures: decoded pictures stay in memory until it is written.


def build_prompt(
    question: str,
    fmt: ResponseFormat,
    few_shot: list[dict[str, str]] | None = None,
) -> list[Message]:
    """Return the prompt: the instruction, the worked examples and the question as messages."""
    messages = [{"role": "system", "content": fmt.system_prompt}] if fmt.system_prompt else []
    for number, example in enumerate(few_shot or [], start=1):
        where = f"few_shot: entry {number}"
        if not isinstance(example, dict) or set(example) != {"question", "reasoning", "answer"}:
            raise RecipeError(f"{where}: must have question, reasoning and answer, got {example!r}")
        with located(where):
            worked = fmt.render(str(example["reasoning"]), str(example["answer"]))
        messages.append({"role": "user", "content": str(example["question"])})
        messages.append({"role": "assistant", "content": worked})
    return [*messages, {"role": "user", "content": question}]


@dataclass(frozen=True)
class Renderer:
    """Renders the mapped rows of one dataset. ``fmt`` has the instruction of that dataset."""

    args: Any
    fmt: ResponseFormat
    method: str
    tokenizer: Any
    few_shot: list[dict[str, str]] | None = None
    tools: str | None = None  # JSON schemas

    def __call__(self, row: dict[str, Any], mapped: MappedRow) -> dict[str, Any]:
        """Return the trainer's columns of one row, or raise :class:`SkipRow`."""
        if "turns" in mapped:
            return self._conversation(mapped)
        prompt = self._prompt(row, mapped)
        if self.method == "sft":
            return {"prompt": prompt, **self._completion(mapped)}
        if self.method == "reward":
            return {"prompt": prompt, **_pair(mapped)}
        if self.method == "distill":
            return {"prompt": prompt}
        hidden = _NO_COLUMN[self.method]
        columns = {key: value for key, value in mapped.items() if key not in hidden}
        if self.method == "generate" and (earlier := (mapped.get("messages") or [])[:-1]):
            columns["earlier_messages"] = earlier
        return {"prompt": prompt, **columns}

    def _prompt(self, row: dict[str, Any], mapped: MappedRow) -> list[Message]:
        question, history = mapped["question"], mapped.get("messages") or []
        earlier = [message for message in history if message["role"] != "system"]
        if self.args.prompt_template is not None:
            question = _fill(self.args.prompt_template, {**row, **mapped})
        elif earlier:
            question = earlier[-1]["content"]
        *opening, last = build_prompt(question, self.fmt, self.few_shot)
        if not self.fmt.system_prompt:  # The row keeps its instruction.
            instructions = [message for message in history if message["role"] == "system"]
            opening = instructions + opening
        return [*opening, *earlier[:-1], last]

    def _completion(self, mapped: MappedRow) -> dict[str, Any]:
        """Return the SFT target of a row, and the columns that SFT needs with it."""
        if "rejected" in mapped:
            raise SkipRow("a preference pair. Fix: train on it with python -m r1_recipes.reward")
        response = mapped.get("response")
        if response is None:
            target = _target(mapped, self.fmt)
        else:
            target = _response(response, mapped.get("well_formed", True), self.fmt)
        calls = map(_tool_messages, mapped.get("calls") or ())
        completion = [*chain.from_iterable(calls), {"role": "assistant", "content": target}]
        columns: dict[str, Any] = {"completion": completion}
        if self.tools:
            columns["tools"] = self.tools  # SFTTrainer reads this column.
        if "task" in mapped:
            columns["task"] = mapped["task"]
        return columns

    def _conversation(self, mapped: MappedRow) -> dict[str, Any]:
        """Return a whole conversation, split where the last answer begins.

        A mapped row with ``well_formed`` gets the recipe's instruction, if the recipe has one.
        """
        if self.method != "sft":
            raise SkipRow("a whole conversation, which only sft can use")
        turns, well_formed = mapped["turns"], mapped.get("well_formed")
        if any("tool_calls" in message for message in turns) and not self._takes_tools:
            raise SkipRow("a tool call, which the chat template cannot write")
        if well_formed is not None and self.fmt.system_prompt:
            instruction = {"role": "system", "content": self.fmt.system_prompt}
            turns = [instruction, *(message for message in turns if message["role"] != "system")]
        if well_formed and "tool_calls" not in turns[-1]:
            _response(turns[-1]["content"], well_formed, self.fmt)
        if mapped.get("empty_system") and turns[0]["role"] != "system" and self._writes_system:
            turns = [{"role": "system", "content": ""}, *turns]
        start = _target_start(turns)
        return {"prompt": turns[:start], "completion": turns[start:]}

    @cached_property
    def _takes_tools(self) -> bool:
        from trl.chat_template_utils import supports_tool_calling  # heavy

        return self.tokenizer is None or supports_tool_calling(self.tokenizer)

    @cached_property
    def _writes_system(self) -> bool:
        template = str(self.tokenizer.chat_template if self.tokenizer else "")
        return "system" in template or "<|im_start|>" in template

    def over_limits(self, results: list[dict[str, Any]]) -> dict[int, str]:
        """Return the length limit that each too long row exceeds, by the index of the row."""
        counter = TokenCounter(self.tokenizer, self.tools)
        over = {}
        limit = self.args.max_solution_tokens
        if limit is not None:
            for index in counter.texts_over([_longest_target(result) for result in results], limit):
                over[index] = f"solution over max_solution_tokens {limit}"
        limit = self.args.max_prompt_tokens
        if limit is not None and results:
            for index in counter.prompts_over([result["prompt"] for result in results], limit):
                over[index] = f"prompt over max_prompt_tokens {limit}"
        return over


def _longest_target(result: dict[str, Any]) -> str:
    """Return the longest target of a rendered row, or its solution if it has no target."""
    keys = [key for key in ("completion", "chosen", "rejected") if key in result]
    targets = [result[key][-1]["content"] for key in keys]
    return max(targets, key=len, default=result.get("solution") or "")


def _pair(mapped: MappedRow) -> dict[str, list[Message]]:
    if "rejected" not in mapped:
        raise SkipRow("no pair of a chosen and a rejected message")
    return {
        "chosen": [{"role": "assistant", "content": mapped["response"]}],
        "rejected": [{"role": "assistant", "content": mapped["rejected"]}],
    }


def _target_start(turns: list[Message]) -> int:
    """Return the index of the first target message, which follows the last question."""
    answers = [index for index, message in enumerate(turns) if message["role"] == "assistant"]
    start = answers[-1] if answers else 0
    while start > 1 and (turns[start - 1]["role"] == "tool" or "tool_calls" in turns[start - 1]):
        start -= 1
    if not start:
        raise SkipRow("no assistant message after another message")
    return start


def _tool_messages(call: ToolCall) -> list[Message]:
    function = {"name": call["name"], "arguments": call["arguments"]}
    return [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        },
        {"role": "tool", "name": call["name"], "content": call["result"]},
    ]


def _fill(template: str, values: dict[str, Any]) -> str:
    """Replace each ``{name}`` that is a key of ``values``. Other braces are text, as in LaTeX."""

    def text(slot: re.Match[str]) -> str:
        value = values.get(slot[1], slot[0])
        if isinstance(value, str):
            return value
        return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)

    return _SLOT.sub(text, template)


def _target(mapped: MappedRow, fmt: ResponseFormat) -> str:
    if not mapped.get("reasoning"):
        raise SkipRow("no reasoning to train on")
    answer = mapped.get("answer") or mapped["solution"]
    try:
        completion = fmt.render_completion(mapped["reasoning"], answer)
    except ValueError:
        raise SkipRow(f"reasoning or answer cannot be written in format {fmt.name!r}") from None
    return fmt.full_text(completion)  # The target is all text after the prompt.


def _response(response: str, well_formed: bool, fmt: ResponseFormat) -> str:
    """Return the source's response with the prefill of the format in front."""
    if not response.strip():
        raise SkipRow("no response to train on")
    text = fmt.with_prefill(response)
    if text is None:
        raise SkipRow(f"response does not start with the prefill {fmt.prefill!r}")
    if well_formed and not fmt.parse(text.removeprefix(fmt.prefill)).well_formed:
        raise SkipRow(f"response is not in format {fmt.name!r}")
    return text


@dataclass
class LoadReport:
    """Counts the rows of one split that were read, kept and dropped.

    With ``max_samples``, loading stops as soon as there are enough rows, so ``read`` is smaller.

    Attributes:
        read: Rows read from the source.
        kept: Rows in the dataset.
        failed: Dropped rows on which the mapper raised an error other than ``SkipRow``.
        mappers: The mapper of each dataset.
        dropped: The number of dropped rows for each reason. In a mixture, a reason starts with the
            name of its dataset.
        first_index: For each reason, the index of the first dropped row in the source.
    """

    read: int = 0
    kept: int = 0
    failed: int = 0
    mappers: list[Mapper] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    first_index: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str, index: int) -> None:
        """Count a dropped row. ``index`` is its row in the source."""
        self.dropped[reason] += 1
        self.first_index.setdefault(reason, index)

    def __str__(self) -> str:
        parts = [f"{self.kept} of {self.read} rows kept"]
        for reason, count in self.dropped.items():
            parts.append(f"{count} dropped: {reason} (first: row {self.first_index[reason]})")
        return "; ".join(parts)


@dataclass
class RowMapper:
    """Maps and renders the rows of one dataset.

    ``Dataset.map`` takes columns and types from the first rows, and reads all rows. Here a later
    row may add a column or its type, and reading stops at ``limit``.
    """

    mapper: Mapper
    renderer: Renderer
    keep: list[str]  # The source columns to keep.
    report: LoadReport
    where: str = ""  # Prefix of every reason: in a mixture, the dataset.
    places: Sequence[int] | None = None  # The index of each row in the source; None: in order.

    def __call__(self, rows: Dataset, limit: int | None = None) -> Dataset:
        """Return the rendered rows, in order. Stop after the batch that reaches the limit."""
        from datasets import Features, Json, List, concatenate_datasets  # heavy

        from r1_recipes.data.rows import write_cached  # heavy

        self.report.mappers.append(self.mapper)
        features = Features({column: rows.features[column] for column in self.keep})
        if self.renderer.method == "sft":  # Some messages have tool calls, with any arguments.
            features.update({"prompt": List(Json()), "completion": List(Json())})
        # Start a new piece whenever a column gets its type. Pieces are files, which saves memory.
        pieces = []
        written = self._batches(rows, limit, features)
        for schema, batches in groupby(written, key=lambda batch: batch.data.schema):
            pieces.append(write_cached((batch.data.table for batch in batches), schema))
        if not pieces:
            return rows.select([])
        for number, piece in enumerate(pieces):
            final = Features({column: features[column] for column in piece.features})
            if piece.features != final:
                pieces[number] = piece.cast(final)
        return concatenate_datasets(pieces)

    def _batches(self, rows: Dataset, limit: int | None, features: Features) -> Iterator[Dataset]:
        """Yield rendered rows in batches, and count dropped rows in the report.

        Adds the columns of rendered rows to ``features``.
        """
        from datasets.utils import tqdm  # heavy

        kept = 0
        size = _PICTURES if self.mapper.images else _BATCH
        for start in tqdm(range(0, len(rows), size), desc="mapping rows", unit="batch"):
            if limit is not None and kept >= limit:
                return
            batch = rows[start : start + size]
            places, results = [], []
            for number, values in enumerate(zip(*batch.values(), strict=True), start):
                self.report.read += 1
                place = number if self.places is None else int(self.places[number])
                result = self._render_row(dict(zip(batch, values, strict=True)), place)
                if result is not None:
                    places.append(place)
                    results.append(result)
            over = self.renderer.over_limits(results)
            for index in sorted(over):
                self.report.drop(self.where + over[index], places[index])
            results = [result for index, result in enumerate(results) if index not in over]
            kept += len(results)
            if results:
                yield self._typed(results, features)

    def _typed(self, results: list[dict[str, Any]], features: Features) -> Dataset:
        """Return rendered rows as a dataset, and add the type of each column to ``features``."""
        from datasets import Dataset, Features, concatenate_datasets  # heavy

        columns = []
        for name in dict.fromkeys(chain(features, *results)):
            values = {name: [result.get(name) for result in results]}
            known = features.get(name)
            try:
                if known is None or "null" in repr(known):
                    inferred = Dataset.from_dict(values).features[name]
                    features[name] = inferred if known is None else _merged(known, inferred)
                columns.append(Dataset.from_dict(values, features=Features({name: features[name]})))
            except Exception as error:  # Arrow raises many types of error here.
                raise RecipeError(
                    f"{self.where}{self.mapper.place()}: column {name!r} must hold values of one "
                    f"type: {first_line(error)} Fix: return str(value) or None in every row"
                ) from error
        return concatenate_datasets(columns, axis=1)

    def _render_row(self, row: dict[str, Any], place: int) -> dict[str, Any] | None:
        try:
            mapped = self.mapper(row)
            problem = fault_of(mapped)
            if problem is not None:
                raise RecipeError(
                    f"{self.where}{self.mapper.place()}: must return a dict with a text "
                    f"'question', got {problem} for row {place}. "
                    "Fix: return {'question': …, 'solution': …}, or raise SkipRow('why') to drop "
                    "the row"
                )
            return {column: row[column] for column in self.keep} | self.renderer(row, mapped)
        except RecipeError:
            raise
        except SkipRow as skipped:
            self.report.drop(f"{self.where}{skipped}", place)
        except USER_ERRORS as error:  # The mapper may be the user's code.
            code_place = user_code_place(error)
            name = f"{self.where}mapper {self.mapper.name!r}"
            reason = f"{name} fails with {type(error).__name__}{code_place}"
            if reason not in self.report.dropped:  # Log each reason once: messages differ.
                cause = first_line(error)[:-1]
                logger.warning("dataset_name: %srow %d: %s%s", self.where, place, cause, code_place)
            self.report.drop(reason, place)
            self.report.failed += 1
        return None


def _merged(known: FeatureType, inferred: FeatureType) -> FeatureType:
    """Return the known feature, with its null parts replaced by the inferred feature."""
    from datasets import List, Value  # heavy

    if known == Value("null"):
        return inferred
    if isinstance(known, dict) and isinstance(inferred, dict):
        return {key: _merged(feature, inferred.get(key, feature)) for key, feature in known.items()}
    if isinstance(known, List) and isinstance(inferred, List):
        return List(_merged(known.feature, inferred.feature))
    return known
