"""Render a mapped row as the columns that a trainer takes.

Every message that a mapper returns stands in ``prompt`` or ``completion``. For GRPO, the response
of a row without a reference answer is left out, which is said once; ``_HIDDEN`` has the other keys
of a mapped row that no reward sees.
"""

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from jinja2 import TemplateError

from r1_recipes.common.errors import RecipeError, require
from r1_recipes.common.messages import say_once
from r1_recipes.data.mappers import MappedRow, SkipRow
from r1_recipes.data.mappers import text as cell
from r1_recipes.data.messages import Message
from r1_recipes.prompts import ResponseFormat

# Keys of a mapped row that do not become columns: of generate, and of GRPO.
_HIDDEN = {"rejected", "messages", "well_formed", "tool_calls"}
# Names of TRL's own columns, which no mapper may return.
_TAKEN = ("prompt", "prompts", "completion", "completions", "completion_ids", "log_extra")
_HIDDEN_FROM_GRPO = _HIDDEN | {"question", "reasoning", "answer", "response"}
_SLOT = re.compile(r"\{([^{}\n]+)\}")


@dataclass(frozen=True)
class Rendering:
    """What all rows of a dataset share: the recipe's keys, the response format and the method.

    Attributes:
        args: The recipe's keys.
        fmt: The response format, with the instruction of this dataset.
        method: The command.
        tokenizer: The one whose chat template writes the rows.
        turn_tokens: The tokens that no text may hold.
        tools: The JSON schemas of the recipe's tools.
    """

    args: Any
    fmt: ResponseFormat
    method: str
    tokenizer: Any = field(default=None, repr=False)
    turn_tokens: Sequence[str] = ()
    tools: str | None = None


def turn_tokens(tokenizer: Any) -> list[str]:
    """Return the special tokens that a chat template writes around a turn.

    A template that only writes the last message's text has none, and passes prompts through.
    """
    asked = [{"role": "user", "content": "?"}]
    answered = [*asked, {"role": "assistant", "content": "forty-two"}]
    before, whole = (
        str(tokenizer.apply_chat_template(messages, tokenize=False))
        for messages in (asked, answered)
    )
    written = before + whole.rpartition("forty-two")[2]
    special = {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}
    return sorted(token for token in special if token.strip() and token in written)


def trainer_columns(row: dict[str, Any], mapped: MappedRow, how: Rendering) -> dict[str, Any]:
    """Return ``prompt`` and what else the trainer of a method takes, or raise :class:`SkipRow`."""
    usable = isinstance(mapped, dict) and mapped.keys().isdisjoint(_TAKEN)
    if not usable or not ("turns" in mapped or isinstance(mapped.get("question"), str)):
        raise RecipeError(
            f"mapper: must return {{'question': …, 'solution': …}} and no {', '.join(_TAKEN)}, "
            f"or raise SkipRow('why') to drop the row, got {mapped!r:.80}"
        )
    if "turns" in mapped:
        columns = _target_columns([*mapped["turns"]], mapped, how)
    else:
        asked = {"role": "user", "content": mapped["question"]}
        messages = list(mapped.get("messages") or [asked])
        if how.args.prompt_template is not None and messages[-1]["role"] == "user":
            filled = _filled(how.args.prompt_template, row, mapped)
            messages[-1] = {**messages[-1], "content": filled}
        prompt = build_prompt(messages, how.fmt, how.args.few_shot)
        columns = {"prompt": prompt}
        if how.method == "grpo":
            if mapped.get("response") and "solution" not in mapped:
                say_once("the answers of the rows are not used: grpo samples its own")
            columns |= {key: mapped[key] for key in mapped if key not in _HIDDEN_FROM_GRPO}
        else:
            columns |= _other_columns(prompt, mapped, how)
    calls = "tool_calls" in mapped or any(
        turn.keys() - {"role", "content"} for turn in columns["prompt"]
    )
    if calls and how.method != "sft":
        raise SkipRow("a call of a tool, which only sft can use")
    if how.tokenizer is not None:
        _check_texts(columns, how)
    return columns


