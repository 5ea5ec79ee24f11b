"""One process at a time in a folder: the lock ends with its process, however that ends, and says who holds it."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import time
from pathlib import Path
from typing import TextIO

from r1_recipes.common.errors import RecipeError

logger = logging.getLogger(__name__)

LOCK_FILE = "_lock"  # the underscore keeps it out of what Transformers uploads
_held: dict[Path, TextIO] = {}


def hold(folder: Path) -> None:
    """Make the folder, and lock other processes out until :func:`release` or the end of this one.

    Raises:
        RecipeError: another process holds it (which one, on which host), or nothing can be written there.
    """
    remedy = "choose another folder (--output_dir …)"
    path = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
        try:
            if not _locked(file, folder):
                file.seek(0)
                holder = file.read(200).strip() or "it left no name"
                raise RecipeError(
                    f"{folder}: another process is writing into this folder ({holder}); wait for it, end it (after a kill -9, workers or "
                    f"an engine of vLLM may have been left behind), or {remedy}"
                )
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n")
            file.flush()
        except BaseException:
            _close(file)
            raise
    except OSError as error:
        raise RecipeError(f"{folder}: cannot be written: {error.strerror}; make room, or {remedy}") from error
    _held[path] = file


def _locked(file: TextIO, folder: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:  # some network disks
        logger.warning("%s: its disk cannot lock files (%s); nothing keeps a second process out", folder, error.strerror)
    return True


def release(folder: Path | None = None) -> None:
    """Unlock a folder; ``None``: every folder that this process holds."""
    for path in [path for path in _held if folder is None or path.parent == folder]:
        _close(_held.pop(path))


def _close(file: TextIO) -> None:
    with contextlib.suppress(OSError):  # what could not be written cannot be flushed either
        file.close()


# A lock belongs to the open file, which a forked child shares: a child that outlives this process would keep the folder locked.
os.register_at_fork(after_in_child=release)
