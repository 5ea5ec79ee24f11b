"""Keep tokens and passwords out of files, logs and messages."""

import os
import re
from collections.abc import Sequence
from typing import Any

HIDDEN = "***"
# The last words of a key or of an environment variable. max_prompt_tokens is none of them.
_NAMES = re.compile(r"(?:^|_)(?:api_?key|secret(?:_key)?|access_key|password|passwd|token)$", re.I)
# Names of a tokenizer's tokens end alike: eos_token, image_token.
_TOKENIZER = re.compile(r"(?:^|_)(?:eos|bos|pad|unk|sep|cls|mask|image|video|special)_token$", re.I)
_LOGIN = re.compile(r"(?<=//)[^/\s@]+(?=@)")
_SHORTEST = 6  # a shorter secret would hide half of the words of a log
_seen: set[str] = set()


def is_secret(name: str) -> bool:
    """Return whether a name is that of a secret: ``hub_token``, ``OPENAI_API_KEY``."""
    name = name.replace("-", "_")
    return bool(_NAMES.search(name)) and not _TOKENIZER.search(name)


def masked(value: Any, name: str = "") -> Any:
    """Return a copy of ``value`` without its secrets, at any depth.

    :func:`masked_text` hides the same secrets afterwards.
    """
    if isinstance(value, dict):
        return {key: masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(masked(item, name) for item in value)
    if not isinstance(value, str):
        return value
    if is_secret(name) and value:
        _seen.add(value)
        return HIDDEN
    return _LOGIN.sub(HIDDEN, value)


def masked_words(argv: Sequence[str]) -> list[str]:
    """Return a command line without its secrets."""
    shown, name = [], ""
    for word in argv:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        name = flag.removeprefix("--") or name
        shown.append(flag + equals + (masked(value, name) if value else value))
    return shown


def masked_text(text: str) -> str:
    """Return a message without the secrets of masked settings, of the environment, of addresses."""
    secrets = _seen | {value for name, value in os.environ.items() if is_secret(name)}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, HIDDEN)
    return _LOGIN.sub(HIDDEN, text)
