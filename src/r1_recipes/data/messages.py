"""Read the messages of a row in the shapes that data sets have. Every mapper reads them here.

OpenAI's ``role`` and ``content`` with what models of 2026 add, ShareGPT's ``from`` and ``value``,
and both as JSON text or as lists side by side. What has no place in a prompt is named once.
"""

import ast
import functools
import json
import logging
import re
from typing import Any

logger = logging.getLogger(__name__)

Message = dict[str, Any]  # role, content, and what a call of a tool adds

_ROLES = {role: role for role in ("system", "user", "assistant", "tool")} | {
    "developer": "system",  # OpenAI's name since o1
    "human": "user",
    **dict.fromkeys(("gpt", "bot", "model", "chatgpt"), "assistant"),
    # LLaMA-Factory and ms-swift write a call of a tool as a message of its own, whose text is JSON.
    **dict.fromkeys(("function_call", "tool_call"), "assistant"),
    **dict.fromkeys(("function", "observation", "tool_response", "ipython"), "tool"),
}
_REASONING = ("reasoning_content", "reasoning", "thinking")
_READ = {"role", "from", "content", "value", "tool_calls", "function_call", *_REASONING}
_AS_TEXT = re.compile(
    r"""\s*(?:\[\s*)?\{\s*["'](?:role|from)["']\s*:|\s*\[\s*\{\s*["'](?:content|value)["']\s*:"""
)
# Sky-T1, OpenThoughts and Bespoke-Stratos
_THOUGHT = re.compile(
    r"\s*<\|begin_of_thought\|>(.*?)<\|end_of_thought\|>\s*"
    r"<\|begin_of_solution\|>(.*?)(?:<\|end_of_solution\|>)?\s*",
    re.DOTALL,
)


class SkipRow(Exception):
    """Raise this for a row that cannot be used; the text says why, and is counted."""


@functools.cache
def say_once(text: str) -> None:
    """Log a warning, but each text only once."""
    logger.warning(text)


def read_messages(row: dict[str, Any], column: str, speaker: str = "") -> list[Message]:
    """Return the messages of a cell as dicts with role and content, and maybe calls of tools.

    Args:
        row: The row.
        column: Its column with messages: a list as it stands or as JSON text, a single one, or
            lists side by side.
        speaker: Whose message any other text is.

    Raises:
        SkipRow: There is no message, or one has a part that is not text.
    """
    value = row.get(column)
    if isinstance(value, str) and _AS_TEXT.match(value):
        value = _parsed(value)
    if not value or not str(value).strip():
        raise SkipRow(f"column {column!r} is empty")
    if isinstance(value, str) and speaker:
        return [{"role": speaker, "content": value}]
    if isinstance(value, dict) and isinstance(value.get("role", value.get("from")), list):
        # What datasets makes of a "sequence" of messages
        value = [dict(zip(value, turn, strict=True)) for turn in zip(*value.values(), strict=True)]
    value = value if isinstance(value, list) else [value]
    if not all(isinstance(message, dict) for message in value):
        raise SkipRow(f"column {column!r} holds no messages, but {value[0]!s:.60}")
    return list(map(_read_message, value))


