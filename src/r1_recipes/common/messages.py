"""Texts of chats, in the shapes that TRL and data sets use, and scripts written without spaces."""

import functools
import logging
import re
from collections.abc import Sequence
from typing import Any

say_once = functools.cache(logging.getLogger(__name__).warning)  # each text only once

# A line that looks like the heading of a message; transcript() indents it.
_HEADING = re.compile(r"^(?=\[(?:system|user|assistant|call|tool)\b)", re.MULTILINE)
# Parts of a character class for the module ``regex``, for use inside ``[…]``.
KANA = r"\p{Hiragana}\p{Katakana}ーｰ・"  # Unicode assigns these marks to no script
UNSPACED = rf"\p{{Han}}{KANA}\p{{Thai}}\p{{Lao}}\p{{Myanmar}}\p{{Khmer}}"


def completion_texts(completions: Sequence[Any]) -> list[str]:
    """Return the text of each completion, which is a string or a list of TRL's messages.

    Of messages, only a last message of the assistant counts.
    """
    return [
        completion
        if isinstance(completion, str)
        else "".join(message_text(last) for last in completion[-1:] if last["role"] == "assistant")
        for completion in completions
    ]


def message_text(message: dict[str, Any]) -> str:
    """Return the text of a message. Images and other parts without text are left out."""
    content = message.get("content")
    if isinstance(content, list):  # multimodal content blocks
        return "".join(block.get("text") or "" for block in content)
    return content or ""


def transcript(messages: Sequence[dict[str, Any]]) -> str:
    """Return messages and tool calls as one text for people to read.

    A line that looks like a heading is indented by a space.
    """
    blocks = []
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        text = message_text(message).strip()
        if text or not calls:
            title = f"{message['role']} {message.get('name') or ''}".strip()
            blocks.append(f"[{title}]\n{_HEADING.sub(' ', text)}")
        for call in calls:
            given = call.get("arguments") or {}
            lines = (
                [f"{key}={value}" for key, value in given.items()]
                if isinstance(given, dict)
                else [given]
            )
            blocks.append("\n".join([f"[call {call['name']}]", *map(str, lines)]))
    return without_surrogates("\n\n".join(blocks))


def last_user_text(prompt: Any) -> str:
    """Return the text of a prompt's last user message.

    A prompt that is a string comes back unchanged. Without a user message, return ``""``.
    """
    if isinstance(prompt, str):
        return prompt
    asked = [message for message in prompt or () if message.get("role") == "user"]
    return message_text(asked[-1]) if asked else ""


def conversation_text(value: Any, roles: bool = False) -> str:
    """Return the text of a string or a conversation, or ``""`` for anything else.

    The text of a message follows its role. That of the assistant's stands alone, unless ``roles``.
    """
    if isinstance(value, list):
        return "\n\n".join(conversation_text(part, roles) for part in value)
    if isinstance(value, dict):
        role, text = value.get("role"), conversation_text(value.get("content") or value.get("text"))
        return f"[{role}]\n{text}" if role and (roles or role != "assistant") else text
    return value if isinstance(value, str) else ""


def clip(text: str, limit: int) -> str:
    """Return a text without its middle part if it has more than ``limit`` characters."""
    half, cut = limit // 2, len(text) - limit
    return text if cut <= 0 else f"{text[:half]}\n[… {cut:,} …]\n{text[-half:]}"


def without_surrogates(text: str) -> str:
    """Replace unpaired surrogates, which UTF-8 cannot encode, with U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
