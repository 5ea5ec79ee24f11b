"""The response formats that recipes name, and a chat template for models without one.

Importing this module imports neither torch nor transformers.
"""

import html
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.prompts.read_format import as_mapping, format_in_file, formats_of, read_format

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
FORMATS = formats_of(Path(__file__).with_name("formats.yaml"))


def named_marks(prompt: str) -> list[str]:
    """Return the marks of all formats that a prompt names.

    Case, width and HTML escapes are ignored. A heading counts only if its pair is named too.
    """
    prompt = unicodedata.normalize("NFKC", html.unescape(prompt)).casefold()
    found: list[str] = []
    for fmt in FORMATS.values():
        named = [mark for mark in chain(*fmt.marks) if mark.casefold() in prompt]
        if len(named) == 1 and named[0].startswith("#"):
            continue
        found += named
    return list(dict.fromkeys(found))


def fitting_format(named: Iterable[str], present: ResponseFormat) -> str:
    """Return the recipe key that would agree with a prompt that names these marks.

    It is the format that has all of them and the fewest others.
    """
    named = set(named)
    text = " ".join(named)
    others = [fmt for fmt in FORMATS.values() if fmt.name != present.name]
    fitting = [fmt for fmt in others if named.issubset(chain(*fmt.marks))]
    if not fitting:
        return "a system_prompt that asks for the answer's format"
    nearest = min(fitting, key=lambda fmt: len(fmt.lacking(text)))
    return f"response_format: {nearest.name}"


def get_response_format(
    name: str | Mapping[str, Any] | ResponseFormat,
    *,
    system_prompt: str | None = None,
    prefill: str | None = None,
    folder: Path | None = None,
) -> ResponseFormat:
    """Return a response format with a recipe's ``system_prompt`` and ``prefill``.

    Args:
        name: A registered name, ``FILE.yaml:NAME``, a format's keys, or a format.
        system_prompt: Replaces the format's own instruction.
        prefill: Replaces the format's own prefill.
        folder: Where ``FILE.yaml`` is looked for after the working directory.

    Raises:
        ValueError: There is no such format.
    """
    if isinstance(name, ResponseFormat):
        fmt = name
    elif isinstance(name, Mapping):
        fmt = read_format("own", name, "response_format")
    elif not isinstance(name, str):
        raise RecipeError(
            f"response_format: must be a name, FILE.yaml:NAME or a mapping, got {name!r}"
        )
    elif ".yaml" in name or ".yml" in name:
        fmt = format_in_file(name, (Path(), folder or Path()))
    elif name in FORMATS:
        fmt = FORMATS[name]
    else:
        unknown = unknown_name("response_format", name, FORMATS)
        raise RecipeError(f"{unknown} To use your own format: FILE.yaml:NAME.")
    if system_prompt is not None:
        fmt = replace(fmt, system_prompt=system_prompt)
    if prefill is not None:
        fmt = replace(fmt, prefill=prefill)
    return fmt


def written_out(value: Any, folder: Path) -> str | dict[str, Any]:
    """Return a recipe's ``response_format`` so that it needs no other file.

    It is a name of the package's formats, or all keys of the user's format.
    """
    fmt = get_response_format(value, folder=folder)
    if isinstance(value, str) and value in FORMATS:
        return value
    return as_mapping(fmt)