def _parsed(text: str) -> Any:
    """Return what a text holds: JSON, or what Python's ``str()`` writes, as in many CSV files."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise SkipRow(f"a text that is neither JSON nor Python: {text:.60}") from None


def _read_message(message: dict[str, Any]) -> Message:
    name = str(message.get("role") or message.get("from")).strip().lower()
    if name not in _ROLES:
        raise SkipRow(f"the role of a message must be one of {', '.join(_ROLES)}, got {name!r}")
    content = message.get("content")
    text, thoughts = _read_content(message.get("value") if content is None else content)
    calls = message.get("tool_calls") or message.get("function_call")
    if name in ("function_call", "tool_call"):
        text, calls = "", text
    thoughts += [str(message[key]) for key in _REASONING if str(message.get(key) or "").strip()]
    if thoughts and thoughts[0].strip() and "</think>" not in text:  # as models write it
        text = f"<think>\n{thoughts[0].strip()}\n</think>\n\n{text}".strip()
    read: Message = {"role": _ROLES[name], "content": text}
    if calls:
        read["tool_calls"] = _read_calls(calls)
    if read["role"] == "tool":
        read |= {key: message[key] for key in ("name", "tool_call_id") if message.get(key)}
    for key in message.keys() - _READ - read.keys():
        if message[key] not in (None, "", [], {}):
            say_once(f"messages have {key!r}, which no prompt and no target holds")
    return read


def _read_content(content: Any) -> tuple[str, list[str]]:
    """Return the text of a message's content, and the reasoning among its parts."""
    texts, thoughts = [], []
    for part in content if isinstance(content, list) else [content or ""]:
        part = part if isinstance(part, dict) else {"text": part}
        if thought := part.get("thinking") or part.get("reasoning"):
            thoughts.append(str(thought))
        elif isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") or type(part["text"]).__name__
            raise SkipRow(f"the content of a message is not text, but {kind}")
    return "".join(texts), thoughts


def _read_calls(calls: Any) -> list[dict[str, Any]]:
    """Return calls of tools with their arguments as mappings, as chat templates read them.

    OpenAI has the arguments as JSON text, and once had a single ``function_call``.
    """
    calls, read = _parsed(calls) if isinstance(calls, str) else calls, []
    for call in calls if isinstance(calls, list) else [calls]:
        function = dict(call.get("function") or call)
        if isinstance(function.get("arguments"), str):
            function["arguments"] = _parsed(function["arguments"])
        kept = {"id": call["id"]} if call.get("id") else {}
        read.append({"type": "function", **kept, "function": function})
    return read


def with_think_tags(text: str) -> str:
    """Return a text with the tags of Sky-T1 and OpenThoughts written as ``<think>``."""
    thought = _THOUGHT.fullmatch(text)
    return f"<think>\n{thought[1].strip()}\n</think>\n{thought[2].strip()}" if thought else text


def with_earlier(row: dict[str, Any], messages: list[Message]) -> list[Message]:
    """Return messages after the row's own system message and history, if it has such columns.

    ``history`` holds pairs of question and answer, as in LLaMA-Factory and ms-swift.
    """
    if messages[0]["role"] == "system":
        return messages
    systems = [row.get(column) for column in ("system", "system_prompt")]
    texts = [text for text in systems if isinstance(text, str) and text.strip()]
    earlier = [{"role": "system", "content": text} for text in texts[:1]]
    for question, answer in row.get("history") or ():
        earlier += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return earlier + messages


def split_answer(messages: list[Message]) -> tuple[list[Message], str]:
    """Return the messages up to the last question, and the answer of the assistant to it."""
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise SkipRow("no assistant message")
    end = len(roles) - 1 - roles[::-1].index("assistant")
    if end < len(roles) - 1:
        say_once("messages after the last one of the assistant are left out")
    if "user" not in roles[:end]:
        raise SkipRow("no user message before the answer")
    if not messages[end]["content"].strip():
        raise SkipRow("the last message of the assistant is empty")
    return messages[:end], messages[end]["content"]


def last_question(messages: list[Message]) -> str:
    """Return the text of the last message of the user, or ``""``."""
    return ([""] + [turn["content"] for turn in messages if turn["role"] == "user"])[-1]


def as_prompt(row: dict[str, Any], messages: list[Message]) -> dict[str, Any]:
    """Return what messages ask, after the row's own system message and history."""
    if messages[-1]["role"] == "assistant":
        say_once("the answer at the end of a prompt is left out")
        messages = messages[:-1]
    question = last_question(messages)
    if not question.strip():
        raise SkipRow("the prompt has no message of the user")
    messages = with_earlier(row, messages)
    return {"question": question, "messages": messages} if messages[1:] else {"question": question}
