"""Atomic writes and checksums of files, and where files are that the package brings."""

import errno
import functools
import hashlib
import os
from pathlib import Path

SHIPPED = Path(__file__).parents[1] / "shipped"  # recipes/ and accelerate_configs/: links in a clone, copies in a wheel


def shipped(path: Path) -> Path:
    """Return the path, or the package's own file of that name if there is nothing here: ``recipes/r1_mini/general.jsonl``."""
    return SHIPPED / path if not path.exists() and (SHIPPED / path).is_file() else path


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


def disk_fault(error: BaseException, folder: Path) -> str | None:
    """Say what of ``folder`` and its disk made a write fail; ``None`` if an error has another cause."""
    if not folder.is_dir():
        return "the folder was removed or renamed while it was written to"
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
            return f"cannot be written: {os.strerror(found.errno)}"
        if isinstance(found, FileNotFoundError) and Path(found.filename or "").absolute().is_relative_to(folder.absolute()):
            return f"{found.filename} was removed while the run wrote to it"
        # safetensors' and torch's writers are no OSErrors; the latter's does not say why.
        if os.strerror(errno.ENOSPC) in str(found) or "PytorchStreamWriter failed" in str(found):
            return f"cannot be written: {os.strerror(errno.ENOSPC)}"
        found = found.__cause__ or found.__context__
    return None


def digest(path: Path) -> str:
    """Return a checksum of a file's content (XXH3, some 5 GB/s a core), cached while size and time stay the same."""
    stat = path.stat()
    return _digest(path, stat.st_size, stat.st_mtime_ns, stat.st_ino)


@functools.lru_cache(maxsize=1024)
def _digest(path: Path, *state: int) -> str:
    import xxhash

    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
