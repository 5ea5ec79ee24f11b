"""Let only one process write into a folder.

The lock ends with its process, however the process ends. The lock file names the process.
"""

import fcntl
import os
import socket
import time
from pathlib import Path
from typing import IO

from r1_recipes.common.errors import RecipeError

LOCK_FILE = "_lock"  # the underscore keeps it out of what Transformers uploads
_held: dict[Path, IO[str]] = {}


def hold(folder: Path) -> None:
    """Create and lock a folder until :func:`release` or the end of this process.

    Raise RecipeError with the holder's name if another process has locked it.
    """
    path = folder.resolve() / LOCK_FILE
    if path in _held:
        raise RecipeError(f"{folder}: this process already writes into this folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", buffering=1)
        # A forked child does not inherit this lock.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, depending on the system
        holder = path.read_text().strip() if path.exists() else "it cannot be written"
        raise RecipeError(
            f"{folder}: another process is writing into this folder ({holder}). Fix: "
            "wait for it, end it, or choose another folder (--output_dir …)"
        ) from None
    except OSError as error:
        raise RecipeError(
            f"{folder}: cannot be written: {error.strerror}. Fix: free some disk space, or choose "
            f"another folder (--output_dir …)"
        ) from error
    file.truncate(0)
    since = time.strftime("%FT%TZ", time.gmtime())
    file.write(f"process {os.getpid()} on {socket.gethostname()}, since {since}\n")
    _held[path] = file


def release(folder: Path | None = None) -> None:
    """Unlock a folder, or with ``None`` every folder that this process holds."""
    for path in list(_held):
        if folder is None or path.parent == folder.resolve():
            _held.pop(path).close()
