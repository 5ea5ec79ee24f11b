"""What a person sees at the terminal, and the run's own log."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from r1_recipes.common import locks, processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.masking import masked_text

logger = logging.getLogger(__name__)

LOG_FILE = "run.log"
# torch's elastic agent polls its processes every 0.1 s and ends the others when one failed.
_RANK_DELAY_SECONDS = 2.0


def say(text: str) -> None:
    """Write a result on stdout, where it can be piped. Nothing else does. A model's or a row's terminal codes become signs."""
    sys.stdout.write(_printable(text) + "\n")
    sys.stdout.flush()


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


@contextlib.contextmanager
def reported_errors() -> Iterator[None]:
    """Turn a :class:`RecipeError` into one line on stderr and exit status 2, and Ctrl-C into status 130.

    Print each error once per host. Other local ranks wait; the launcher usually ends them first.
    """
    try:
        yield
    except RecipeError as error:
        logger.debug("refused: %s", error)
        who = ""
        if processes.world_size() > 1:
            time.sleep(_RANK_DELAY_SECONDS * int(os.environ.get("LOCAL_RANK", 0)))
            who = f"{socket.gethostname()}, rank {processes.rank()}: "
        # Text from a server or a file may hold a terminal's control characters.
        text = _printable(masked_text(str(error)))
        line = f"error: {who}{text}"
        sys.stderr.write(line + "\n")
        if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):  # torch's launcher ends its own output with this file's message
            Path(file).write_text(json.dumps({"message": line, "timestamp": int(time.time())}), encoding="utf-8")
        raise SystemExit(2) from None
    except Exception:
        logger.exception("the run failed")  # into run.log: the terminal may be closed by the time somebody asks
        raise
    except KeyboardInterrupt:
        if processes.is_main_process():
            sys.stderr.write("stopped at once; the same command continues from the newest checkpoint, or starts again if there is none\n")
        raise SystemExit(130) from None
    finally:
        replace_handler(LogFile, None)
        locks.release()


class _MaskedFormatter(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        return masked_text(super().format(record))


class LogFile(logging.FileHandler):
    """The run's own log, ``run.log``."""

    def __init__(self, path: Path, mode: str = "a") -> None:
        super().__init__(path, mode, encoding="utf-8")
        self.setFormatter(_MaskedFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ"))


class Terminal(logging.StreamHandler):
    """Our lines on stderr."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(_MaskedFormatter("%(levelname)s %(name)s: %(message)s"))


def replace_handler(kind: type[logging.Handler], handler: logging.Handler | None) -> None:
    """Close the root logger's handlers of this kind, and add ``handler``: one process may do several runs."""
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, kind)]:
        root.removeHandler(old)
        old.close()
    if handler is not None:
        root.addHandler(handler)


def set_up_logging(training: Any) -> None:
    """Log to stderr: ours at level info on rank 0, errors elsewhere; Transformers' as ``training.log_level`` says."""
    if not any(isinstance(h, logging.StreamHandler) and h.stream is sys.stderr for h in logging.getLogger().handlers):
        replace_handler(Terminal, Terminal())
    logging.getLogger("r1_recipes").setLevel(logging.INFO if processes.is_main_process() else logging.ERROR)
    # "passive" leaves Transformers' level to the application.
    if getattr(training, "log_level", "passive") != "passive":
        import transformers  # heavy

        transformers.utils.logging.set_verbosity(training.get_process_log_level())
