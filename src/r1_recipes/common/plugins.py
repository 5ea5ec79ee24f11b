"""Functions of other people: ``my_module:my_name``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from r1_recipes.common.errors import unknown_name


def import_object(path: str, kind: str) -> Any:
    """Import ``my_module:my_name``, from the working directory too.

    Raises:
        ValueError: the module or the name in it does not exist; the message says which, and from where it was looked for.
    """
    module_name, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise
        raise ValueError(f"{kind} {path!r}: no module {module_name!r} on the path or in {os.getcwd()}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        names = (name for name in vars(module) if not name.startswith("_"))
        raise ValueError(f"{kind} {path!r}: " + unknown_name(f"name in {module.__file__}", attribute, names)) from error
