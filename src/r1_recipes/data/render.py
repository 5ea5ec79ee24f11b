"""Every row of a dataset through its mapper, and mapped rows -> the trainers' columns: prompts, targets, limits on their length."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import OWN_FAULTS, RecipeError, first_line, own_place
from r1_recipes.data.mappers import Mapper, SkipRow
from r1_recipes.prompts.formats import ResponseFormat

if TYPE_CHECKING:
    from datasets import Dataset, Features
    from datasets.features.features import FeatureType

logger = logging.getLogger(__name__)

Messages = list[dict[str, Any]]

# Fields of a mapper that become no column.
_NO_COLUMN = {
    "grpo": {"question", "reasoning", "response", "rejected", "messages", "well_formed"},
    "generate": {"rejected", "messages", "well_formed"},
}
_SLOT = re.compile(r"\{([^{}\n]+)\}")
_MARK = "|question|"
_BATCH = 1000  # rows mapped, rendered and written at once
_PICTURES = 4  # rows with a picture each, which is decoded until the batch is written
_TOKENIZED_AT_ONCE = 64  # texts; a long one's encoding takes some 100 bytes a token


def build_prompt(question: str, fmt: ResponseFormat, few_shot: list[dict[str, str]] | None = None) -> list[dict[str, str]]:
    """The conversation that the model answers: instruction, worked turns (question, reasoning and answer each), question."""
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


@dataclass(frozen=True)
class Renderer:
    """Writes the rows of one dataset; ``fmt`` has the dataset's own instruction."""

    args: Any
    fmt: ResponseFormat
    method: str
    tokenizer: Any
    few_shot: list[dict[str, str]] | None = None
    tools: str | None = None  # JSON schemas

    def __call__(self, row: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        """Return the trainer's columns of one row, or raise :class:`SkipRow`; ``fields`` are what the mapper made of it."""
        if "turns" in fields:
            if self.method != "sft":
                raise SkipRow("a whole conversation, which is for sft")
            return self._whole(**fields)
        prompt = self._prompt(row, fields)
        if self.method == "distill":
            return {"prompt": prompt}
        if self.method in _NO_COLUMN:
            return {"prompt": prompt, **{key: value for key, value in fields.items() if key not in _NO_COLUMN[self.method]}}
        if self.method == "reward":
            if "rejected" not in fields:
                raise SkipRow("no pair of a chosen and a rejected turn")
            turns = {"chosen": fields["response"], "rejected": fields["rejected"]}
            return {"prompt": prompt, **{key: [{"role": "assistant", "content": text}] for key, text in turns.items()}}
        if "rejected" in fields:
            raise SkipRow("a preference pair, which python -m r1_recipes.reward takes")
        response = fields.get("response")
        target = _target(fields, self.fmt) if response is None else _response(response, fields.get("well_formed", True), self.fmt)
        task = {"task": fields["task"]} if "task" in fields else {}
        called = [turn for call in fields.get("calls") or () for turn in _called(**call)]
        tools = {"tools": self.tools} if self.tools else {}  # as TRL's SFT reads them
        return {"prompt": prompt, "completion": [*called, {"role": "assistant", "content": target}], **tools, **task}

    def _whole(self, turns: Messages, empty_system: bool = False, well_formed: bool | None = None) -> dict[str, Any]:
        """A conversation as it stands; ``well_formed``: as the recipe asks, if it says so, with an answer in its format or not."""
        template = str(getattr(self.tokenizer, "chat_template", ""))
        if any("tool_calls" in turn for turn in turns) and not self._takes_tools:
            raise SkipRow("a call of a tool, which the chat template cannot write")
        if well_formed is not None and self.fmt.system_prompt:
            turns = [{"role": "system", "content": self.fmt.system_prompt}, *(turn for turn in turns if turn["role"] != "system")]
        if well_formed and "tool_calls" not in turns[-1]:
            _response(turns[-1]["content"], well_formed, self.fmt)
        if empty_system and turns[0]["role"] != "system" and ("system" in template or "<|im_start|>" in template):
            turns = [{"role": "system", "content": ""}, *turns]
        last = max((index for index, turn in enumerate(turns) if turn["role"] == "assistant"), default=0)
        while last > 1 and (turns[last - 1]["role"] == "tool" or "tool_calls" in turns[last - 1]):
            last -= 1  # all that follows the question
        if not last:
            raise SkipRow("no assistant's turn after another")
        return {"prompt": turns[:last], "completion": turns[last:]}

    @cached_property
    def _takes_tools(self) -> bool:
        from trl.chat_template_utils import supports_tool_calling  # heavy

        return self.tokenizer is None or supports_tool_calling(self.tokenizer)

    def _prompt(self, row: dict[str, Any], fields: dict[str, Any]) -> Messages:
        question, history = fields["question"], fields.get("messages") or []
        earlier = [turn for turn in history if turn["role"] != "system"]
        template = getattr(self.args, "prompt_template", None)
        if template is not None:
            question = _filled(template, {**row, **fields})
        elif earlier:
            question = earlier[-1]["content"]
        *opening, last = build_prompt(question, self.fmt, self.few_shot)
        if not self.fmt.system_prompt:  # the row's own instruction stands
            opening = [*(turn for turn in history if turn["role"] == "system"), *opening]
        return [*opening, *earlier[:-1], last]

    def over_limits(self, results: list[dict[str, Any]]) -> dict[int, str]:
        """Return the limit on its length that a rendered row is over, by the row's index."""
        over, solutions, prompts = {}, self.args.max_solution_tokens, self.args.max_prompt_tokens
        if results and solutions is not None:
            # Targets, of a pair the longer one, or golds.
            turns = [[result[key][-1]["content"] for key in ("completion", "chosen", "rejected") if key in result] for result in results]
            texts = [max(own or [result.get("solution") or ""], key=len) for own, result in zip(turns, results, strict=True)]
            over = dict.fromkeys(self._over(texts, solutions), f"solution over max_solution_tokens {solutions}")
        if results and prompts is not None:
            found = self._prompts_over([result["prompt"] for result in results], prompts)
            over |= dict.fromkeys(found, f"prompt over max_prompt_tokens {prompts}")
        return over

    def _prompts_over(self, prompts: list[Messages], limit: int) -> list[int]:
        options = {"tools": json.loads(self.tools)} if self.tools else {}
        render = partial(self.tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False, **options)
        *opening, last = prompts[0]
        if all(prompt[:-1] == opening and prompt[-1]["content"] == prompt[-1]["content"].strip() for prompt in prompts):
            # They differ in the question alone: what stands around it is rendered once, and what is before it counted once.
            framed, *expected = render([[*opening, last | {"content": _MARK}], prompts[0], prompts[-1]])
            before, _, after = framed.partition(_MARK)
            cut = max((0, *map(before.rfind, self.tokenizer.get_added_vocab())))  # no token crosses a special one
            start = before[:cut]
            texts = [before[cut:] + prompt[-1]["content"] + after for prompt in prompts]
            counts = self._token_counts([start, texts[0], expected[0]])
            if [start + texts[0], start + texts[-1]] == expected and counts[0] + counts[1] == counts[2]:
                return self._over(texts, limit - counts[0])
        return self._over(render(prompts), limit)

    def _over(self, texts: list[str], limit: int) -> list[int]:
        # No token is less than an ASCII character; some tokenizers put one in front.
        long = [index for index, text in enumerate(texts) if len(text) >= limit or not text.isascii()]
        lengths: list[int] = []
        for start in range(0, len(long), _TOKENIZED_AT_ONCE):
            lengths += self._token_counts([texts[index] for index in long[start : start + _TOKENIZED_AT_ONCE]])
        return [index for index, length in zip(long, lengths, strict=True) if length > limit]

    def _token_counts(self, texts: list[str]) -> list[int]:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return [len(self.tokenizer.encode(text, add_special_tokens=False)) for text in texts]
        # As a call of the tokenizer does, without lists of ids and offsets, in half the time.
        backend.no_truncation()
        backend.no_padding()
        return [len(encoding) for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def _called(name: str, arguments: dict[str, Any], result: str) -> Messages:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "name": name, "content": result}]


