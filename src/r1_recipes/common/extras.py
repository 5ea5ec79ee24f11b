"""Find what plugs into the core by name: folders under ``r1_recipes/extras``, and other packages.

The core imports none of them. Each has a dictionary ``PLUGIN`` of the form kind (see ``KINDS``) ->
name -> ``module:attribute``. The object is imported when a recipe uses the name. A folder has
``PLUGIN`` in its ``__init__.py``; a package names it in the entry-point group ``r1_recipes``.
"""

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from r1_recipes.common.errors import USER_ERRORS, RecipeError, first_line

Plugin = dict[str, dict[str, Any]]

KINDS = {
    "reward": "a class or function of reward_funcs",
    "mapper": "a class of the key mapper",
    "tool": "a function of the key tools",
    "environment": "a class of the key environment",
    "dataset": "a prefix of dataset_name, and the function that makes its rows: (rest, split, "
    "task_config) -> Dataset",
    "model": "a model_name_or_path, and the function that returns its folder",
    "scorer": "a key of the column scorer, and its checker",
    "command": "a command: (the module that runs it, what it does)",
    "part": "a module that the core uses where it is installed",
}


@functools.cache
def installed() -> dict[str, dict[str, Any]]:
    """Return the names that extras and other packages add, by kind.

    Raise RecipeError if a package cannot be imported, or if two add the same name.
    """
    names: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    for source, plugin in [*_folders(), *_packages()]:
        for kind, added in plugin.items():
            if kind not in names:
                raise RecipeError(
                    f"plugin {source}: {kind!r} is not a kind of plugin. Fix: use one of "
                    f"{', '.join(KINDS)}"
                )
            for name, place in added.items():
                if name in names[kind]:
                    raise RecipeError(
                        f"plugin {source}: the {kind} {name!r} is taken by "
                        f"{names[kind][name]}. Fix: use another name"
                    )
                names[kind][name] = place
    return names


def _folders() -> Iterator[tuple[str, Plugin]]:
    try:
        extras = importlib.import_module("r1_recipes.extras")
    except ModuleNotFoundError:  # only the core is installed
        return
    for folder in pkgutil.iter_modules(extras.__path__, "r1_recipes.extras."):
        yield folder.name, importlib.import_module(folder.name).PLUGIN


def _packages() -> Iterator[tuple[str, Plugin]]:
    for entry in metadata.entry_points(group="r1_recipes"):
        try:
            yield entry.value, entry.load()
        except USER_ERRORS as error:
            raise RecipeError(
                f"plugin {entry.value}: the import fails: {first_line(error)} Fix: repair or "
                "uninstall that package"
            ) from error


def load(place: Any) -> Any:
    """Import ``module`` or ``module:attribute``. A place that is not text is returned as it is."""
    if not isinstance(place, str):
        return place
    module, _, attribute = place.partition(":")
    imported = importlib.import_module(module)
    return getattr(imported, attribute) if attribute else imported


def part(name: str) -> Any:
    """Return the module of an optional extra, or ``None`` if it is not installed."""
    place = installed()["part"].get(name)
    return None if place is None else load(place)


def needed(name: str, key: str) -> Any:
    """Return the module of an extra that a recipe's key needs.

    Raise RecipeError if the extra is not installed.
    """
    module = part(name)
    if module is None:
        raise RecipeError(
            f"{key}: needs the extra {name!r}, which is not installed. Fix: install all of "
            f"r1-recipes, or remove {key}"
        )
    return module
