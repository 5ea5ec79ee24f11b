"""Let only one process write into a folder.

The lock ends with its process, however the process ends. The lock file names the process.
"""

import fcntl
import logging
import os
import socket
import time
from pathlib import Path
from typing import IO

from r1_recipes.common.errors import RecipeError

logger = logging.getLogger(__name__)

LOCK_FILE = "_lock"  # the underscore keeps it out of what Transformers uploads
_held: dict[Path, IO[str]] = {}


def hold(folder: Path) -> None:
    """Create and lock a folder until :func:`release` or the end of this process.

    Raise RecipeError with the holder's name if another process has locked it.
    """
    release(folder)  # an earlier run of this process: closing its file later would drop this lock
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / LOCK_FILE).open("a+", buffering=1)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a forked child does not inherit it
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, depending on the system
        file.seek(0)
        raise RecipeError(
            f"{folder}: another process is writing into this folder ({file.read().strip()}). Fix: "
            "wait for it, end it, or choose another folder (--output_dir …)"
        ) from None
    except OSError as error:
        logger.warning("%s: this disk has no file locks (%s)", folder, error.strerror)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}, since {time.ctime()}\n")
    _held[folder.resolve()] = file


def release(folder: Path | None = None) -> None:
    """Unlock a folder, or with ``None`` every folder that this process holds."""
    for path in [folder.resolve()] if folder else list(_held):
        if path in _held:
            _held.pop(path).close()
