"""Mapped rows -> the trainers' columns: prompts, targets, and the limits on their length."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.data.mappers import SkipRow
from r1_recipes.prompts.formats import ResponseFormat

# Fields of a mapper that become no column.
_NO_COLUMN = {
    "grpo": {"question", "reasoning", "response", "messages", "well_formed"},
    "generate": {"messages", "well_formed"},
}
_SLOT = re.compile(r"\{([^{}\n]+)\}")
_MARK = "|question|"
_TOKENIZED_AT_ONCE = 64  # texts; a long one's encoding takes some 100 bytes a token


def build_prompt(question: str, fmt: ResponseFormat, few_shot: list[dict[str, str]] | None = None) -> list[dict[str, str]]:
    """The conversation that the model answers: instruction, worked turns, question.

    Args:
        few_shot: mappings with ``question``, ``reasoning`` and ``answer``.

    Raises:
        RecipeError: a worked turn lacks a key or cannot be written in the format.
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


@dataclass(frozen=True)
class Renderer:
    """Writes the rows of one dataset.

    Attributes:
        args: :class:`~r1_recipes.recipe.types.RecipeArguments`.
        fmt: the response format, with the dataset's own instruction.
        method: ``grpo``, ``generate``, ``sft`` or ``distill``.
        tokenizer: measures prompts and solutions.
        own_prompts: prompts are the rows' own conversations, without the recipe's instruction.
        text_pairs: rows are a prompt and a completion, both text, and stay as they are.
    """

    args: Any
    fmt: ResponseFormat
    method: str
    tokenizer: Any
    own_prompts: bool = False
    text_pairs: bool = False

    def __call__(self, rows: Sequence[dict[str, Any]], mapped: Sequence[dict[str, Any] | SkipRow]) -> list[dict[str, Any] | SkipRow]:
        """Return the columns of each source row, or why it cannot be used; ``mapped``: what the mapper made of it."""
        usable = {index: fields for index, fields in enumerate(mapped) if isinstance(fields, dict)}
        prompts = [self._prompt(fields, rows[index]) for index, fields in usable.items()]
        reasons = self._over_limits(prompts, [self._reference(fields) for fields in usable.values()])
        found = list(mapped)
        for (index, fields), prompt, reason in zip(usable.items(), prompts, reasons, strict=True):
            try:
                found[index] = SkipRow(reason) if reason else self._columns(prompt, fields)
            except SkipRow as error:
                found[index] = error
        return found

    def _prompt(self, fields: dict[str, Any], row: dict[str, Any]) -> list[dict[str, str]] | str:
        if self.text_pairs:
            return fields["prompt"]
        question, history = fields["question"], fields.get("messages") or []
        if self.own_prompts:
            return history
        system = [turn for turn in history if turn["role"] == "system"]
        earlier = [turn for turn in history if turn["role"] != "system"]
        template = getattr(self.args, "prompt_template", None) if self.method == "generate" else None
        if template is not None:
            question = _filled(template, {**row, **fields})
        elif earlier:
            question = earlier[-1]["content"]
        *opening, last = build_prompt(question, self.fmt, self.args.few_shot)
        if not self.fmt.system_prompt:  # the row's own instruction stands
            opening = [*system, *opening]
        return [*opening, *earlier[:-1], last]

    def _reference(self, fields: dict[str, Any]) -> str:
        """What ``max_solution_tokens`` limits."""
        if self.text_pairs:
            return fields["completion"]
        response = fields.get("response") if self.method == "sft" else None
        return response or "\n".join((fields.get("reasoning") or "", fields.get("solution") or "")).strip()

    def _over_limits(self, prompts: list[list[dict[str, str]] | str], references: list[str]) -> list[str | None]:
        reasons: list[str | None] = [None] * len(prompts)
        measured: tuple[tuple[str, list[Any], Callable[[list[Any]], list[int]]], ...] = (
            ("max_solution_tokens", references, self._token_counts),
            ("max_prompt_tokens", prompts, self._prompt_lengths),
        )
        for key, values, count in measured:
            limit = getattr(self.args, key)
            if limit is None:
                continue
            for start in range(0, len(values), _TOKENIZED_AT_ONCE):
                for index, length in enumerate(count(values[start : start + _TOKENIZED_AT_ONCE]), start):
                    if length > limit:
                        reasons[index] = f"{key.split('_')[1]} over {key} {limit}"
        return reasons

    def _prompt_lengths(self, prompts: list) -> list[int]:
        if self.text_pairs:
            return [len(ids) for ids in self.tokenizer(prompts)["input_ids"]]
        texts = self._texts(prompts)
        # The instruction before the questions is counted once: no token crosses a special one.
        common = os.path.commonprefix(texts)  # noqa: RUF071  character by character is what is wanted
        cut = max((common.rfind(token) for token in self.tokenizer.get_added_vocab()), default=-1)
        if cut > 0:
            start, whole, *rest = self._token_counts([common[:cut], texts[0], *(text[cut:] for text in texts)])
            if start + rest[0] == whole:
                return [start + length for length in rest]
        return self._token_counts(texts)

    def _texts(self, prompts: list[list[dict[str, str]]]) -> list[str]:
        """Render the prompts; once, with a mark as the question, if they differ in the question alone and that gives the same text."""
        *opening, last = prompts[0]
        if all(prompt[:-1] == opening and prompt[-1]["content"] == prompt[-1]["content"].strip() for prompt in prompts):
            samples = [[*opening, last | {"content": _MARK}], prompts[0], prompts[-1]]
            framed, *expected = self.tokenizer.apply_chat_template(samples, add_generation_prompt=True, tokenize=False)
            texts = [prompt[-1]["content"].join(framed.split(_MARK)) for prompt in prompts]
            if [texts[0], texts[-1]] == expected:
                return texts
        return self.tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=False)

    def _token_counts(self, texts: list[str]) -> list[int]:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return [len(ids) for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"]]
        # As a call of the tokenizer does, without lists of ids and offsets, in half the time.
        backend.no_truncation()
        backend.no_padding()
        return [len(encoding) for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]

    def _columns(self, prompt: list[dict[str, str]] | str, fields: dict[str, Any]) -> dict[str, Any]:
        if self.text_pairs:
            return fields
        if self.method == "distill":
            return {"prompt": prompt}
        if self.method in _NO_COLUMN:
            return {"prompt": prompt, **{key: value for key, value in fields.items() if key not in _NO_COLUMN[self.method]}}
        response = fields.get("response")
        target = _target(fields, self.fmt) if response is None else _response(response, fields.get("well_formed", True), self.fmt)
        task = {"task": fields["task"]} if "task" in fields else {}
        return {"prompt": prompt, "completion": [{"role": "assistant", "content": target}], **task}


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
    turn = _with_prefill(response, fmt)
    if well_formed and (turn is None or not fmt.parse(turn.removeprefix(fmt.prefill)).well_formed):
        raise SkipRow(f"response is not in format {fmt.name!r}")
    if turn is None:
        raise SkipRow(f"response does not start with the prefill {fmt.prefill!r}")
    return turn


def _with_prefill(response: str, fmt: ResponseFormat) -> str | None:
    """``response`` with the format's prefill in front; ``None`` if it starts otherwise."""
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
