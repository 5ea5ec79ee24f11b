"""Read response formats from YAML: the package's, a file of the user's, or keys in the recipe."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError, located, require, unknown_name
from r1_recipes.common.settings import from_mapping
from r1_recipes.common.yaml_text import read_mapping
from r1_recipes.prompts.formats import SLOT, ParsedResponse, ResponseFormat

_TAG = re.compile(r"\S(?:[^\n]*\S)?")  # One line, without white space at its ends.
_SAMPLES = (("2 + 2 = 4", "4"), ("First.\n\nSecond.", "1,080"))


def formats_of(path: Path) -> dict[str, ResponseFormat]:
    """Return the formats in a YAML file by name.

    Raise RecipeError, which names file, format and key.
    """
    formats = read_mapping(path)
    return {name: read_format(name, keys, f"{path}: {name}") for name, keys in formats.items()}


def format_in_file(place: str, folders: tuple[Path, ...]) -> ResponseFormat:
    """Return the format of ``FILE.yaml:NAME``. The folders are searched in order."""
    file, _, name = place.rpartition(":")
    if not file.endswith((".yaml", ".yml")):  # without a name
        file, name = place, ""
    for folder in folders:
        path = folder / os.path.expanduser(file)
        if path.is_file():
            break
    else:
        searched = " or ".join(str(folder.resolve()) for folder in dict.fromkeys(folders))
        raise RecipeError(f"response_format {place!r}: no file {file!r} in {searched}")
    formats = read_mapping(path)
    if name not in formats:
        unknown = unknown_name("response_format", name, formats)
        raise RecipeError(f"{path}: {unknown} Fix: {file}:NAME")
    # Read only this format: a mistake in another one must not stop this recipe.
    return read_format(name, formats[name], f"{path}: {name}")


def read_format(name: str, keys: Any, where: str) -> ResponseFormat:
    """Return the format that these keys describe, after a check that it reads what it writes.

    Raise RecipeError, which starts with ``where`` and names the key.
    """
    if isinstance(keys, Mapping):
        keys = {"name": name, **keys}
    fmt = from_mapping(ResponseFormat, keys, where)
    if SLOT.findall(fmt.layout) != ["reasoning", "answer"]:
        raise RecipeError(
            f"{where}: layout: must contain {{reasoning}} and then {{answer}}, each once, "
            f"got {fmt.layout!r}"
        )
    _check_tags(fmt.reasoning_tags, fmt.layout, f"{where}: reasoning_tags")
    _check_tags(fmt.answer_tags, fmt.layout, f"{where}: answer_tags")
    if not (fmt.boxed or fmt.reasoning_tags or fmt.answer_tags):
        raise RecipeError(
            f"{where}: no key says where the answer is. Fix: answer_tags, reasoning_tags, or "
            "boxed: true"
        )
    for reasoning, answer in _SAMPLES:
        with located(f"{where}: layout: the format could not read what it writes"):
            completion = fmt.render_completion(reasoning, answer)
        holds = fmt.parse(completion) == ParsedResponse(reasoning, answer, well_formed=True)
        allowed = f"the start of layout {fmt.layout!r}"
        require(holds, f"{where}: prefill", allowed, fmt.prefill)
    return fmt


def _check_tags(tags: Sequence[Any] | None, layout: str, where: str) -> None:
    if tags is None:
        return
    fits = [isinstance(tag, str) and _TAG.fullmatch(tag) for tag in tags]
    allowed = "two texts of one line, for example [<think>, </think>]"
    require(len(tags) == 2 and all(fits), where, allowed, list(tags))
    for tag in tags:
        if tag not in layout:
            raise RecipeError(f"{where}: {tag!r} must be part of layout, got {layout!r}")


def as_mapping(fmt: ResponseFormat) -> dict[str, Any]:
    """Return a format's keys in types that YAML can write, without keys at their defaults."""
    keys = {}
    for field in dataclasses.fields(fmt):
        value = getattr(fmt, field.name)
        if value != field.default:
            keys[field.name] = list(value) if isinstance(value, tuple) else value
    return keys
