"""Keep tokens and passwords out of the files of a run.

A key is secret by its name. Secrets belong into the environment, where no file records them.
"""

import re
from collections.abc import Sequence
from typing import Any

HIDDEN = "***"
# The last words of a key. max_prompt_tokens is none of them, and neither is eos_token.
_SECRET = re.compile(
    r"(?:^|_)(?:api_key|secret|access_key|password|(?:hub|hf|auth)_token)$|^token$"
)
_LOGIN = re.compile(r"(?<=//)[^/\s@]+(?=@)")  # http://me:password@host


def masked(value: Any, name: str = "") -> Any:
    """Return a copy of ``value``, which the key ``name`` has, without its secrets at any depth."""
    if isinstance(value, dict):
        return {key: masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(masked(item, name) for item in value)
    if not isinstance(value, str):
        return value
    secret = value and _SECRET.search(name.replace("-", "_").lower())
    return HIDDEN if secret else _LOGIN.sub(HIDDEN, value)


def masked_words(argv: Sequence[str]) -> list[str]:
    """Return a command line without its secrets."""
    shown, name = [], ""
    for word in argv:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        name = flag.removeprefix("--") or name
        shown.append(flag + equals + masked(value, name))
    return shown


def masked_text(text: str) -> str:
    """Return a text without the logins in its addresses."""
    return _LOGIN.sub(HIDDEN, text)