def _filled(template: str, values: dict[str, Any]) -> str:
    """The template with ``{name}`` replaced if that is a name of ``values``; any other brace is text (LaTeX has many)."""

    def text(slot: re.Match[str]) -> str:
        value = values.get(slot[1], slot[0])
        if isinstance(value, str):
            return value
        return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)

    return _SLOT.sub(text, template)


def _target(fields: dict[str, Any], fmt: ResponseFormat) -> str:
    if not fields.get("reasoning"):
        raise SkipRow("no reasoning to train on")
    try:
        # A prefill may say more than the layout does; the target is the whole turn, as it will stand after the prompt.
        return fmt.full_text(fmt.render_completion(fields["reasoning"], fields.get("answer") or fields["solution"]))
    except ValueError:
        raise SkipRow(f"reasoning or answer cannot be written in format {fmt.name!r}") from None


def _response(response: str, well_formed: bool, fmt: ResponseFormat) -> str:
    """A turn that the source has whole, with the words of the format's prefill in front."""
    if not response.strip():
        raise SkipRow("no response to train on")
    if (turn := fmt.with_prefill(response)) is None:
        raise SkipRow(f"response does not start with the prefill {fmt.prefill!r}")
    if well_formed and not fmt.parse(turn.removeprefix(fmt.prefill)).well_formed:
        raise SkipRow(f"response is not in format {fmt.name!r}")
    return turn


