"""The text of chats, as TRL and data sets hand them over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Characters of a text that a page shows.
MAX_TEXT = 100_000


def completion_texts(completions: Sequence[Any]) -> list[str]:
    """The generated text of each completion: TRL hands over strings, or one-message conversations."""
    return [text if isinstance(text, str) else message_text(text[-1]) if text else "" for text in completions]


def message_text(message: dict[str, Any]) -> str:
    """The words of one message of a conversation; what is not text in it (an image) is left out."""
    content = message.get("content")
    if isinstance(content, list):  # multimodal content blocks
        return "".join(block.get("text") or "" for block in content)
    return content or ""


def last_user_text(prompt: Any) -> str:
    """The words of a prompt's last user message, or the prompt itself where it is text; ``""`` where there is no such message."""
    if isinstance(prompt, str):
        return prompt
    return next((message_text(message) for message in reversed(prompt or ()) if message.get("role") == "user"), "")


def words(value: Any, roles: bool = False) -> str:
    """A string, or the words of a conversation; with ``roles`` each message under its speaker. Of anything else, nothing."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        said = words(value.get("content") if value.get("content") is not None else value.get("text"))
        speaker = value.get("role")
        return f"[{speaker}]\n{said}" if speaker and (roles or speaker != "assistant") else said
    if isinstance(value, list):
        return "\n\n".join(words(part, roles) for part in value)
    return ""


def clip(text: str, limit: int = MAX_TEXT) -> str:
    """The text, or its two ends where it has more than ``limit`` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} …]\n{text[-half:]}"
