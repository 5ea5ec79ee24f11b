"""The response formats that recipes name, the user's own, and a chat template for models without.

Importing this module imports neither torch nor transformers.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError, located, unknown_name
from r1_recipes.common.settings import from_mapping
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.prompts.formats import ParsedResponse, ResponseFormat

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_SAMPLES = (("2 + 2 = 4", "4"), ("First.\n\nSecond.", "1,080"))


def read_format(name: str, keys: Any, where: str) -> ResponseFormat:
    """Return the format of these keys, after a check that it reads what it writes.

    Raise RecipeError, which starts with ``where``.
    """
    keys = {"name": name, **keys} if isinstance(keys, Mapping) else keys
    fmt = from_mapping(ResponseFormat, keys, where)
    with located(where):
        for reasoning, answer in _SAMPLES:
            read = fmt.parse(fmt.render_completion(reasoning, answer))
            if read != ParsedResponse(reasoning, answer, True):
                raise ValueError(f"layout: writes {reasoning!r} and {answer!r}, but reads {read}")
    return fmt


FORMATS = {
    name: read_format(name, keys, f"formats.yaml: {name}")
    for name, keys in read_yaml(Path(__file__).with_name("formats.yaml")).items()
}


def get_response_format(
    name: str | Mapping[str, Any] | ResponseFormat,
    *,
    system_prompt: str | None = None,
    prefill: str | None = None,
    folder: Path | None = None,
) -> ResponseFormat:
    """Return a response format with a recipe's ``system_prompt`` and ``prefill``.

    Args:
        name: A name of ``FORMATS``, ``FILE.yaml:NAME``, a format's keys, or a format.
        system_prompt: Replaces the format's own instruction.
        prefill: Replaces the format's own prefill.
        folder: Where ``FILE.yaml`` is looked for after the working directory.

    Raises:
        ValueError: There is no such format, or it cannot read what it writes.
    """
    if isinstance(name, ResponseFormat):
        fmt = name
    elif isinstance(name, Mapping):
        fmt = read_format("own", name, "response_format")
    elif isinstance(name, str) and ".y" in name:
        file, _, key = name.rpartition(":")
        path = Path(file or name).expanduser()
        path = path if path.is_file() else (folder or Path()) / path
        formats = read_yaml(path)
        if key not in formats:
            raise RecipeError(f"{path}: {unknown_name('response_format', key, formats)}")
        fmt = read_format(key, formats[key], f"{path}: {key}")
    elif name in FORMATS:
        fmt = FORMATS[name]
    else:
        unknown = unknown_name("response_format", name, FORMATS)
        raise RecipeError(f"{unknown} To use your own format: FILE.yaml:NAME.")
    if system_prompt is not None:
        fmt = replace(fmt, system_prompt=system_prompt)
    return fmt if prefill is None else replace(fmt, prefill=prefill)


def written_out(value: Any, folder: Path) -> str | dict[str, Any]:
    """Return a recipe's ``response_format`` so that it needs no other file.

    It is a name of the package's formats, or the keys of the user's format in YAML's types.
    """
    fmt = get_response_format(value, folder=folder)
    if isinstance(value, str) and value in FORMATS:
        return value
    items = ((field, getattr(fmt, field.name)) for field in fields(fmt))
    return {
        field.name: [*item] if isinstance(item, tuple) else item
        for field, item in items
        if item != field.default
    }