@dataclass
class LoadReport:
    """What became of the rows of one split.

    ``read`` are rows read (with ``max_samples`` no more than it takes), ``dropped`` counts by reason, which in a mixture starts with its
    dataset, and ``first_index`` is the source row of each reason's first.
    """

    read: int = 0
    kept: int = 0
    failed: int = 0  # of those that were dropped, rows on which the mapper raised what is no SkipRow
    mappers: list[str] = field(default_factory=list)  # of each dataset, with the place of the user's own
    dropped: Counter[str] = field(default_factory=Counter)
    first_index: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str, index: int) -> None:
        self.dropped[reason] += 1
        self.first_index.setdefault(reason, index)

    def __str__(self) -> str:
        dropped = [f"{count} dropped: {reason} (first: row {self.first_index[reason]})" for reason, count in self.dropped.items()]
        return "; ".join([f"{self.kept} of {self.read} rows kept", *dropped])


@dataclass
class RowMapper:
    mapper: Mapper
    renderer: Renderer
    keep: list[str]  # source columns that stay
    report: LoadReport
    where: str = ""  # what reasons start with: in a mixture, the dataset
    indices: Sequence[int] | None = None  # where each row stands in the source; None: in order

    def __call__(self, rows: Dataset, limit: int | None = None) -> Dataset:
        """The rows that mapper and renderer accept, in order; of many, as far as ``limit`` of them need."""
        from datasets import Features, Json, List, concatenate_datasets  # heavy

        from r1_recipes.data.rows import write_cached  # heavy

        self.report.mappers.append(self.mapper.place())
        features = Features({column: rows.features[column] for column in self.keep})
        if self.renderer.method == "sft":  # turns have calls or none, and arguments of any kind
            features.update(dict.fromkeys(("prompt", "completion"), List(Json())))
        pieces = []  # another one whenever a column gets its type; in files, so that memory stays flat
        for schema, batches in groupby(self._batches(rows, limit, features), key=lambda batch: batch.data.schema):
            pieces.append(write_cached((batch.data.table for batch in batches), schema))
        for number, piece in enumerate(pieces):
            final = Features({column: features[column] for column in piece.features})
            if piece.features != final:
                pieces[number] = piece.cast(final)
        return concatenate_datasets(pieces) if pieces else rows.select([])

    def _batches(self, rows: Dataset, limit: int | None, features: Features) -> Iterator[Dataset]:
        """Rendered rows; ``features`` grows with the columns that the mapper gives."""
        from datasets import Dataset  # heavy
        from datasets.utils import tqdm  # heavy

        kept = 0
        size = _PICTURES if self.mapper.images else _BATCH
        for start in tqdm(range(0, len(rows), size), desc="mapping rows", unit="batch"):
            if limit is not None and kept >= limit:
                return
            if not (results := self._render(rows[start : start + size], start)):
                continue
            kept += len(results)
            columns = {column: [result.get(column) for result in results] for column in dict.fromkeys([*features, *chain(*results)])}
            try:
                if untyped := {column: values for column, values in columns.items() if "null" in repr(features.get(column, "null"))}:
                    for column, feature in Dataset.from_dict(untyped).features.items():
                        features[column] = _merged(features.get(column), feature)
                rendered = Dataset.from_dict(columns, features=features.copy())
            except Exception as error:  # Arrow has many kinds for one thing
                raise self._of_two_types(columns, features, error) from error
            yield rendered

    def _of_two_types(self, columns: dict[str, list[Any]], features: Features, error: Exception) -> RecipeError:
        """Return the error that names the column whose values have no type in common."""
        from datasets import Dataset, Features  # heavy

        name = ""
        for column, values in columns.items():
            try:
                Dataset.from_dict({column: values}, features=Features({column: features[column]}) if column in features else None)
            except Exception:
                name = column
        told = f"column {name!r} must hold values of one type: {first_line(error)}"
        return RecipeError(f"{self.where}{self.mapper.place()}: {told} Fix: return str(value) or None in every row")

    def _render(self, batch: dict[str, list[Any]], start: int) -> list[dict[str, Any]]:
        rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        self.report.read += len(rows)
        places, results = [], []
        for number, row in enumerate(rows, start):
            place = number if self.indices is None else int(self.indices[number])
            try:
                fields = self.mapper(row)
                self._check(fields, place)
                result = {column: row[column] for column in self.keep} | self.renderer(row, fields)
            except RecipeError:
                raise
            except SkipRow as skipped:
                self.report.drop(f"{self.where}{skipped}", place)
            except OWN_FAULTS as error:  # a mapper may be anybody's
                reason = f"{self.where}mapper {self.mapper.name!r} fails with {type(error).__name__}{own_place(error)}"
                if reason not in self.report.dropped:  # the message may differ from row to row
                    logger.warning("dataset_name: %srow %d: %s%s", self.where, place, first_line(error)[:-1], own_place(error))
                self.report.drop(reason, place)
                self.report.failed += 1
            else:
                places.append(place)
                results.append(result)
        over = self.renderer.over_limits(results)
        for index in sorted(over):
            self.report.drop(self.where + over[index], places[index])
        return [result for index, result in enumerate(results) if index not in over]

    def _check(self, fields: Any, place: int) -> None:
        """Refuse what a mapper returns if it is no mapping, or says neither a question (text) nor turns."""
        if isinstance(fields, dict) and ("turns" in fields or isinstance(fields.get("question"), str)):
            return
        found = f"{fields!r:.80}"
        if isinstance(fields, dict):
            found = f"one with the keys {', '.join(map(repr, fields)) or 'none'}"
            if "question" in fields:
                found = f"question {fields['question']!r:.60}"
        raise RecipeError(
            f"{self.where}{self.mapper.place()}: must return a dict with a text 'question', got {found} for row {place}. "
            "Fix: return {'question': …, 'solution': …}; for a row that cannot be used, raise SkipRow('why')"
        )


def _merged(known: FeatureType | None, found: FeatureType) -> FeatureType:
    """The feature with what is null in it as it was found now."""
    from datasets import List, Value  # heavy

    if known is None or known == Value("null"):
        return found
    if isinstance(known, dict) and isinstance(found, dict):
        return {key: _merged(feature, found.get(key, feature)) for key, feature in known.items()}
    if isinstance(known, List) and isinstance(found, List):
        return List(_merged(known.feature, found.feature))
    return known
