"""Read untrusted YAML: bounded in size, and without repeated keys."""

import math
import shlex
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from r1_recipes.common.errors import RecipeError, nearest
from r1_recipes.common.files import find_yaml, not_utf8

_DATA = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".xlsx")
# Limits of a YAML file, with its aliases expanded. They are hundreds of times the largest recipe,
# and a file at the limits is still read in seconds.
_MAX_YAML_BYTES, _MAX_YAML_VALUES, _MAX_YAML_LEVELS = 1_000_000, 100_000, 64
# YAML reads 1:30:00 as a number in base 60. A very long one takes minutes to convert.
_MAX_DIGITS = 10_000


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a recipe's YAML file.

    Raise RecipeError, with line and column, if the file is missing, not YAML, or not one mapping.
    """
    path = find_yaml(path)
    if path.suffix in (".sh", ".bash", ".py"):
        raise RecipeError(
            f"{path}: a recipe must be a YAML file, got a script. Fix: write a recipe with the "
            f"tables in docs/migration.md"
        )
    if path.suffix.lower() in _DATA and path.is_file():
        raise RecipeError(
            f"{path}: a recipe must be a YAML file, got data. Fix: r1-recipes init "
            f"{shlex.quote(str(path))}, which writes one"
        )
    if not path.is_file():
        close = nearest(path.name, (p.name for p in path.parent.glob("*.yaml")))
        hint = "To list the shipped recipes: r1-recipes recipes"
        if close:
            hint = f"Did you mean {path.parent / close[0]}?"
        raise RecipeError(f"{path}: no such recipe file. {hint}")
    return read_mapping(path)


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in an existing YAML file. Raise as :func:`read_yaml` does."""
    size = path.stat().st_size
    if size > _MAX_YAML_BYTES:
        raise RecipeError(
            f"{path}: has {size} bytes, but a recipe may have at most {_MAX_YAML_BYTES}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise RecipeError(f"{path}: {not_utf8(path)}") from None
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from error
    if "\0" in text:
        raise RecipeError(f"{path}: {not_utf8(path)}")
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise RecipeError(
            f"{path}: must be a mapping of keys to values, found {type(values).__name__}"
        )
    for key in values:
        if not isinstance(key, str):
            raise RecipeError(
                f"{path}: YAML reads the key {key!r} as {type(key).__name__}, not as text. Fix: "
                "put it in quotes"
            )
    return values


def parse_yaml(text: str, name: str) -> Any:
    """Return the value of a YAML text.

    Raise RecipeError, which begins with ``name``, if the text is not valid YAML or expands to too
    much. The text is untrusted: aliases can stand for more than a machine can hold.
    """
    if len(text) > _MAX_YAML_BYTES:
        raise RecipeError(
            f"{name}: has {len(text)} characters of YAML, but a recipe may have at most "
            f"{_MAX_YAML_BYTES}"
        )
    try:
        loader = _UniqueKeyLoader(text)
        loader.name = name  # the loader names the file in its errors
        return _bounded_document(loader)
    except RecursionError:
        raise RecipeError(
            f"{name}: this file expands to more than {_MAX_YAML_VALUES} values or "
            f"{_MAX_YAML_LEVELS} levels through YAML aliases. Fix: remove the aliases"
        ) from None
    except RecipeError:
        raise
    except (
        yaml.YAMLError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
    ) as error:  # for example for the date 2025-02-30, or for a tag
        for mark in (getattr(error, "context_mark", None), getattr(error, "problem_mark", None)):
            if mark is not None:
                mark.buffer = None  # the line itself may hold a secret
        problem = f"{type(error).__name__}: {error}"
        raise RecipeError(f"{name}: not valid YAML: {' '.join(problem.split())}") from error


def _bounded_document(loader: yaml.SafeLoader) -> Any:
    """Return the loader's one document.

    Raise RecursionError if it expands to more than a recipe may hold.
    """
    node = loader.get_single_node()
    if node is None:
        return None
    values, levels = _extent(node, {})
    if values > _MAX_YAML_VALUES or levels > _MAX_YAML_LEVELS:
        raise RecursionError
    document = loader.construct_document(node)
    str(document)  # raises for an integer with more digits than Python writes
    return document


def _extent(node: yaml.Node, extents: dict[yaml.Node, tuple[float, float]]) -> tuple[float, float]:
    """Return how many values and levels a node expands to.

    Both are infinite for a node that contains itself.
    """
    if node not in extents:
        extents[node] = (math.inf, math.inf)
        if (
            node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
            and len(node.value) > _MAX_DIGITS
        ):
            raise ValueError(f"a number of {len(node.value)} characters")
        values: float = 1
        levels: float = 0
        for part in _parts(node):
            part_values, part_levels = _extent(part, extents)
            values += part_values
            levels = max(levels, part_levels)
        extents[node] = (values, levels + 1)
    return extents[node]


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


class _UniqueKeyLoader(yaml.SafeLoader):
    """Load YAML and refuse repeated keys with different values.

    PyYAML would silently keep the last of them.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            # Keys that `<<: *anchor` brings in may be overridden.
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            # The base class refuses a key that is not hashable.
            if (
                isinstance(key, Hashable)
                and seen.setdefault(key, value_node.value) != value_node.value
            ):
                raise RecipeError(
                    f"{self.name}: key {key!r} appears more than once, line "
                    f"{key_node.start_mark.line + 1}"
                )
        return super().construct_mapping(node, deep)
