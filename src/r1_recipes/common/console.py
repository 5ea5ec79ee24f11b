"""What the user sees at the terminal, and the run's log file."""

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from r1_recipes.common import locks, processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.masking import masked_text

logger = logging.getLogger(__name__)

LOG_FILE = "run.log"
# torch's elastic agent polls its processes every 0.1 s, and ends the others when one has failed.
_RANK_DELAY_SECONDS = 2.0
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"


def say(text: str) -> None:
    """Write a result to stdout, which can be piped.

    Only results go to stdout. Terminal codes of a model or a row are replaced by U+FFFD.
    """
    sys.stdout.write(_printable(text) + "\n")
    sys.stdout.flush()


def _printable(text: str) -> str:
    # Terminal codes, marks that reverse the direction of text, and surrogates, which cannot be
    # encoded. Spaces and joiners of other scripts stay.
    return re.sub(
        "[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", "\ufffd", text
    )


def bar(total: int, label: str, **options: Any) -> Any:
    """Return a tqdm progress bar, which is drawn only on a terminal.

    The remaining time follows from the mean rate.
    """
    from tqdm.auto import tqdm  # heavy

    sink = sys.stderr if sys.stderr.isatty() else open(os.devnull, "w")  # noqa: SIM115
    return tqdm(
        total=total,
        desc=label,
        file=sink,
        disable=not processes.is_main_process(),
        smoothing=0,
        delay=0,
        dynamic_ncols=True,
        **options,
    )


@contextlib.contextmanager
def progress(total: int, label: str, at_once: int) -> Iterator[Callable[[int], Any]]:
    """Yield a function that counts completed items.

    On a terminal, the bar shows a remaining time after the first batch of ``at_once`` items. In a
    file, a line is logged at most once a minute.
    """
    last = time.monotonic()
    with bar(total, label, bar_format=_BAR.replace("{remaining}", "…"), mininterval=0) as tqdm_bar:

        def count(added: int) -> None:
            nonlocal last
            if tqdm_bar.n + added >= at_once:
                tqdm_bar.bar_format = _BAR
            tqdm_bar.update(added)
            if (
                not sys.stderr.isatty()
                and tqdm_bar.n % at_once < added
                and time.monotonic() - last > 60
            ):
                last = time.monotonic()
                logger.info("%s", str(tqdm_bar))

        yield count


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
        _write_refusal(error)
        raise SystemExit(2) from None
    except Exception:
        # run.log keeps the traceback after the terminal is closed.
        logger.exception("the run failed")
        raise
    except KeyboardInterrupt:
        if processes.is_main_process():
            sys.stderr.write(
                "stopped at once. The same command resumes from the newest checkpoint, or "
                "starts again if there is none\n"
            )
        raise SystemExit(130) from None
    finally:
        replace_handler(LogFile, None)
        locks.release()


def _write_refusal(error: RecipeError) -> None:
    """Write the error as one line. Of several processes, each waits its turn and names itself."""
    logger.debug("refused: %s", error)
    process = ""
    if processes.world_size() > 1:
        time.sleep(_RANK_DELAY_SECONDS * int(os.environ.get("LOCAL_RANK", 0)))
        process = f"rank {processes.rank()}: "
    # Text from a server or a file may hold a terminal's control characters.
    sys.stderr.write(f"error: {process}{_printable(masked_text(str(error)))}\n")


class _MaskedFormatter(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        return _printable(masked_text(super().format(record)))


class LogFile(logging.FileHandler):
    def __init__(self, path: Path, mode: str = "a") -> None:
        super().__init__(path, mode, encoding="utf-8")
        self.setFormatter(
            _MaskedFormatter(
                "%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ"
            )
        )


class Terminal(logging.StreamHandler):
    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(_MaskedFormatter("%(levelname)s: %(message)s"))

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
    if not any(
        isinstance(h, logging.StreamHandler) and h.stream is sys.stderr
        for h in logging.getLogger().handlers
    ):
        replace_handler(Terminal, Terminal())
    logging.getLogger("r1_recipes").setLevel(
        logging.INFO if processes.is_main_process() else logging.ERROR
    )
    # The hub's own handler and the root's would write each line twice.
    logging.getLogger("huggingface_hub").handlers.clear()
    # "passive" leaves Transformers' level to the application.
    if getattr(training, "log_level", "passive") != "passive":
        import transformers  # heavy

        transformers.utils.logging.set_verbosity(training.get_process_log_level())
