"""Classes and functions by name: the package's own, and other people's ``my_module:my_name``."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, TypeVar

from r1_recipes.common.errors import RecipeError, unknown_name

T = TypeVar("T")

_FOLDERS: list[Path] = []  # of the recipes that this process reads; modules may lie there


def register(registry: dict[str, T], kind: str, name: str, thing: T) -> T:
    """Add a class or function to a registry; a class learns its name. A name that is taken is a ValueError."""
    known = registry.get(name, thing)
    if (known.__module__, known.__qualname__) != (thing.__module__, thing.__qualname__):  # type: ignore[attr-defined]
        raise ValueError(f"{kind} name {name!r} is taken by {known.__module__}:{known.__qualname__}")  # type: ignore[attr-defined]
    if isinstance(thing, type):
        thing.name = name  # type: ignore[attr-defined]
    registry[name] = thing
    return thing


def resolve(registry: dict[str, T], kind: str, name: str) -> T:
    """Return what a name stands for, registered or ``my_module:my_name``, or raise a RecipeError."""
    if ":" in name:
        return import_object(name, kind)
    if name not in registry:
        module, dot, attribute = name.rpartition(".")
        own = f"{module}:{attribute}" if dot else f"my_module:my_{kind}"
        raise RecipeError(f"{unknown_name(kind, name, registry)} One of your own is {own}.")
    return registry[name]


def look_in(folder: Path) -> None:
    """Look for modules in this folder, a recipe's, if they are neither on the path nor in the working directory."""
    if (folder := folder.resolve()) not in _FOLDERS:
        _FOLDERS.insert(0, folder)


def import_object(path: str, kind: str) -> Any:
    """Import ``my_module:my_name``, from the working directory or a recipe's folder too; a RecipeError says what does not exist."""
    module_name, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    _add_recipe_folder(module_name.partition(".")[0])
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise
        raise RecipeError(
            f"{kind} {path!r}: no module {module_name!r} on the path or in {', '.join(dict.fromkeys([os.getcwd(), *map(str, _FOLDERS)]))}"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        names = (name for name in vars(module) if not name.startswith("_"))
        raise RecipeError(f"{kind} {path!r}: " + unknown_name(f"name in {module.__file__}", attribute, names)) from error


def _add_recipe_folder(name: str) -> None:
    """Put the recipe's folder that has a module of this name at the end of the path, unless the path has one."""
    try:
        known = importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        known = name in sys.modules
    there = (folder for folder in _FOLDERS if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file())
    if name and not known and (folder := next(there, None)) is not None:
        sys.path.append(str(folder))
        importlib.invalidate_caches()
