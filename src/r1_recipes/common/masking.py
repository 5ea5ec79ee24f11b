"""Recognise secrets, and keep them out of files, logs, messages and pages."""

import contextlib
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.yaml_text import parse_yaml

HIDDEN = "***"
# Names in snake_case: words that always mean a secret, words that mean a secret at the end of a
# name (PWD alone is a folder), and keys to a service.
_SECRET = re.compile(
    r"secret(?!ar)|passw|passphrase|credential|apikey|(?:auth|access|refresh)token|(?:access|"
    r"private)key|authorization|sshpass|cookie"
    r"|webhook|^auth$|_(?:pat|pwd|auth)\d*$|(?<!low|num|min|max|one|two|all)(?<!high|"
    r"band)(?<!first|multi)(?<!single|second)_pass\d*$"
    r"|(?<![a-z])(?:creds|dsn)(?![a-z])|connection_string|session_id$"
    r"|(?<![a-z])(?:api|access|private|account|auth|service|signing|ssh|wandb|"
    r"encryption)(?:_[a-z0-9]+)?_keys?(?![a-z])|(?<![a-z])key_api"
    r"|(?<![a-z])(?:bearer|jwt)(?![a-z])|(?<![a-z])id_token$|(?:api|access|auth|hf|hub|"
    r"refresh)_tokens$"
)
_KEY = re.compile(r"_keys?\d*$")
# With these words before "key", the key belongs to a mapping, a table, a row or a model, and is no
# secret: image_key, sort_keys, public_key.
_COLUMN = re.compile(
    r"(?<![a-z])(?:sort|image|video|audio|text|prompt|question|answer|solution|response|"
    r"completion|message|label|input|output|data|row"
    r"|column|field|group|task|reward|fn|metric|score|cache|dict|map|state|config|index|"
    r"primary|foreign|partition|public|missing"
    r"|gold|target|chosen|rejected|problem|content|role|context|level|reference|example|item|record"
    r"|unexpected|extra|ignore|ignored|keep|num|max|min|past|query|value|hot|any|join|name|"
    r"id|by)s?_keys?\d*$"
)
_TOKEN = re.compile(r"(?<![a-z])token(?![a-z])")
# With these words beside "token", it is a tokenizer's token and no secret: eos_token, image_token,
# token_type.
_TOKENIZER = re.compile(
    r"(?<![a-z])(?:eos|bos|pad|unk|sep|cls|mask|image|video|audio|start|end|stop|type|id|"
    r"level|truncate|truncation|count|limit"
    r"|think|thinking|reasoning|answer|prompt|completion|special|budget|num|max|min|mean|per|"
    r"loss|weight|reward)(?![a-z])"
)
_WORD_ENDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|\W")
_LOGIN = re.compile(r"(?<=//)(?:[^/\s]*|[^/\s@]*:[^\s@]*)(?=@)")  # a password may hold a slash
# Tokens of services, by their shape: Hugging Face, OpenAI and similar APIs, GitHub, GitLab, Slack,
# AWS, Google, Groq, NVIDIA, xAI, Fireworks, Replicate, Perplexity, PyPI, npm, Stripe, Weights &
# Biases, JSON web tokens, private keys, HTTP headers.
_SHAPE = re.compile(
    r"(?<![A-Za-z0-9_-])(?:hf_[A-Za-z0-9]{20,}|sk-(?=[\w-]{0,60}[0-9A-Z])[\w-]{20,}|"
    r"gh[opsur]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{20,}|xox[abeprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|"
    r"AIza[\w-]{30,}|gsk_[A-Za-z0-9]{20,}|nvapi-[\w-]{20,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|(?:xai-|pplx-|fw_|r8_|npm_|sk_live_|"
    r"sk_test_)[A-Za-z0-9]{20,}|pypi-Ag[\w-]{20,}|ya29\.[\w-]{20,}|wandb_v1_\w{20,}"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]*(?:-----END [A-Z ]{0,30}-----)?"
    r"|(?i:(?<=bearer ))(?=\S*[0-9])[\w.~+/=-]{16,}|(?i:(?<=basic "
    r"))(?=\S*[0-9=])[A-Za-z0-9+/]{12,}={0,2}(?![\w.-]))"
)
_QUERY = re.compile(r"(?<=[?&])([\w.-]+)=([^&#\s'\"]+)")
# `"token": "…"` in a mapping that is written as text.
_PAIR = re.compile(
    r"""(?<![\w-])([\w-]++)(["']?\s*+[:=]\s*+)("(?:[^"\\]|\\.)*+"|'[^']*'|\[[^][]*+\]|[^][{}\s"',][^\s"',}\]]*)"""
)
# `api_key: …` on a separate line.
_LINE = re.compile(r"""^([ \t]*(?:-[ \t]+)?["']?([\w-]+)["']?[ \t]*:[ \t]*)(\S.*)$""", re.MULTILINE)
# Shorter secrets are not masked in free text: they would hide half of the words of a log.
_SHORTEST = 6
_seen: set[str] = set()


