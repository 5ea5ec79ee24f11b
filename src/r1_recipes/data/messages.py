"""Read the messages of a row in the shapes that data sets have. Every mapper reads them here.

OpenAI's ``role`` and ``content`` with what models of 2026 add, ShareGPT's ``from`` and ``value``,
and both as JSON text or as lists side by side. What has no place in a prompt is named once.
"""

import ast
import contextlib
import json
import re
from typing import Any

from r1_recipes.common.messages import say_once

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
    r"""\s*\{\s*["'](?:role|from)["']\s*:|"""
    r"""\s*\[\s*\{(?:[^{}\[\]]*?["'](?:role|from)|\s*["'](?:content|value))["']\s*:"""
)


class SkipRow(Exception):
    """Raise this for a row that cannot be used; the text says why, and is counted."""


def read_messages(row: dict[str, Any], column: str, speaker: str = "") -> list[Message]:
    """Return the messages of a cell as dicts with role and content, and maybe calls of tools.

    Args:
        row: The row.
        column: Its column with messages: a list as it stands or as JSON text, a single one, or
            lists side by side.
        speaker: Whose message any other text or number is.

    Raises:
        SkipRow: There is no message, or one has a part that is not text.
    """
    value = row.get(column)
    if isinstance(value, str) and _AS_TEXT.match(value):
        value = parsed(value)
    if value in (None, [], {}) or not str(value).strip():
        raise SkipRow(f"column {column!r} is empty")
    if speaker and not isinstance(value, list | dict):
        return [{"role": speaker, "content": str(value)}]
    if isinstance(value, dict) and isinstance(value.get("role", value.get("from")), list):
        # What datasets makes of a "sequence" of messages
        value = [dict(zip(value, turn, strict=True)) for turn in zip(*value.values(), strict=True)]
    value = value if isinstance(value, list) else [value]
    if not all(isinstance(message, dict) for message in value):
        raise SkipRow(f"column {column!r} holds no messages, but {value[0]!s:.60}")
    read = list(map(_read_message, value))
    if not all(message["content"] for message in read if message["role"] == "user"):
        raise SkipRow(f"column {column!r} has an empty message of the user")
    return _joined(read)


def _joined(messages: list[Message]) -> list[Message]:
    """Return messages with parallel calls of tools in one turn. ms-swift writes one message each,
    and a model would learn to end its turn after the first.
    """
    joined: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls")
        if calls and not message["content"] and joined and "tool_calls" in joined[-1]:
            joined[-1]["tool_calls"] += calls
        else:
            joined.append(message)
    return joined


def parsed(text: str) -> Any:
    """Return what JSON or Python text holds, or raise SkipRow."""
    with contextlib.suppress(ValueError):
        return json.loads(text)
    try:  # what Python's str() writes, as in many CSV files
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
    thoughts += [_read_content(message[key])[0] for key in _REASONING if message.get(key)]
    # Some servers send the same reasoning by two names.
    thought = "\n\n".join(filter(None, dict.fromkeys(map(str.strip, thoughts))))
    if thought and "</think>" not in text:  # as models write it
        text = f"<think>\n{thought}\n</think>\n\n{text}".strip()
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
    texts, thoughts = [], []  # models of 2026 write their reasoning as parts, too
    for part in content if isinstance(content, list) else [content or ""]:
        part = part if isinstance(part, dict) else {"text": part}
        thought = part.get("thinking") or part.get("reasoning")
        if thought or str(part.get("type")).startswith(("thinking", "reasoning")):
            thought = thought or part.get("text") or part.get("summary")
            thoughts.append(_read_content(thought)[0])
        elif isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise SkipRow(f"the content of a message is not text, but {part!r:.60}")
    return "".join(texts), thoughts


def _read_calls(calls: Any) -> list[dict[str, Any]]:
    # Chat templates read the arguments as mappings. OpenAI has them as JSON text, and once had a
    # single function_call.
    calls, read = parsed(calls) if isinstance(calls, str) else calls, []
    for call in calls if isinstance(calls, list) else [calls]:
        function = dict(call.get("function") or call)
        given = function.get("arguments") or {}  # a call without any
        function["arguments"] = parsed(given) if isinstance(given, str) else given
        kept = {"id": call["id"]} if call.get("id") else {}
        read.append({"type": "function", **kept, "function": function})
    return read


def with_earlier(row: dict[str, Any], messages: list[Message]) -> list[Message]:
    """Return messages after the row's own system message and history, if it has such columns.

    ``history`` holds pairs of question and answer, as in LLaMA-Factory and ms-swift, or messages.
    """
    systems = [row.get(column) for column in ("system", "system_prompt")]
    texts = [text for text, _ in map(_read_content, systems) if text.strip()]
    earlier = [{"role": "system", "content": text} for text in dict.fromkeys(texts)]
    history = row.get("history") or ()
    history = parsed(history.strip() or "[]") or () if isinstance(history, str) else history
    for turn in history:
        if isinstance(turn, dict):
            earlier.append(_read_message(turn))
        elif isinstance(turn, list | tuple) and len(turn) == 2:
            pair = zip(("user", "assistant"), turn, strict=True)
            earlier += [{"role": role, "content": str(text or "")} for role, text in pair]
        else:
            raise SkipRow(f"column 'history' holds neither pairs nor messages, but {turn!r:.60}")
    if not messages or messages[0]["role"] != "system":
        return earlier + messages
    if earlier not in ([], messages[:1]):
        say_once("columns 'system' and 'history' are left out beside a system message")
    return messages


def exchange(messages: list[Message]) -> dict[str, Any]:
    """Return a conversation as a mapped row: the last answer of the assistant is the response."""
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise SkipRow("no assistant message. Fix, for grpo: prompt_column: messages")
    end = len(roles) - 1 - roles[::-1].index("assistant")
    if end < len(roles) - 1:
        say_once("messages after the last one of the assistant are left out")
    answer = messages[end]
    mapped = {**_asked(messages[:end]), "response": answer["content"]}
    return mapped | ({"tool_calls": answer["tool_calls"]} if "tool_calls" in answer else {})


def as_prompt(row: dict[str, Any], messages: list[Message]) -> dict[str, Any]:
    """Return what messages ask, after the row's own system message and history."""
    if messages[-1]["role"] == "assistant":
        say_once("the answer at the end of a prompt is left out")
        messages = messages[:-1]
    return _asked(with_earlier(row, messages))


def _asked(messages: list[Message]) -> dict[str, Any]:
    questions = [turn["content"] for turn in messages if turn["role"] == "user"]
    if not questions or not questions[-1].strip():
        raise SkipRow("no message of the user")
    return {"question": questions[-1], "messages": messages}
