"""Classes and functions by name: the package's own, and other people's ``my_module:my_name`` or
``my_file.py:my_name``.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from r1_recipes.common import extras
from r1_recipes.common.errors import (
    OWN_FAULTS,
    RecipeError,
    first_line,
    nearest,
    own_place,
    unknown_name,
)

T = TypeVar("T")

_recipe_folder: Path | None = None  # of the recipe that was read last


def _place(thing: Any) -> tuple[str, str]:
    return thing.__module__, thing.__qualname__


class Registry(MutableMapping[str, T]):
    """Names of one kind -> the classes or functions that they stand for. What a plugin adds is
    imported when it is asked for.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._things and name in extras.installed()[self.kind]:
            self.register(name, extras.load(extras.installed()[self.kind][name]))
        return self._things[name]

    def __setitem__(self, name: str, thing: T) -> None:
        self._things[name] = thing

    def __delitem__(self, name: str) -> None:
        del self._things[name]

    def clear(self) -> None:
        self._things.clear()

    def __contains__(self, name: object) -> bool:
        return name in self._things or name in extras.installed()[self.kind]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._things, **extras.installed()[self.kind]})

    def __len__(self) -> int:
        return len({**self._things, **extras.installed()[self.kind]})

    def register(self, name: str, thing: T) -> T:
        """Add a class or function; a class learns its name. A name that is taken is a
        ValueError.
        """
        known, new = self._things.get(name, thing), thing
        if known is not new and _place(known) != _place(new):
            raise ValueError(f"{self.kind} name {name!r} is taken by {':'.join(_place(known))}")
        if isinstance(thing, type):
            thing.name = name  # type: ignore[attr-defined]
        self._things[name] = thing
        return thing

    def resolve(self, name: str) -> T:
        """Return what a name stands for, registered, ``my_module:my_name`` or
        ``my_file.py:my_name``, or raise a RecipeError.
        """
        if name in self._things:
            return self._things[name]
        if ":" in name:
            return import_object(name, self.kind)
        if name not in self:
            module, dot, attribute = name.rpartition(".")
            is_file = name.endswith(".py") or "/" in name
            fix = (
                f"{name}:NAME"
                if is_file
                else f"{module}:{attribute}"
                if dot
                else f"my_module:my_{self.kind}"
            )
            raise RecipeError(
                unknown_name(self.kind, name, self)
                + f" One of your own is named with a colon: {fix}."
            )
        return self[name]


def look_beside(recipe: Path) -> None:
    """Look for files and modules of the user's own beside this recipe too, after the working
    directory.
    """
    global _recipe_folder
    _recipe_folder = recipe.parent.resolve()


def import_object(path: str, kind: str) -> Any:
    """Import ``my_module:my_name`` or ``my_file.py:my_name``, from the path, the working directory,
    or beside the recipe.

    RecipeError: there is no such module, file or name, or importing it fails; the message names the
    line.
    """
    module_name, _, attribute = path.rpartition(":")
    # Last, so that a json.py or trl.py there takes no library's place.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    where = f"{kind} {path!r}"
    module = _import_module(_on_the_path(module_name, where), where)
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        names = (name for name in vars(module) if not name.startswith("_"))
        raise RecipeError(
            f"{where}: " + unknown_name(f"name in {module.__file__}", attribute, names)
        ) from error


def _on_the_path(name: str, where: str) -> str:
    """Return the name that a file or module can be imported by, with its folder on the path."""
    if not name.endswith(".py") and "/" not in name:
        if not _is_importable(name):
            _add_recipe_folder(name.partition(".")[0])
        return name
    file = _own_file(name)
    if file is None:
        near = nearest(Path(name).name, (there.name for there in Path(name).parent.glob("*.py")))
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise RecipeError(f"{where}: no file {name!r} in {_searched()}.{hint}")
    return _module_of(file, where)


def _import_module(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except OWN_FAULTS as error:
        if (
            isinstance(error, ModuleNotFoundError)
            and error.name
            and f"{name}.".startswith(f"{error.name}.")
        ):
            raise RecipeError(
                f"{where}: no module {name!r} on the path or in {_searched()}"
            ) from error
        error_text = first_line(error)[:-1] + own_place(error)
        if isinstance(error, SyntaxError):
            error_text = f"SyntaxError: {error.msg} ({error.filename}:{error.lineno})"
        raise RecipeError(f"{where}: importing it fails: {error_text}") from error


def _searched() -> str:
    return " or ".join(dict.fromkeys((os.getcwd(), str(_recipe_folder or os.getcwd()))))


def _is_importable(module_name: str) -> bool:
    package = module_name.partition(".")[0]
    return not package or package in sys.modules or importlib.util.find_spec(package) is not None


def _add_recipe_folder(module: str) -> None:
    """Put the recipe's folder at the end of the path if a module or a package of this name lies
    there.
    """
    folder = _recipe_folder
    if folder is not None and (
        (folder / f"{module}.py").is_file() or (folder / module / "__init__.py").is_file()
    ):
        sys.path.append(str(folder))
        importlib.invalidate_caches()


def _own_file(name: str) -> Path | None:
    """Return the Python file of this name, absolute, in the working directory or beside the recipe;
    the ending may be missing.
    """
    path = Path(name if name.endswith(".py") else f"{name}.py").expanduser()
    places = (folder / path for folder in (Path.cwd(), _recipe_folder or Path.cwd()))
    return next((place for place in places if place.is_file()), None)


def _module_of(file: Path, where: str) -> str:
    """Put a file's folder on the path, and return the name that worker processes too import the
    file by.
    """
    if str(file.parent.resolve()) not in sys.path:
        sys.path.append(str(file.parent.resolve()))
    importlib.invalidate_caches()
    # The package of a dotted name would be imported first.
    known = sys.modules.get(file.stem) or (
        None if "." in file.stem else importlib.util.find_spec(file.stem)
    )
    found = getattr(known, "__file__", getattr(known, "origin", None))
    if not (found and Path(found).is_file() and file.samefile(found)):
        other = f", which is that of {found or known}" if known else ""
        raise RecipeError(
            f"{where}: {file} cannot be imported by its name {file.stem!r}{other}. Fix: "
            f"rename the file"
        )
    return file.stem