@functools.cache
def _check_roles(tokenizer: Any, roles: tuple[str, ...]) -> None:
    """Skip turns that a chat template refuses, as Gemma's refuses two questions in a row."""
    try:
        tokenizer.apply_chat_template(
            [{"role": role, "content": "?"} for role in roles], tokenize=False
        )
    except TemplateError as error:
        raise SkipRow(f"the chat template cannot write it: {error}") from None


def _check_texts(columns: dict[str, Any], how: Rendering) -> None:
    roles = tuple(turn["role"] for turn in columns["prompt"] + columns.get("completion", []))
    if "tool" not in roles:  # which belongs to a call
        _check_roles(how.tokenizer, roles)
    turns = chain(*(columns.get(key, ()) for key in ("prompt", "completion", "chosen", "rejected")))
    texts = "\n".join(message["content"] for message in turns)
    for token in how.turn_tokens:
        if token in texts:
            raise SkipRow(
                f"a text holds {token!r}, which the chat template writes itself. Fix: the "
                "column without template; or, to pass prompts through as they are, "
                "chat_template: \"{{ messages[-1]['content'] }}\""
            )


def build_prompt(
    messages: Sequence[Message], fmt: ResponseFormat, few_shot: Sequence[Any] | None = None
) -> list[Message]:
    """Return the instruction, the worked examples and the messages, the question last.

    A system message of the row stands before the instruction, because one says who answers, and
    the other how.
    """
    systems = [message["content"] for message in messages if message["role"] == "system"]
    instruction = "\n\n".join(filter(None, [*systems, fmt.system_prompt]))
    prompt: list[Message] = [{"role": "system", "content": instruction}] if instruction else []
    for number, example in enumerate(few_shot or (), start=1):
        where, keys = f"few_shot: entry {number}", {"question", "reasoning", "answer"}
        fits = isinstance(example, dict) and {*example} == keys
        require(fits, where, "a mapping of question, reasoning and answer", example)
        worked = fmt.render(str(example["reasoning"]), str(example["answer"]))
        prompt.append({"role": "user", "content": str(example["question"])})
        prompt.append({"role": "assistant", "content": worked})
    return prompt + [message for message in messages if message["role"] != "system"]


def _other_columns(prompt: list[Message], mapped: MappedRow, how: Rendering) -> dict[str, Any]:
    if "image" in mapped:
        raise RecipeError(f"mapper: gives pictures, which {how.method} does not support. Fix: grpo")
    if how.method == "sft":
        if "rejected" in mapped:
            raise SkipRow("a preference pair. Fix: train on it with python -m r1_recipes.reward")
        calls = {"tool_calls": mapped["tool_calls"]} if "tool_calls" in mapped else {}
        answer = {"role": "assistant", "content": mapped.get("response", ""), **calls}
        return _target_columns([*prompt, answer], mapped, how)
    if how.method == "reward":
        if "rejected" not in mapped:
            raise SkipRow("no pair of a chosen and a rejected message")
        pair = {"chosen": mapped["response"], "rejected": mapped["rejected"]}
        return {key: [{"role": "assistant", "content": text}] for key, text in pair.items()}
    if how.method == "distill":
        return {}
    earlier = (mapped.get("messages") or [])[:-1]
    columns = {key: mapped[key] for key in mapped if key not in _HIDDEN}
    # A text, and one in every row: datasets types a column by its first thousand rows.
    return columns | {"earlier_messages": json.dumps(earlier) if earlier else ""}


def target(mapped: MappedRow, fmt: ResponseFormat) -> str:
    """Return the assistant's message to train on: the source's, or one written in the format."""
    response = mapped.get("response")
    if response is not None:
        text = _with_prefill(response, fmt)
        if not response.strip():
            raise SkipRow("no response to train on")
        if mapped.get("well_formed", True) and not fmt.read(text).well_formed:
            raise SkipRow(f"response is not in format {fmt.name!r}")
        return text
    reasoning, answer = mapped.get("reasoning"), mapped.get("answer") or mapped.get("solution")
    if not reasoning or answer in (None, ""):  # 0 is an answer
        raise SkipRow(f"no {'answer' if reasoning else 'reasoning'} to train on")
    if fmt.read(reasoning).well_formed:  # a worked solution of MATH, for boxed
        return _with_prefill(str(reasoning), fmt)
    try:
        return fmt.full_text(fmt.render_completion(reasoning, str(answer)))
    except ValueError:
        reason = f"reasoning or answer cannot be written in format {fmt.name!r}"
        if fmt.reasoning_tags and fmt.reasoning_tags[1] in fmt.prefill:
            reason = (
                "the chat template starts an answer with an empty reasoning block, but the row has "
                "reasoning. Fix: chat_template_kwargs: {enable_thinking: true}"
            )
        raise SkipRow(reason) from None


