"""What the user sees at the terminal, and the run's log file."""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from r1_recipes.common import files, processes
from r1_recipes.common.errors import RecipeError

logger = logging.getLogger(__name__)


def say(text: str) -> None:
    """Write a result to stdout, which can be piped. Only results go to stdout."""
    sys.stdout.write(text.encode(errors="replace").decode() + "\n")
    sys.stdout.flush()


def bar(total: int, label: str, **options: Any) -> Any:
    """Return a tqdm progress bar, which the main process draws on a terminal only.

    It counts in a file, too. The remaining time follows from the mean rate.
    """
    from tqdm.auto import tqdm  # heavy

    options |= {"desc": label, "smoothing": 0, "delay": 0, "dynamic_ncols": True}
    options["file"] = sys.stderr if sys.stderr.isatty() else open(os.devnull, "w")  # noqa: SIM115
    return tqdm(total=total, disable=not processes.is_main_process(), **options)


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
        raise SystemExit(2) from None
    except Exception:
        # run.log keeps the traceback after the terminal is closed.
        logger.exception("the run failed")
        raise
    except KeyboardInterrupt:
        if processes.is_main_process():
            sys.stderr.write(
                "stopped at once. The same command resumes from what is saved, or starts again\n"
            )
        raise SystemExit(130) from None
    finally:
        replace_handler(LogFile, None)
        files.release()


class LogFile(logging.FileHandler):
    def __init__(self, path: Path, mode: str = "a") -> None:
        super().__init__(path, mode, encoding="utf-8", errors="replace")
        layout = logging.Formatter(
            "%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ"
        )
        layout.converter = time.gmtime
        self.setFormatter(layout)


class Terminal(logging.StreamHandler):
    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line above the progress bars."""
        tqdm = sys.modules.get("tqdm")
        with tqdm.tqdm.external_write_mode(file=sys.stderr) if tqdm else contextlib.nullcontext():
            super().emit(record)


def replace_handler(handler_type: type[logging.Handler], handler: logging.Handler | None) -> None:
    """Close the root logger's handlers of a class, and add ``handler``.

    One process may do several runs.
    """
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, handler_type)]:
        root.removeHandler(old)
        with contextlib.suppress(OSError):  # on a full disk the last lines are lost
            old.close()
    if handler is not None:
        root.addHandler(handler)


def set_up_logging(training: Any) -> None:
    """Log to stderr: this package at level info on rank 0, and only errors on other ranks.

    Transformers logs at ``training.log_level``.
    """
    replace_handler(Terminal, Terminal())
    level = logging.INFO if processes.is_main_process() else logging.ERROR
    logging.getLogger("r1_recipes").setLevel(level)
    # The hub's own handler and the root's would write each line twice.
    logging.getLogger("huggingface_hub").handlers.clear()
    # "passive" leaves Transformers' level to the application.
    if getattr(training, "log_level", "passive") != "passive":
        import transformers  # heavy

        transformers.utils.logging.set_verbosity(training.get_process_log_level())
