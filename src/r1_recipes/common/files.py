"""Atomic writes and checksums of files, and where files are that the package brings."""

import functools
import hashlib
import os
import shlex
from pathlib import Path

SHIPPED = Path(__file__).parents[1] / "shipped"  # recipes/ and accelerate_configs/: links in a clone, copies in a wheel


def shipped(path: Path) -> Path:
    """Return the path, or the package's own file of that name if there is nothing here: ``recipes/r1_mini/general.jsonl``."""
    return SHIPPED / path if not path.exists() and (SHIPPED / path).is_file() else path


def find_local(name: str, folder: Path) -> str:
    """Return a relative path that a recipe names: as it is if that is here or shipped, else in the recipe's ``folder`` if it is there."""
    beside = folder / name
    if os.path.isabs(name) or name.startswith("~") or not os.path.exists(beside) or shipped(Path(name)).exists():
        return name
    return str(beside)


def not_utf8(path: Path) -> str:
    """Say where a file is no UTF-8, and the command that converts it."""
    text, line = path.read_bytes(), 1
    found = "utf-16" if text.startswith((b"\xff\xfe", b"\xfe\xff")) else "cp1252"
    if b"\0" in text[:2]:  # UTF-16 without the mark in front
        found = "utf-16be" if text.startswith(b"\0") else "utf-16le"
    try:
        text.decode()
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
    fix = f"iconv -f {found} -t utf-8 {shlex.quote(str(path))} > NEW{path.suffix}" + ", or -f gbk" * (found == "cp1252")
    return f"line {line}: is not UTF-8. Fix: {fix}"


def find_yaml(path: Path) -> Path:
    """Return the file that a recipe's path or name means: here, below ``recipes/`` here, or one that is shipped."""
    places = (shipped(Path(folder, name)) for name in (path, Path(f"{path}.yaml")) for folder in ("", "recipes"))
    return next((place for place in places if place.is_file()), path)


def write_whole(path: Path, text: str) -> None:
    """Write atomically: another rank may be reading the file."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    with part.open("x", encoding="utf-8") as file:  # "x" follows no link that somebody else's folder holds
        file.write(text)
    part.replace(path)


def digest(path: Path) -> str:
    """Return a checksum of a file's content (XXH3, some 5 GB/s a core), cached while size and time stay the same."""
    stat = path.stat()
    return _digest(path, stat.st_size, stat.st_mtime_ns, stat.st_ino)


@functools.lru_cache(maxsize=1024)
def _digest(path: Path, *state: int) -> str:
    import xxhash

    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
