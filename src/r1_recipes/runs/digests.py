"""Checksums of files."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


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
