"""The response formats that recipes name, and chat templates for models that bring none. Imports neither torch nor transformers."""

import html
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import yaml

from r1_recipes.common.errors import unknown_name
from r1_recipes.common.settings import from_mapping
from r1_recipes.prompts.formats import ResponseFormat

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_WRITTEN = yaml.safe_load(Path(__file__).with_name("formats.yaml").read_text(encoding="utf-8"))
FORMATS = {name: from_mapping(ResponseFormat, {"name": name, **keys}, f"formats.yaml: {name}") for name, keys in _WRITTEN.items()}


def named_marks(prompt: str) -> list[str]:
    """Return the marks of every format that a prompt names, in whatever characters; headings only as a pair."""
    prompt = unicodedata.normalize("NFKC", html.unescape(prompt)).casefold()
    marks = {fmt.name: [mark for group in fmt.marks for mark in group if mark.casefold() in prompt] for fmt in FORMATS.values()}
    return list(dict.fromkeys(mark for found in marks.values() for mark in found if not mark.startswith("#") or len(found) > 1))


def fitting_format(named: Iterable[str], present: ResponseFormat) -> str:
    """Return the recipe key that would agree with a prompt that names these marks: the format that has all, and fewest others."""
    named = set(named)
    fitting = [fmt for fmt in FORMATS.values() if fmt.name != present.name and named <= {mark for group in fmt.marks for mark in group}]
    nearest = min(fitting, key=lambda fmt: len(fmt.lacking(" ".join(named))), default=None)
    return f"response_format: {nearest.name}" if nearest else "a system_prompt that asks for what is wanted"


def get_response_format(name: str | ResponseFormat, *, system_prompt: str | None = None, prefill: str | None = None) -> ResponseFormat:
    """Return a format, given or by name, with a recipe's ``system_prompt`` and ``prefill``; ``ValueError`` if there is none."""
    if isinstance(name, str) and name not in FORMATS:
        raise ValueError(unknown_name("response_format", name, FORMATS))
    fmt = FORMATS[name] if isinstance(name, str) else name
    system_prompt = fmt.system_prompt if system_prompt is None else system_prompt
    return replace(fmt, system_prompt=system_prompt, prefill=fmt.prefill if prefill is None else prefill)
