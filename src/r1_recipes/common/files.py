"""Atomic writes, files that are not links, checksums, and the files that the package ships."""

import contextlib
import errno
import functools
import hashlib
import os
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from r1_recipes.common.errors import RecipeError

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
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


def not_utf8(path: Path) -> str:
    """Return where a file is not UTF-8, and the command that converts it."""
    text = path.read_bytes()
    line = 1
    encoding = "utf-16" if text.startswith((b"\xff\xfe", b"\xfe\xff")) else "cp1252"
    if b"\0" in text[:2]:  # UTF-16 without a byte order mark
        encoding = "utf-16be" if text.startswith(b"\0") else "utf-16le"
    try:
        text.decode()
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
    fix = f"iconv -f {encoding} -t utf-8 {shlex.quote(str(path))} > NEW{path.suffix}"
    if encoding == "cp1252":
        fix += ", or -f gbk"
    return f"line {line}: is not UTF-8. Fix: {fix}"


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
    part.unlink(missing_ok=True)
    # Mode "x" does not follow a link in an untrusted folder. A file name that is not Unicode is
    # escaped, and JSON can read the escape.
    with part.open("x", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    part.replace(path)


@contextlib.contextmanager
def disk_problems_named(folder: Path) -> Iterator[None]:
    """Turn an error of the disk into a RecipeError that says how to resume."""
    try:
        yield
    except RecipeError:
        raise
    except Exception as error:
        if problem := disk_problem(error, folder):
            raise RecipeError(
                f"output_dir {folder}: {problem}. Fix: free some disk space, then run the same "
                "command. It resumes from what is saved, or starts again if nothing is"
            ) from error
        raise


def disk_problem(error: BaseException, folder: Path) -> str | None:
    """Return how ``folder`` or its disk made a write fail, or ``None`` for another cause."""
    cause: BaseException | None = error
    full = os.strerror(errno.ENOSPC)
    absent = os.strerror(errno.ENOENT)
    while cause is not None:
        text = str(cause)
        # A host that shares no disk with rank 0 may not have the folder, whatever has failed.
        if not folder.is_dir() and (isinstance(cause, FileNotFoundError) or absent in text):
            return "the folder was removed or renamed while the run wrote to it"
        if isinstance(cause, OSError) and cause.errno in _DISK_ERRORS:
            return f"cannot be written: {os.strerror(cause.errno)}"
        if isinstance(cause, FileNotFoundError):
            missing = Path(cause.filename or "").absolute()
            if missing.is_relative_to(folder.absolute()):
                return f"{cause.filename} was removed while the run wrote to it"
        # The writers of safetensors and torch raise no OSError, and torch does not give the reason:
        # "PytorchStreamWriter failed writing file", or "[enforce fail at inline_container.cc:672]".
        if full in text or "PytorchStreamWriter failed" in text or "inline_container.cc" in text:
            return f"cannot be written: {full}"
        cause = cause.__cause__ or cause.__context__
    return None


def open_unlinked(path: Path, mode: str, **options: Any) -> IO[Any]:
    """Open a run folder's own file, as ``open`` does.

    Raise RecipeError for a link, a pipe, a socket or a device: a link can lead anywhere, and a pipe
    can block forever.
    """

    def opener(name: str, flags: int) -> int:
        handle = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.ENXIO, "is not a regular file", name)
        return handle

    try:
        return open(path, mode, opener=opener, **options)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            refuse_link(path)
        raise


def refuse_link(path: Path) -> None:
    """Raise RecipeError if ``path`` itself is a link, a pipe, a socket or a device."""
    if path.exists() and not (path.is_file() or path.is_dir() or path.is_symlink()):
        raise RecipeError(
            f"{path}: is a pipe, a socket or a device, not a file. Fix: remove it, or choose "
            f"another folder"
        )
    if path.is_symlink():
        raise RecipeError(
            f"{path}: is a link to {os.readlink(path)}, but a run writes only into its own files. "
            "Fix: remove the link, or choose another folder (--output_dir …)"
        )


def file_text(path: Path, limit: int = 16 << 20, errors: str = "strict") -> str:
    """Read a file of an untrusted run folder. Symlinks, pipes and devices are refused."""
    if path.is_symlink() or not path.is_file():
        raise FileNotFoundError(f"{path.name} is not a regular file")
    size = path.stat().st_size
    if size > limit:
        raise ValueError(f"{path.name} has {size} bytes, but at most {limit} are read")
    return path.read_text(encoding="utf-8", errors=errors)


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
