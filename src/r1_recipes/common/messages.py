"""The text of chats, as TRL and data sets hand them over, and scripts that are written without
spaces.
"""

import re
from collections.abc import Sequence
from typing import Any

# Characters of a text that a page shows.
MAX_TEXT = 100_000
# A line that looks like the heading of a turn; the report page splits a transcript there.
_HEADING = re.compile(r"^(?=\[(?:system|user|assistant|call|tool)\b)", re.MULTILINE)
# What needs more than ``\p{Name}`` of the module ``regex``; each stands inside ``[…]``.
KANA = r"\p{Hiragana}\p{Katakana}ーｰ・"  # Unicode counts these marks to no script
UNSPACED = rf"\p{{Han}}{KANA}\p{{Thai}}\p{{Lao}}\p{{Myanmar}}\p{{Khmer}}"


def completion_texts(completions: Sequence[Any]) -> list[str]:
    """Return the text of each completion, a string or TRL's messages: the last one's words, if they
    are the assistant's and no tool's.
    """
    return [
        text
        if isinstance(text, str)
        else message_text(text[-1])
        if text and text[-1]["role"] == "assistant"
        else ""
        for text in completions
    ]


def message_text(message: dict[str, Any]) -> str:
    """Return the words of one message; what is not text in it (an image) is left out."""
    content = message.get("content")
    if isinstance(content, list):  # multimodal content blocks
        return "".join(block.get("text") or "" for block in content)
    return content or ""


def transcript(messages: Sequence[dict[str, Any]]) -> str:
    """Return turns as a person reads them, and each call of a tool as one; a line that looks like a
    heading is moved in by a space.
    """
    parts = []
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        said = message_text(message).strip()
        if said or not calls:
            parts.append((f"{message['role']} {message.get('name') or ''}", said))
        parts += [(f"call {call['name']}", _arguments(call.get("arguments"))) for call in calls]
    turns = [f"[{' '.join(speaker.split())}]\n{_HEADING.sub(' ', text)}" for speaker, text in parts]
    return without_surrogates("\n\n".join(turns))


def _arguments(given: Any) -> str:
    if not isinstance(given, dict):
        return str(given or "")
    texts = {
        name: f"\n{value}" if "\n" in str(value) else repr(value) for name, value in given.items()
    }
    return "\n".join(f"{name}={text}" for name, text in texts.items())


def last_user_text(prompt: Any) -> str:
    """Return the words of a prompt's last user message, the prompt itself if it is text,
    or ``""``.
    """
    if isinstance(prompt, str):
        return prompt
    return next(
        (
            message_text(message)
            for message in reversed(prompt or ())
            if message.get("role") == "user"
        ),
        "",
    )


def words(value: Any, roles: bool = False) -> str:
    """Return a string, or the words of a conversation (with ``roles`` each message under its
    speaker); of anything else ``""``.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        content, speaker = value.get("content"), value.get("role")
        said = words(value.get("text") if content is None else content)
        return f"[{speaker}]\n{said}" if speaker and (roles or speaker != "assistant") else said
    if isinstance(value, list):
        return "\n\n".join(words(part, roles) for part in value)
    return ""


def clip(text: str, limit: int = MAX_TEXT) -> str:
    """Return the text, or its two ends if it has more than ``limit`` characters and what is left
    out is longer than what says so.
    """
    half = limit // 2
    left_out = len(text) - 2 * half
    told = f"\n[… {left_out:,} …]\n"
    if len(text) <= limit or left_out <= len(told):
        return text
    return f"{text[:half]}{told}{text[-half:]}"


def without_surrogates(text: str) -> str:
    """Replace unpaired surrogates, which UTF-8 cannot encode, with U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