def is_secret(name: str) -> bool:
    """Return whether a name is that of a secret.

    ``hub_token``, ``apiKey``, ``groq_key`` and ``DB_PASSWORD`` are; ``max_prompt_tokens`` is not.
    """
    snake = _WORD_ENDS.sub("_", name).lower().strip("_")
    if _SECRET.search(snake) or name == "pwd":
        return True
    return bool(
        (_TOKEN.search(snake) and not _TOKENIZER.search(snake))
        or (_KEY.search(snake) and not _COLUMN.search(snake))
    )


def masked(value: Any, name: str = "") -> Any:
    """Return a copy of ``value`` with all secrets masked, at any depth.

    :func:`masked_text` masks the same secrets afterwards.
    """
    hides = is_secret(name)
    if isinstance(value, dict):
        return {key: masked(item, name if hides else str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(masked(item, name) for item in value)
    if hides and type(value) in (str, int, float) and value != "":
        return _hide(str(value))
    if type(value) is not str:
        return value
    value = _without_logins(value)
    return _without_pairs(value) if value.lstrip()[:1] in ("{", "[") else value


def masked_words(argv: Sequence[str]) -> list[str]:
    """Return a command line with all secrets masked."""
    shown = []
    name = ""
    for word in argv:
        flag, equals, value = word.partition("=")
        if not word.startswith("--") and not (equals and is_secret(flag)):
            flag, equals, value = "", "", word
        name = flag or name
        if value.lstrip()[:1] in ("{", "["):
            with contextlib.suppress(RecipeError):  # incomplete YAML is masked by pattern below
                read = parse_yaml(value, "a setting")
                hidden = masked(read)
                if hidden != read:
                    value = json.dumps(hidden, ensure_ascii=False, default=str)
        value = _LINE.sub(lambda m: m[1] + _hide(m[3]) if is_secret(m[2]) else m[0], value)
        shown.append(flag + equals + masked(value, name))
    return shown


def masked_text(text: str) -> str:
    """Return a message with all known secrets masked.

    Known are secrets of settings that were masked before, of the environment, and of addresses.
    """
    text = _without_logins(text)
    secrets = _seen | {value.strip() for name, value in os.environ.items() if is_secret(name)}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, HIDDEN).replace(repr(secret)[1:-1], HIDDEN)
    return text


def _hide(secret: str) -> str:
    if secret != HIDDEN:
        _seen.add(secret)
    return HIDDEN


def _hide_all(written: str) -> str:
    """Mask a value as written, or each value of a list."""
    if written.startswith("["):
        for item in re.findall(r"[^][\s\"',]+", written):
            _hide(item)
        return HIDDEN
    return _hide(written.strip("\"'"))


def _without_pairs(written: str) -> str:
    """Mask the secrets of a mapping or list that is written as text.

    Patterns find them, because the text may be incomplete.
    """

    def pair(match: re.Match[str]) -> str:
        name, between, value = match.groups()
        if is_secret(name):
            return name + between + _hide_all(value)
        if value.startswith("["):
            return name + between + _PAIR.sub(pair, value)
        return match[0]

    return _PAIR.sub(pair, written)


def _without_logins(text: str) -> str:
    def login(match: re.Match[str]) -> str:
        _hide(match[0].partition(":")[2] or match[0])
        return HIDDEN

    def query(match: re.Match[str]) -> str:
        name = match[1]
        if is_secret(name) or name.lower().endswith(("sig", "signature", "key", "jwt")):
            return f"{name}={_hide(match[2])}"
        return match[0]

    text = _LOGIN.sub(login, text)
    text = _QUERY.sub(query, text)
    return _SHAPE.sub(lambda match: _hide(match[0]), text)
