"""YAML files of anybody: bounded, and without repeated keys."""

import math
import shlex
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from r1_recipes.common.errors import RecipeError, nearest
from r1_recipes.common.files import find_yaml, not_utf8

_DATA = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".xlsx")
# What a YAML file may be and stand for: hundreds of times the largest recipe, and still read in
# seconds.
_MAX_YAML_BYTES, _MAX_YAML_VALUES, _MAX_YAML_LEVELS = 1_000_000, 100_000, 64
_MAX_DIGITS = (
    10_000  # 1:30:00 is a number to the base of 60, which a long one takes minutes to become
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the one mapping of a YAML file; a RecipeError says what is wrong with it, by line and
    column.
    """
    path = find_yaml(path)
    if path.suffix in (".sh", ".bash", ".py"):
        raise RecipeError(
            f"{path}: a recipe must be a YAML file, got a script. Fix: write a recipe by the "
            f"tables in docs/migration.md"
        )
    if path.suffix.lower() in _DATA and path.is_file():
        raise RecipeError(
            f"{path}: a recipe must be a YAML file, got data. Fix: r1-recipes init "
            f"{shlex.quote(str(path))}, which writes one"
        )
    if not path.is_file():
        near = nearest(path.name, (p.name for p in path.parent.glob("*.yaml")))
        hint = (
            f" Did you mean {path.parent / near[0]}?"
            if near
            else " Those that are shipped: r1-recipes recipes"
        )
        raise RecipeError(f"{path}: no such recipe file.{hint}")
    return read_mapping(path)


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the one mapping of an existing YAML file, as :func:`read_yaml`."""
    if path.stat().st_size > _MAX_YAML_BYTES:
        raise RecipeError(
            f"{path}: {path.stat().st_size} bytes; a recipe has at most {_MAX_YAML_BYTES}"
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
    for key in (key for key in values if not isinstance(key, str)):
        raise RecipeError(
            f"{path}: key {key!r} is read as {type(key).__name__}, not text; put it in quotes"
        )
    return values


def parse_yaml(text: str, name: str) -> Any:
    """Return what a YAML text of anybody says; a RecipeError calls it ``name``. Aliases may stand
    for more than a machine can hold.
    """
    if len(text) > _MAX_YAML_BYTES:
        raise RecipeError(
            f"{name}: {len(text)} characters of YAML; a recipe has at most {_MAX_YAML_BYTES}"
        )
    try:
        loader = _UniqueKeyLoader(text)
        loader.name = name  # the loader names the file in its errors
        return _bounded_document(loader)
    except RecursionError:
        limits = f"{_MAX_YAML_VALUES} values or {_MAX_YAML_LEVELS} levels"
        raise RecipeError(
            f"{name}: with its aliases filled in it has more than {limits}; no recipe has"
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
    ) as error:  # of a date 2025-02-30, or a tag
        for mark in (getattr(error, "context_mark", None), getattr(error, "problem_mark", None)):
            if mark is not None:
                mark.buffer = None  # the line itself may hold a key
        raise RecipeError(
            f"{name}: not valid YAML: {' '.join(f'{type(error).__name__}: {error}'.split())}"
        ) from error


def _bounded_document(loader: yaml.SafeLoader) -> Any:
    """Return the loader's one document; a RecursionError: it stands for more than a recipe may."""
    node = loader.get_single_node()
    if node is None:
        return None
    values, levels = _extent(node, {})
    if values > _MAX_YAML_VALUES or levels > _MAX_YAML_LEVELS:
        raise RecursionError
    document = loader.construct_document(node)
    str(document)  # raises for an integer with more digits than Python writes
    return document


def _extent(node: yaml.Node, known: dict[yaml.Node, tuple[float, float]]) -> tuple[float, float]:
    """Return values and levels that a node stands for; one that holds itself stands for no end of
    them.
    """
    if node not in known:
        known[node] = (math.inf, math.inf)
        if (
            node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
            and len(node.value) > _MAX_DIGITS
        ):
            raise ValueError(f"a number of {len(node.value)} characters")
        parts = [
            part
            for entry in node.value
            for part in (entry if isinstance(entry, tuple) else (entry,))
        ]
        extents = [_extent(part, known) for part in parts if isinstance(part, yaml.Node)]
        known[node] = (
            1 + sum(values for values, _ in extents),
            1 + max((levels for _, levels in extents), default=0),
        )
    return known[node]


class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML would silently keep the last of repeated keys; the same key with the same text is one
    key.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            if (
                key_node.tag == "tag:yaml.org,2002:merge"
            ):  # `<<: *anchor`; what it brings in may be overridden
                continue
            key = self.construct_object(key_node, deep=True)
            # The loader itself refuses a key that is not hashable.
            if (
                isinstance(key, Hashable)
                and seen.setdefault(key, value_node.value) != value_node.value
            ):
                raise RecipeError(
                    f"{self.name}: key {key!r} stands more than once, line "
                    f"{key_node.start_mark.line + 1}"
                )
        return super().construct_mapping(node, deep)
