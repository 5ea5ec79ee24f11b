"""Classes and functions by name: the package's own, and other people's ``my_module:my_name``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, TypeVar

from r1_recipes.common.errors import RecipeError, unknown_name

T = TypeVar("T")


def register(registry: dict[str, T], kind: str, name: str, thing: T) -> T:
    """Add a class or function to a registry; a class learns its name.

    Raises:
        ValueError: the name is taken by another one.
    """
    known = registry.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (thing.__module__, thing.__qualname__):  # type: ignore[attr-defined]
        raise ValueError(f"{kind} name {name!r} is taken by {known.__module__}:{known.__qualname__}")  # type: ignore[attr-defined]
    if isinstance(thing, type):
        thing.name = name  # type: ignore[attr-defined]
    registry[name] = thing
    return thing


def resolve(registry: dict[str, T], kind: str, name: str) -> T:
    """What a name stands for, registered or ``my_module:my_name``.

    Raises:
        RecipeError: there is no such thing.
    """
    if ":" in name:
        return import_object(name, kind)
    if name not in registry:
        raise RecipeError(unknown_name(kind, name, registry))
    return registry[name]


def import_object(path: str, kind: str) -> Any:
    """Import ``my_module:my_name``, from the working directory too.

    Raises:
        RecipeError: the module or the name in it does not exist; the message says which, and from where it was looked for.
    """
    module_name, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise
        raise RecipeError(f"{kind} {path!r}: no module {module_name!r} on the path or in {os.getcwd()}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        names = (name for name in vars(module) if not name.startswith("_"))
        raise RecipeError(f"{kind} {path!r}: " + unknown_name(f"name in {module.__file__}", attribute, names)) from error
