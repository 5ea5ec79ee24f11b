"""One process at a time in a folder: the lock ends with its process, however that ends, and says
who holds it.
"""

import fcntl
import logging
import os
import socket
import time
from pathlib import Path
from typing import IO

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import open_unlinked

logger = logging.getLogger(__name__)

LOCK_FILE = "_lock"  # the underscore keeps it out of what Transformers uploads
_held: dict[Path, IO[bytes]] = {}


def hold(folder: Path) -> None:
    """Make the folder, and lock other processes out until :func:`release` or the end of this one;
    an error names who holds it.
    """
    path = folder.resolve() / LOCK_FILE  # the folder may be a link, its files may not
    if path in _held:
        raise RecipeError(f"{folder}: this process is writing into this folder already")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open_unlinked(path, "a+b", buffering=0)
        _lock(file, folder)
        file.truncate(0)
        file.write(
            (
                f"process {os.getpid()} on {socket.gethostname()}, since "
                f"{time.strftime('%FT%TZ', time.gmtime())}\n"
            ).encode()
        )
    except OSError as error:
        raise RecipeError(
            f"{folder}: cannot be written: {error.strerror}; make room, or choose another "
            f"folder (--output_dir …)"
        ) from error
    _held[path] = file


def _lock(file: IO[bytes], folder: Path) -> None:
    try:
        fcntl.lockf(
            file, fcntl.LOCK_EX | fcntl.LOCK_NB
        )  # of this process alone: a forked child has no part in it
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, by the system
        time.sleep(1)  # its name follows its lock, after a moment on a busy machine
        file.seek(0)
        holder = file.read(200).decode(errors="replace").strip() or "it left no name"
        raise RecipeError(
            f"{folder}: another process is writing into this folder ({holder}); "
            "wait for it, end it, or choose another folder (--output_dir …)"
        ) from None
    except OSError as error:  # some network disks
        logger.warning(
            "%s: its disk cannot lock files (%s); nothing keeps a second process out",
            folder,
            error.strerror,
        )


def release(folder: Path | None = None) -> None:
    """Unlock a folder; ``None``: every folder that this process holds."""
    for path in [path for path in _held if folder is None or path.parent == folder.resolve()]:
        _held.pop(path).close()
