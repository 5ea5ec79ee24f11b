"""Render a mapped row as the columns that a trainer takes.

Every message that a mapper returns stands in ``prompt`` or ``completion``. For GRPO, the response
of a row without a reference answer is left out, which is said once; ``_HIDDEN`` has the other keys
of a mapped row that no reward sees.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from r1_recipes.common.errors import RecipeError, located
from r1_recipes.data.mappers import MappedRow, SkipRow
from r1_recipes.data.messages import Message, say_once
from r1_recipes.prompts import ResponseFormat

# Keys of a mapped row that do not become columns: of any method, and of GRPO.
_HIDDEN = {"rejected", "messages", "well_formed", "calls"}
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
    usable = isinstance(mapped, dict) and not any(key in mapped for key in _TAKEN)
    if not usable or not ("turns" in mapped or isinstance(mapped.get("question"), str)):
        raise RecipeError(
            f"mapper: must return {{'question': …, 'solution': …}} and no {', '.join(_TAKEN)}, "
            f"or raise SkipRow('why') to drop the row, got {mapped!r:.80}"
        )
    if "turns" in mapped:
        columns = _conversation(mapped, how)
    else:
        *earlier, last = mapped.get("messages") or [{"role": "user", "content": mapped["question"]}]
        if how.args.prompt_template is not None and last["role"] == "user":
            last = {**last, "content": _filled(how.args.prompt_template, row, mapped)}
        columns = {"prompt": build_prompt(last, how.fmt, how.args.few_shot, earlier)}
        if how.method == "grpo":
            if mapped.get("response") and "solution" not in mapped:
                say_once("the answers of the rows are not used: grpo samples its own")
            columns |= {key: mapped[key] for key in mapped if key not in _HIDDEN_FROM_GRPO}
        else:
            columns |= _other_columns(mapped, how)
    if how.method != "sft" and any(len(message) > 2 for message in columns["prompt"]):
        raise SkipRow("a call of a tool before the question, which only sft can use")
    if how.turn_tokens:
        _check_texts(columns, how.turn_tokens)
    return columns


def _check_texts(columns: dict[str, Any], tokens: Sequence[str]) -> None:
    """Skip a row with a text that a chat template has been applied to already."""
    turns = chain(*(columns.get(key, ()) for key in ("prompt", "completion", "chosen", "rejected")))
    texts = "\n".join(message["content"] for message in turns)
    for token in tokens:
        if token in texts:
            raise SkipRow(
                f"a text holds {token!r}, which the chat template writes itself. Fix: the "
                "column without template; or, to pass prompts through as they are, "
                "chat_template: \"{{ messages[-1]['content'] }}\""
            )


def build_prompt(
    question: str | Message,
    fmt: ResponseFormat,
    few_shot: Sequence[Any] | None = None,
    earlier: Sequence[Message] = (),
) -> list[Message]:
    """Return the instruction, the worked examples, earlier messages and the question.

    A system message of the row stands before the instruction, because one says who answers, and
    the other how.
    """
    systems = [message["content"] for message in earlier if message["role"] == "system"]
    instruction = "\n\n".join(filter(None, [*systems, fmt.system_prompt]))
    messages: list[Message] = [{"role": "system", "content": instruction}] if instruction else []
    for number, example in enumerate(few_shot or (), start=1):
        with located(f"few_shot: entry {number}"):
            if not isinstance(example, dict) or set(example) != {"question", "reasoning", "answer"}:
                raise ValueError(f"must have question, reasoning and answer, got {example!r}")
            worked = fmt.render(str(example["reasoning"]), str(example["answer"]))
        messages.append({"role": "user", "content": str(example["question"])})
        messages.append({"role": "assistant", "content": worked})
    messages += [message for message in earlier if message["role"] != "system"]
    last = {"role": "user", "content": question} if isinstance(question, str) else question
    return [*messages, last]


def _other_columns(mapped: MappedRow, how: Rendering) -> dict[str, Any]:
    """Return the columns beside the prompt for a method other than GRPO."""
    if "image" in mapped:
        raise RecipeError(f"mapper: gives pictures, which {how.method} does not support. Fix: grpo")
    if how.method == "sft":
        return _completion(mapped, how)
    if how.method == "reward":
        if "rejected" not in mapped:
            raise SkipRow("no pair of a chosen and a rejected message")
        pair = {"chosen": mapped["response"], "rejected": mapped["rejected"]}
        return {key: [{"role": "assistant", "content": text}] for key, text in pair.items()}
    if how.method == "distill":
        return {}
    earlier = (mapped.get("messages") or [])[:-1]
    columns = {key: mapped[key] for key in mapped if key not in _HIDDEN}
    return columns | ({"earlier_messages": earlier} if earlier else {})


def _completion(mapped: MappedRow, how: Rendering) -> dict[str, Any]:
    """Return the SFT target of a row, and the tools that it may call."""
    if "rejected" in mapped:
        raise SkipRow("a preference pair. Fix: train on it with python -m r1_recipes.reward")
    completion: list[Message] = []
    for call in mapped.get("calls") or ():
        function = {"name": call["name"], "arguments": call["arguments"]}
        calls = [{"type": "function", "function": function}]
        completion.append({"role": "assistant", "content": "", "tool_calls": calls})
        completion.append({"role": "tool", "name": call["name"], "content": call["result"]})
    completion.append({"role": "assistant", "content": target(mapped, how.fmt)})
    return {"completion": completion, **({"tools": how.tools} if how.tools else {})}


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
    if not reasoning or not answer:
        raise SkipRow(f"no {'answer' if reasoning else 'reasoning'} to train on")
    try:
        return fmt.full_text(fmt.render_completion(reasoning, answer))
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


def _conversation(mapped: MappedRow, how: Rendering) -> dict[str, Any]:
    """Return a whole conversation, split where the last answer begins.

    A mapped row with ``well_formed`` gets the recipe's instruction, if the recipe has one.
    """
    if how.method != "sft":
        raise SkipRow("a whole conversation, which only sft can use")
    turns: list[Message] = mapped["turns"]
    end = max((n for n, turn in enumerate(turns) if turn["role"] == "assistant"), default=0)
    if any("tool_calls" in turn for turn in turns):
        _check_calls(how)
    if end < len(turns) - 1:
        left = "left out" if "well_formed" in mapped else "trained on, without assistant_only_loss"
        say_once(f"messages after the last one of the assistant are {left}")
    if "well_formed" in mapped:
        turns = build_prompt(turns[end], how.fmt, earlier=turns[:end])
        end = len(turns) - 1
    if "tool_calls" not in turns[end] and turns[end]["role"] == "assistant":
        answer = {"response": turns[end]["content"], "well_formed": mapped.get("well_formed")}
        text = target(answer, how.fmt)
        turns = [*turns[:end], {**turns[end], "content": text}, *turns[end + 1 :]]
    start = end
    while start > 1 and (turns[start - 1]["role"] == "tool" or "tool_calls" in turns[start - 1]):
        start -= 1
    if start < 1:
        raise SkipRow("no assistant message after another message")
    return {"prompt": turns[:start], "completion": turns[start:]}


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
        value = "" if value is None else value
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return _SLOT.sub(written, template)
