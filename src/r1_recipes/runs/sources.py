"""Checksums of what a run uses from outside the package: local data, user code, templates."""

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from r1_recipes.common import files
from r1_recipes.common.errors import RecipeError, first_line, is_foreign
from r1_recipes.recipe.types import Settings
from r1_recipes.runs import digests as hashing

Checksums = dict[str, str]  # by the place of the content

# Keys whose values may be `my_module:my_name`, `FILE:NAME` or a file.
_CODE = (
    "reward_funcs",
    "task_rewards",
    "tools",
    "environment",
    "mapper",
    "code_provider",
    "response_format",
    "chat_template",
)
_PACKAGE = Path(__file__).parents[1]
CODE = "the code of "  # places of user code begin with it


def texts(value: Any) -> Iterator[str]:
    """Yield every text in a setting, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts(item)


def digests(settings: Settings, *, imported: bool = True) -> Checksums:
    """Return checksums of the data and code that the settings name.

    The keys are ``the data in NAME`` and ``the code of NAME``. ``imported`` adds what this process
    has imported from beside that code, which may be more in another process.
    """
    mixture = settings.get("dataset_mixture") or {}
    data = [settings.get("dataset_name")]
    code = [settings.get(key) for key in _CODE]
    parts = [part for part in mixture.get("datasets") or [] if isinstance(part, dict)]
    for part in parts:
        data.append(part.get("id"))
        code.append(part.get("mapper"))
    code += [list(value) for value in code if isinstance(value, dict)]
    checksums = {}
    for name in texts(data):
        path = files.shipped(Path(name))
        with contextlib.suppress(OSError, ValueError):  # loading the data reports the error
            if path.exists():
                checksums[f"the data in {name}"] = _content(path)
    for name in texts(code):
        with contextlib.suppress(OSError, ValueError):  # most texts are not paths
            file = _file_of(name)
            if file is None:
                continue
            checksums[f"{CODE}{name.rpartition(':')[0] or name}"] = hashing.digest(file)
            if imported and file.suffix == ".py":
                for module, path in _imported_beside(file):
                    checksums[f"{CODE}{module}"] = hashing.digest(path)
    return checksums


def changed(then: Checksums, now: Checksums) -> list[str]:
    """Return places whose content differs between ``then`` and ``now``."""
    return [place for place in then if place in now and now[place] != then[place]]


def _imported_beside(file: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and file of each other module imported from the folder of user code."""
    file = file.resolve()
    for name, module in [*sys.modules.items()]:
        found = getattr(module, "__file__", None) or "<built-in>"
        if name == "__main__" or is_foreign(found):
            continue  # of thousands of modules, only the user's few paths are resolved
        path = Path(found).resolve()  # a link into an installed package is not the user's
        beside = path.is_relative_to(file.parent) and path != file and path.is_file()
        if beside and not is_foreign(str(path)):
            yield name, path


def _file_of(name: str) -> Path | None:
    """Return the file of user code or of a template, or None for a name of the package."""
    if Path(name).is_file():
        return Path(name)
    before, colon, _ = name.rpartition(":")
    if not colon:
        return None
    if Path(before).is_file():
        return Path(before)
    # The recipe's checks have imported the module.
    file = getattr(sys.modules.get(before), "__file__", None)
    return Path(file) if file and not Path(file).is_relative_to(_PACKAGE) else None


def _content(path: Path) -> str:
    """Return a checksum of a file, or of a folder's files and their names.

    Hidden files do not count.
    """
    if path.is_file():
        return hashing.sampled_digest(path)
    inside = []
    for file in path.rglob("*"):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if not hidden and file.is_file():  # what a hidden link leads to may be forbidden
            inside.append(file)
    return _digest_of_all(hashing.sampled_digest, path, sorted(inside))


def _digest_of_all(checksum: Callable[[Path], str], folder: Path, paths: Sequence[Path]) -> str:
    checksums = hashing.in_threads(checksum, paths)
    entries = [(str(path.relative_to(folder)), value) for path, value in checksums.items()]
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:16]


def by_content(value: Any, checksums: Checksums) -> Any:
    """Return a setting with the name of its data replaced by the data's checksum.

    Data that was moved is still the same data.
    """
    if isinstance(value, str):
        return checksums.get(f"the data in {value}", value)
    if isinstance(value, dict):
        return {key: by_content(item, checksums) for key, item in value.items()}
    if isinstance(value, list):
        return [by_content(item, checksums) for item in value]
    return value


def weights_stamp(folder: Path) -> str | None:
    """Return a checksum of a checkpoint folder's weights and tokenizer.

    Training changes it. Return ``None`` if the folder does not exist or holds no weights.
    """
    found: set[Path] = set()
    try:
        for pattern in ("*.safetensors", "*.bin", "tokenizer*", "chat_template*"):
            found.update(folder.glob(pattern))
        found.discard(folder / "training_args.bin")
        inside = [path for path in sorted(found) if path.is_file()]
        return _digest_of_all(hashing.digest, folder, inside) if inside else None
    except OSError as error:
        raise RecipeError(
            f"model_name_or_path: {folder}: its weights cannot be read: {first_line(error)} "
            "Fix: ask its owner to run chmod -R a+rX on it, or use your own copy"
        ) from error
