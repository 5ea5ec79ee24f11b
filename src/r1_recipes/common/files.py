"""The files of a recipe and of a run: found, read, written whole, locked, and free of secrets."""

import fcntl
import os
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import yaml

from r1_recipes.common.errors import RecipeError, nearest

# recipes/ and accelerate_configs/: links in a clone, copies in a wheel.
SHIPPED = Path(__file__).parents[1] / "shipped"
LOCK_FILE = "_lock"  # the underscore keeps it out of what Transformers uploads
_held: dict[Path, IO[str]] = {}
HIDDEN = "***"
# The last words of a key. max_prompt_tokens is none of them, and neither is eos_token.
_SECRET = re.compile(
    r"(?:^|_)(?:api_key|secret|access_key|password|(?:hub|hf|auth)_token)$|^token$"
)


def shipped(path: Path) -> Path:
    """Return the path, or the package's own file of that name if the path does not exist.

    An example is ``recipes/cpu/r1_mini/general.jsonl``. A ``~`` is a home folder.
    """
    path = Path(os.path.expanduser(path))  # Path.expanduser raises for a user that is unknown
    return SHIPPED / path if not path.exists() and (SHIPPED / path).is_file() else path


def find_yaml(path: Path) -> Path:
    """Return the file that a recipe's path or name means.

    Search the working directory, its ``recipes/``, and the shipped files. Raise RecipeError if
    there is none.
    """
    names = [Path(folder, name) for name in (path, f"{path}.yaml") for folder in ("", "recipes")]
    for place in map(shipped, names):
        if place.is_file():
            return place
    close = nearest(path.name, (each.name for each in path.parent.glob("*.yaml")), 1)
    hints = [f"Did you mean {path.parent / name}?" for name in close]
    hint = "".join(hints) or "To list the shipped recipes: r1-recipes recipes"
    raise RecipeError(f"{path}: no such recipe file. {hint}")


class _UniqueKeys(yaml.SafeLoader):
    """Refuse a key that is written twice; PyYAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        # `<<: *anchor` brings in keys that may be overridden.
        names = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        for name in names:
            if names.count(name) > 1:
                raise yaml.YAMLError(
                    f"key {name!r} appears more than once, from line {node.start_mark.line + 1} on"
                )
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a recipe's YAML file.

    Raise RecipeError if the file is missing, not YAML (with the line), or not one mapping.
    """
    path = find_yaml(path)
    try:
        with path.open("rb") as file:
            values = yaml.load(file, _UniqueKeys)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: the date 2025-02-30
        raise RecipeError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise RecipeError(f"{path}: must be a mapping of keys to values. Fix: write key: value")
    return values


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, because another rank may be reading it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8", errors="backslashreplace")
    part.replace(path)


def hold(folder: Path) -> None:
    """Create and lock a folder until :func:`release` or the end of this process, however it ends.

    Raise RecipeError with the holder's name if another process has locked it.
    """
    release()  # an earlier run of this process: closing its file later would drop this lock
    folder.mkdir(parents=True, exist_ok=True)
    file = _held[folder] = (folder / LOCK_FILE).open("a+", buffering=1)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a forked child does not inherit it
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, depending on the system
        file.seek(0)
        raise RecipeError(
            f"{folder}: another process is writing into this folder ({file.read().strip()}). Fix: "
            "wait for it, end it, or choose another folder (--output_dir …)"
        ) from None
    except OSError:
        pass  # some network disks have no file locks
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}, since {time.ctime()}\n")


def release() -> None:
    """Unlock every folder that this process holds."""
    while _held:
        _held.popitem()[1].close()


def masked(value: Any, name: str = "") -> Any:
    """Return a copy of ``value``, which the key ``name`` has, without its secrets at any depth.

    A key is secret by its name. Secrets belong into the environment, where no file records them.
    """
    if isinstance(value, dict):
        return {key: masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(masked(item, name) for item in value)
    secret = isinstance(value, str) and value and _SECRET.search(name.replace("-", "_").lower())
    return HIDDEN if secret else value


def masked_words(argv: Sequence[str]) -> list[str]:
    """Return a command line without its secrets."""
    shown, name = [], ""
    for word in argv:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        name = flag.removeprefix("--") or name
        shown.append(flag + equals + masked(value, name))
    return shown
