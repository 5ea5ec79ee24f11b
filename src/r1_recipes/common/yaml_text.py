"""Read a YAML file as one mapping."""

from pathlib import Path
from typing import Any

import yaml

from r1_recipes.common.errors import RecipeError, nearest
from r1_recipes.common.files import find_yaml


class _UniqueKeys(yaml.SafeLoader):
    """Refuse a key that is written twice; PyYAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        # `<<: *anchor` brings in keys that may be overridden.
        names = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        for name in names:
            if names.count(name) > 1:
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"key {name!r} appears more than once, from line {line} on")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a recipe's YAML file.

    Raise RecipeError if the file is missing, not YAML, or not one mapping.
    """
    path = find_yaml(path)
    if not path.is_file():
        close = nearest(path.name, (each.name for each in path.parent.glob("*.yaml")), 1)
        hints = [f"Did you mean {path.parent / name}?" for name in close]
        hint = "".join(hints) or "To list the shipped recipes: r1-recipes recipes"
        raise RecipeError(f"{path}: no such recipe file. {hint}")
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise RecipeError(f"{path}: must be a mapping of keys to values. Fix: write key: value")
    return values


def parse_yaml(text: str, name: str) -> Any:
    """Return the value of a YAML text. An error begins with ``name``, and has the line."""
    try:
        loader = _UniqueKeys(text)
        loader.name = name
        return loader.get_single_data()
    except (yaml.YAMLError, ValueError) as error:  # ValueError: the date 2025-02-30
        raise RecipeError(f"{name}: not valid YAML: {' '.join(str(error).split())}") from error