def _with_prefill(response: str, fmt: ResponseFormat) -> str:
    """Return a response with the prefill in front.

    A chat template that opens the reasoning may write it before any answer, or only before those
    that bring their own. So an answer without reasoning closes it, as Qwen's templates do.
    """
    opening, closing = fmt.reasoning_tags or ("\0", "\0")
    if response.startswith(fmt.prefill):
        return response
    if not fmt.prefill.rstrip().endswith(opening):
        return response if fmt.prefill.startswith(opening) else fmt.prefill + response
    # From a server whose template opens the reasoning, a response starts after the tag. Other
    # data starts with the tag.
    rest = response.lstrip().removeprefix(opening).lstrip()
    if closing in rest:
        return fmt.prefill + rest
    say_once(
        f"rows have answers without reasoning, which the prompt opens with {opening}: the model "
        "learns to skip it. chat_template_kwargs: {enable_thinking: false} leaves it out, where "
        "the chat template has this variable"
    )
    return f"{fmt.prefill.rstrip()}\n\n{closing}\n\n{rest}"


def _target_columns(turns: list[Message], mapped: MappedRow, how: Rendering) -> dict[str, Any]:
    """Return SFT's prompt and completion: the last answer, with the calls of tools before it."""
    if how.method != "sft":
        raise SkipRow("a whole conversation, which only sft can use")
    end = max((n for n, turn in enumerate(turns) if turn["role"] == "assistant"), default=0)
    if not end:
        raise SkipRow("no assistant message after another message")
    if end < len(turns) - 1:
        say_once(
            "messages after the last one of the assistant are trained on, without "
            "assistant_only_loss"
        )
    if any("tool_calls" in turn for turn in turns):
        _check_calls(how)
    if "tool_calls" not in turns[end]:
        if "turns" in mapped:
            mapped = {"response": turns[end]["content"], "well_formed": False}
        turns[end] = {**turns[end], "content": target(mapped, how.fmt)}
    start = end
    # What stands before a tool's result calls it, if only in its text.
    while start > 1 and (
        "tool" in (turns[start - 1]["role"], turns[start]["role"])
        or "tool_calls" in turns[start - 1]
    ):
        start -= 1
    columns = {"prompt": turns[:start], "completion": turns[start:]}
    return columns | ({"tools": how.tools} if how.tools else {})


def _check_calls(how: Rendering) -> None:
    """Skip a row with calls of tools if the chat template cannot write them."""
    from trl.chat_template_utils import supports_tool_calling  # heavy

    if how.tokenizer is not None and not supports_tool_calling(how.tokenizer):
        raise SkipRow(
            "a tool call, which the chat template cannot write. Fix: a model whose template can, "
            "or chat_template: recipes/templates/short_tools.jinja"
        )
    say_once("the loss is also on the results of tools, unless assistant_only_loss is true")


def _filled(template: str, row: dict[str, Any], mapped: MappedRow) -> str:
    """Replace each ``{name}`` that is a key of the row. Other braces are text, as in LaTeX."""

    def written(slot: re.Match[str]) -> str:
        value = mapped[slot[1]] if slot[1] in mapped else row.get(slot[1], slot[0])
        if value == slot[0] and re.fullmatch(r"[^\W\d_]\w\w+|[^\0-\x7f]+", slot[1]):
            say_once(f"prompt_template: {slot[0]} is no column, so every prompt has it as it is")
        elif slot[1] in ("solution", "answer") and value != slot[0]:  # as in \boxed{answer}
            say_once(f"prompt_template: {slot[0]} writes the reference answer into every prompt")
        if isinstance(value, list | dict):
            return json.dumps(value, ensure_ascii=False)
        return value if isinstance(value, str) else cell({slot[1]: value}, slot[1], needed=False)

    return _SLOT.sub(written, template)
