"""Atomic writes, and the files that the package ships."""

import os
from pathlib import Path

# recipes/ and accelerate_configs/: links in a clone, copies in a wheel.
SHIPPED = Path(__file__).parents[1] / "shipped"


def shipped(path: Path) -> Path:
    """Return the path, or the package's own file of that name if the path does not exist.

    An example is ``recipes/cpu/r1_mini/general.jsonl``. A ``~`` is a home folder.
    """
    path = Path(os.path.expanduser(path))  # Path.expanduser raises for a user that is unknown
    return SHIPPED / path if not path.exists() and (SHIPPED / path).is_file() else path


def find_local(name: str, folder: Path) -> str:
    """Return a relative path of a recipe, which may lie here, in the package or in ``folder``.

    ``folder`` is the recipe's. Files here and shipped files come first.
    """
    beside = os.path.join(folder, name)  # an absolute name stays
    elsewhere = name.startswith("~") or not os.path.exists(beside) or shipped(Path(name)).exists()
    return name if elsewhere else beside


def find_yaml(path: Path) -> Path:
    """Return the file that a recipe's path or name means.

    Search the working directory, its ``recipes/``, and the shipped files.
    """
    names = [Path(folder, name) for name in (path, f"{path}.yaml") for folder in ("", "recipes")]
    return next((place for place in map(shipped, names) if place.is_file()), path)


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, because another rank may be reading it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8", errors="backslashreplace")
    part.replace(path)
