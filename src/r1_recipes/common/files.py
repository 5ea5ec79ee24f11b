"""Atomic writes, checksums, and the files that the package ships."""

import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    beside = folder / name
    if (
        os.path.isabs(name)
        or name.startswith("~")
        or not os.path.exists(beside)
        or shipped(Path(name)).exists()
    ):
        return name
    return str(beside)


def find_yaml(path: Path) -> Path:
    """Return the file that a recipe's path or name means.

    Search the working directory, its ``recipes/``, and the shipped files.
    """
    for name in (path, f"{path}.yaml"):
        for folder in ("", "recipes"):
            place = shipped(Path(folder, name))
            if place.is_file():
                return place
    return path


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, because another rank may be reading it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8", errors="backslashreplace")
    part.replace(path)


def digest(path: Path, pieces: int = 0) -> str:
    """Return the XXH3 checksum of a file, about 5 GB/s per core.

    With ``pieces``, read only that many pieces of 1 MiB. The checksum is cached while the file's
    size and time stay the same.
    """
    state = path.stat()
    return _digest(path, pieces, state.st_size, state.st_mtime_ns, state.st_ino)


def sampled_digest(path: Path) -> str:
    """Return :func:`digest` of a file, or a sampled checksum if it is larger than 1 GiB.

    The sample is the size and 1,024 pieces of 1 MiB, evenly spaced.
    """
    return digest(path, _PIECES if path.stat().st_size > _PIECES * _PIECE else 0)


_PIECES, _PIECE = 1024, 2**20


@functools.lru_cache(maxsize=4096)
def _digest(path: Path, pieces: int, size: int, *state: int) -> str:
    import xxhash

    with path.open("rb") as file:
        if not pieces:
            return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
        checksum = xxhash.xxh3_128(str(size).encode())
        for number in range(pieces):
            file.seek((size - _PIECE) * number // (pieces - 1))
            checksum.update(file.read(_PIECE))
        return checksum.hexdigest()


def in_threads(checksum: Callable[[Path], str], paths: Sequence[Path]) -> dict[Path, str]:
    """Return checksums by path, in the order of the paths.

    Hashing and reading release the GIL, so threads run in parallel.
    """
    with ThreadPoolExecutor(max_workers=8) as pool:
        return dict(zip(paths, pool.map(checksum, paths), strict=True))
