"""What the user sees at the terminal, and the run's log file."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator

from r1_recipes.common import files, processes
from r1_recipes.common.errors import RecipeError

logger = logging.getLogger(__name__)
_handlers: list[logging.Handler] = []  # of the command that runs


def say(text: str) -> None:
    """Write a result to stdout, which can be piped. Only results go to stdout."""
    sys.stdout.write(text.encode(errors="replace").decode() + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def reported_errors() -> Iterator[None]:
    """Turn a RecipeError into one line on stderr and exit status 2, and Ctrl-C into status 130.

    Wrap a whole command in it, including its argument parser.
    """
    # tqdm reads these variables when it is imported. Libraries draw no bar for tasks under three
    # seconds, and none in a file.
    os.environ.setdefault("TQDM_DELAY", "3")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    # For 4-bit models on CPUs, bitsandbytes warns about a kernel that only another package brings.
    logging.getLogger("bitsandbytes.backends").setLevel(logging.ERROR)
    try:
        yield
    except RecipeError as error:
        rank = f"rank {processes.rank()}: " if processes.world_size() > 1 else ""
        sys.stderr.write(f"error: {rank}{error}\n")
        for handler in _handlers[1:]:  # the first writes to stderr, too
            handler.handle(logging.makeLogRecord({"levelname": "ERROR", "msg": str(error)}))
        raise SystemExit(2) from None
    except Exception:
        # run.log keeps the traceback after the terminal is closed.
        logger.exception("the run failed")
        raise
    except KeyboardInterrupt:
        if processes.rank() == 0:
            sys.stderr.write(
                "stopped at once. The same command resumes from what is saved, or starts again\n"
            )
        raise SystemExit(130) from None
    finally:
        close_logs()
        files.release()


class Terminal(logging.StreamHandler):
    def emit(self, record: logging.LogRecord) -> None:
        """Write a line above the progress bars."""
        tqdm = sys.modules.get("tqdm")
        with tqdm.tqdm.external_write_mode(file=sys.stderr) if tqdm else contextlib.nullcontext():
            super().emit(record)


def log_to(handler: logging.Handler, layout: str) -> None:
    """Let the root logger write to ``handler`` until the command ends."""
    handler.setFormatter(logging.Formatter(layout, "%Y-%m-%dT%H:%M:%S%z"))
    logging.getLogger().addHandler(handler)
    _handlers.append(handler)


def close_logs() -> None:
    """Close what :func:`log_to` opened: one process may do several runs."""
    while _handlers:
        handler = _handlers.pop()
        logging.getLogger().removeHandler(handler)
        with contextlib.suppress(OSError):  # on a full disk the last lines are lost
            handler.close()


def set_up_logging() -> None:
    """Log to stderr: this package at level info on rank 0, and only errors on other ranks.

    Transformers' trainer sets its own level, by ``log_level``.
    """
    close_logs()
    log_to(Terminal(), "%(levelname)s: %(message)s")
    logging.getLogger("r1_recipes").setLevel("INFO" if processes.rank() == 0 else "ERROR")
    # The hub's own handler and the root's would write each line twice.
    logging.getLogger("huggingface_hub").handlers.clear()
