"""Look up classes and functions by name.

A name is registered by the package, or is the user's ``my_module:my_name`` or
``my_file.py:my_name``.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from r1_recipes.common.errors import (
    USER_ERRORS,
    RecipeError,
    first_line,
    nearest,
    unknown_name,
    user_code_place,
)
from r1_recipes.common.names import NAMES, load

T = TypeVar("T")

_recipe_folder: Path | None = None  # the folder of the recipe that was read last


def _module_and_name(thing: Any) -> tuple[str, str]:
    return thing.__module__, thing.__qualname__


class Registry(Mapping[str, T]):
    """Map names of one kind to classes or functions.

    A name of an extra is imported when it is looked up.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._objects: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name in self._objects:
            return self._objects[name]
        return self.register(name, load(self.kind, name))

    def __contains__(self, name: object) -> bool:
        return name in self._objects or name in NAMES[self.kind]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._objects, **NAMES[self.kind]})

    def __len__(self) -> int:
        return len(set(self))

    def register(self, name: str, thing: T) -> T:
        """Add a class or function under a name, and set the class's ``name``.

        Raise ValueError if the name belongs to another object.
        """
        known = self._objects.get(name, thing)
        if known is not thing and _module_and_name(known) != _module_and_name(thing):
            taken_by = ":".join(_module_and_name(known))
            raise ValueError(f"{self.kind} name {name!r} is taken by {taken_by}")
        if isinstance(thing, type):
            thing.name = name  # type: ignore[attr-defined]
        self._objects[name] = thing
        return thing

    def resolve(self, name: str) -> T:
        """Return what a name stands for: a registered name, or the user's own object.

        The user's object is written ``my_module:my_name`` or ``my_file.py:my_name``. Raise
        RecipeError if the name is unknown.
        """
        if name in self._objects:
            return self._objects[name]
        if ":" in name:
            return import_object(name, self.kind)
        if name in self:
            return self[name]
        module, dot, attribute = name.rpartition(".")
        if name.endswith(".py") or "/" in name:
            fix = f"{name}:NAME"
        elif dot:
            fix = f"{module}:{attribute}"
        else:
            fix = f"my_module:my_{self.kind}"
        raise RecipeError(
            f"{unknown_name(self.kind, name, self)} To name your own {self.kind}, "
            f"write a colon: {fix}."
        )


def look_beside(recipe: Path) -> None:
    """Search the recipe's folder for files and modules of the user, after the working directory."""
    global _recipe_folder
    _recipe_folder = recipe.parent.resolve()


def import_object(path: str, kind: str) -> Any:
    """Import ``my_module:my_name`` or ``my_file.py:my_name``.

    Search the Python path, the working directory and the recipe's folder. Raise RecipeError if the
    module, the file or the name is missing, or if the import fails. The message names the line.
    """
    module_name, _, attribute = path.rpartition(":")
    # The working directory comes last, so that its json.py or trl.py does not hide a library.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    where = f"{kind} {path!r}"
    module = _import_module(_on_the_path(module_name, where), where)
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        names = (name for name in vars(module) if not name.startswith("_"))
        unknown = unknown_name(f"name in {module.__file__}", attribute, names)
        raise RecipeError(f"{where}: {unknown}") from error


def _on_the_path(name: str, where: str) -> str:
    """Put the folder of a file or module on the path. Return the name to import it by."""
    if not name.endswith(".py") and "/" not in name:
        package = name.partition(".")[0]
        if package and package not in sys.modules and importlib.util.find_spec(package) is None:
            _add_recipe_folder(package)
        return name
    file = _user_file(name)
    if file is None:
        close = nearest(Path(name).name, (path.name for path in Path(name).parent.glob("*.py")))
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise RecipeError(f"{where}: no file {name!r} in {_searched()}.{hint}")
    return _module_of(file, where)


def _import_module(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except USER_ERRORS as error:
        if (
            isinstance(error, ModuleNotFoundError)
            and error.name
            and f"{name}.".startswith(f"{error.name}.")
        ):
            raise RecipeError(
                f"{where}: no module {name!r} on the path or in {_searched()}"
            ) from error
        error_text = first_line(error)[:-1] + user_code_place(error)
        if isinstance(error, SyntaxError):
            error_text = f"SyntaxError: {error.msg} ({error.filename}:{error.lineno})"
        raise RecipeError(f"{where}: the import fails: {error_text}") from error


def _searched() -> str:
    return " or ".join(dict.fromkeys((os.getcwd(), str(_recipe_folder or os.getcwd()))))


def _add_recipe_folder(module: str) -> None:
    """Add the recipe's folder to the path if it holds a module or package of this name."""
    folder = _recipe_folder
    if folder is not None and (
        (folder / f"{module}.py").is_file() or (folder / module / "__init__.py").is_file()
    ):
        sys.path.append(str(folder))
        importlib.invalidate_caches()


def _user_file(name: str) -> Path | None:
    """Return the absolute path of the user's Python file, with or without ``.py`` in its name.

    Search the working directory and the recipe's folder.
    """
    path = Path(os.path.expanduser(name if name.endswith(".py") else f"{name}.py"))
    places = (folder / path for folder in (Path.cwd(), _recipe_folder or Path.cwd()))
    return next((place for place in places if place.is_file()), None)


def _module_of(file: Path, where: str) -> str:
    """Put a file's folder on the path and return its module name.

    Worker processes import the file by this name too.
    """
    folder = str(file.parent.resolve())
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
    module: ModuleType | ModuleSpec | None = sys.modules.get(file.stem)
    # For a dotted name, find_spec would import the package first.
    if module is None and "." not in file.stem:
        module = importlib.util.find_spec(file.stem)
    origin = getattr(module, "__file__", getattr(module, "origin", None))
    if not (origin and Path(origin).is_file() and file.samefile(origin)):
        other = f", which belongs to {origin or module}" if module else ""
        raise RecipeError(
            f"{where}: {file} cannot be imported by its name {file.stem!r}{other}. Fix: rename the "
            "file"
        )
    return file.stem
