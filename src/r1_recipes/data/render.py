"""Mapped rows -> the trainers' columns: prompts, targets, and the limits on their length."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.data.mappers import SkipRow
from r1_recipes.prompts.formats import ResponseFormat

Messages = list[dict[str, str]]

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
    """Writes the rows of one dataset; ``fmt`` has the dataset's own instruction."""

    args: Any
    fmt: ResponseFormat
    method: str
    tokenizer: Any
    few_shot: list[dict[str, str]] | None = None

    def __call__(self, row: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        """Return the trainer's columns of one row, or raise :class:`SkipRow`; ``fields`` are what the mapper made of it."""
        prompt = self._prompt(row, fields)
        if self.method == "distill":
            return {"prompt": prompt}
        if self.method in _NO_COLUMN:
            return {"prompt": prompt, **{key: value for key, value in fields.items() if key not in _NO_COLUMN[self.method]}}
        response = fields.get("response")
        target = _target(fields, self.fmt) if response is None else _response(response, fields.get("well_formed", True), self.fmt)
        task = {"task": fields["task"]} if "task" in fields else {}
        return {"prompt": prompt, "completion": [{"role": "assistant", "content": target}], **task}

    def _prompt(self, row: dict[str, Any], fields: dict[str, Any]) -> Messages:
        question, history = fields["question"], fields.get("messages") or []
        system = [turn for turn in history if turn["role"] == "system"]
        earlier = [turn for turn in history if turn["role"] != "system"]
        template = getattr(self.args, "prompt_template", None) if self.method == "generate" else None
        if template is not None:
            question = _filled(template, {**row, **fields})
        elif earlier:
            question = earlier[-1]["content"]
        *opening, last = build_prompt(question, self.fmt, self.few_shot)
        if not self.fmt.system_prompt:  # the row's own instruction stands
            opening = [*system, *opening]
        return [*opening, *earlier[:-1], last]

    def over_limits(self, results: list[dict[str, Any]]) -> dict[int, str]:
        """Return the limit on its length that a rendered row is over, by the row's index."""
        over, solutions, prompts = {}, self.args.max_solution_tokens, self.args.max_prompt_tokens
        if results and solutions is not None:
            texts = [result["completion"][0]["content"] if "completion" in result else result.get("solution") or "" for result in results]
            over = dict.fromkeys(self._over(texts, solutions), f"solution over max_solution_tokens {solutions}")
        if results and prompts is not None:
            found = self._prompts_over([result["prompt"] for result in results], prompts)
            over |= dict.fromkeys(found, f"prompt over max_prompt_tokens {prompts}")
        return over

    def _prompts_over(self, prompts: list[Messages], limit: int) -> list[int]:
        render = partial(self.tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False)
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
    turn = fmt.with_prefill(response)
    if turn is None:
        raise SkipRow(f"response does not start with the prefill {fmt.prefill!r}")
    if well_formed and not fmt.parse(turn.removeprefix(fmt.prefill)).well_formed:
        raise SkipRow(f"response is not in format {fmt.name!r}")
    return turn
