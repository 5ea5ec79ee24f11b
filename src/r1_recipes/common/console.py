"""What a person sees at the terminal, and the run's own log."""

import contextlib
import io
import json
import logging
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from r1_recipes.common import locks, processes
from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.files import open_unlinked
from r1_recipes.common.masking import masked_text

logger = logging.getLogger(__name__)

LOG_FILE = "run.log"
# torch's elastic agent polls its processes every 0.1 s and ends the others when one failed.
_RANK_DELAY_SECONDS = 2.0
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"


def say(text: str) -> None:
    """Write a result on stdout, where it can be piped. Nothing else does. A model's or a row's
    terminal codes become signs.
    """
    sys.stdout.write(_printable(text) + "\n")
    sys.stdout.flush()


def typed(word: str) -> str:
    """Quote a word of a command; where stdout cannot show it, by its bytes, which bash and zsh
    read.
    """
    try:
        word.encode(sys.stdout.encoding or "utf-8")
        return shlex.quote(word)
    except UnicodeEncodeError:
        shown = re.sub(
            rb"[^ -&(-\[\]-~]",
            lambda byte: b"\\%03o" % byte[0][0],
            word.encode("utf-8", "surrogateescape"),
        )
        return f"$'{shown.decode()}'"


def _take_every_text() -> None:
    """Let stdout and stderr escape what their encoding lacks (``LC_ALL=C``), and be there although
    somebody closed them.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):  # not a notebook's
            stream.reconfigure(errors="backslashreplace")


def _printable(text: str) -> str:
    # No space and no joiner of another script: a terminal's codes, what turns the letters round,
    # and what cannot be encoded.
    return re.sub(
        "[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", "\ufffd", text
    )


def bar(total: int, what: str, **options: Any) -> Any:
    """Return tqdm's bar, drawn on a terminal alone; its remaining time is that of the mean rate."""
    from tqdm.auto import tqdm  # heavy

    sink = sys.stderr if sys.stderr.isatty() else open(os.devnull, "w")  # noqa: SIM115
    off = not processes.is_main_process()
    return tqdm(
        total=total,
        desc=what,
        file=sink,
        disable=off,
        smoothing=0,
        delay=0,
        dynamic_ncols=True,
        **options,
    )


@contextlib.contextmanager
def progress(total: int, what: str, at_once: int) -> Iterator[Callable[[int], Any]]:
    """Yield what counts: on a bar, whose remaining time is unknown until one batch (``at_once``) is
    done; in a file, a line a minute.
    """
    last = time.monotonic()
    with bar(total, what, bar_format=_BAR.replace("{remaining}", "…"), mininterval=0) as shown:

        def count(more: int) -> None:
            nonlocal last
            if shown.n + more >= at_once:
                shown.bar_format = _BAR
            shown.update(more)
            if (
                not sys.stderr.isatty()
                and shown.n % at_once < more
                and time.monotonic() - last > 60
            ):
                last = time.monotonic()
                logger.info("%s", str(shown))

        yield count


@contextlib.contextmanager
def reported_errors() -> Iterator[None]:
    """Turn a :class:`RecipeError` into one line on stderr, once per host, and exit status 2; Ctrl-C
    into status 130.

    Around a whole command, its argument parser too: from here on stdout and stderr take every text.
    """
    _take_every_text()
    # For bars of libraries, read when tqdm is imported: none for what takes under three seconds,
    # none in a file.
    os.environ.setdefault("TQDM_DELAY", "3")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    # bitsandbytes warns of a kernel that only another package brings, for 4-bit models on CPUs.
    logging.getLogger("bitsandbytes.backends").setLevel(logging.ERROR)
    try:
        yield
    except RecipeError as error:
        _write_refusal(error)
        raise SystemExit(2) from None
    except Exception as error:
        if _is_out_of_memory(error):
            fix = (
                "a smaller batch, model or max_completion_length, or a higher limit (ulimit -v, "
                "the container's)"
            )
            sys.stderr.write(
                f"error: this process got no more memory: {first_line(error)} Fix: {fix}\n"
            )
            raise SystemExit(2) from None
        logger.exception(
            "the run failed"
        )  # into run.log: the terminal may be closed by the time somebody asks
        raise
    except KeyboardInterrupt:
        if processes.is_main_process():
            sys.stderr.write(
                "stopped at once; the same command continues from the newest checkpoint, or "
                "starts again if there is none\n"
            )
        raise SystemExit(130) from None
    finally:
        replace_handler(LogFile, None)
        locks.release()


def _write_refusal(error: RecipeError) -> None:
    """Write the error as one line, of several processes one after the other, each with its name."""
    logger.debug("refused: %s", error)
    process = ""
    if processes.world_size() > 1:
        time.sleep(_RANK_DELAY_SECONDS * int(os.environ.get("LOCAL_RANK", 0)))
        process = f"{socket.gethostname()}, rank {processes.rank()}: "
    # Text from a server or a file may hold a terminal's control characters.
    line = f"error: {process}{_printable(masked_text(str(error)))}"
    sys.stderr.write(line + "\n")
    if file := os.environ.get(
        "TORCHELASTIC_ERROR_FILE"
    ):  # torch's launcher ends its own output with this file's message
        Path(file).write_text(
            json.dumps({"message": line, "timestamp": int(time.time())}), encoding="utf-8"
        )


def _is_out_of_memory(error: Exception) -> bool:
    """Whether the machine's memory, not an accelerator's, ran out: Python, torch and C++ say it in
    words of their own.
    """
    if isinstance(error, RuntimeError):
        return "std::bad_alloc" in str(error) or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError)


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

    def handleError(self, record: logging.LogRecord) -> None:
        """Leave a full disk to what the run itself writes; the terminal has the line, and a
        traceback for each would hide it.
        """
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def _open(self) -> Any:
        return open_unlinked(Path(self.baseFilename), self.mode, encoding=self.encoding)


class Terminal(logging.StreamHandler):
    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(_MaskedFormatter("%(levelname)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line above the bars that are drawn."""
        tqdm = sys.modules.get("tqdm")
        with tqdm.tqdm.external_write_mode(file=sys.stderr) if tqdm else contextlib.nullcontext():
            super().emit(record)


def replace_handler(kind: type[logging.Handler], handler: logging.Handler | None) -> None:
    """Close the root logger's handlers of this kind, and add ``handler``: one process may do
    several runs.
    """
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, kind)]:
        root.removeHandler(old)
        with contextlib.suppress(OSError):  # a full disk: the last lines are lost
            old.close()
    if handler is not None:
        root.addHandler(handler)


def set_up_logging(training: Any) -> None:
    """Log to stderr: ours at level info on rank 0, errors elsewhere; Transformers' as
    ``training.log_level`` says.
    """
    if not any(
        isinstance(h, logging.StreamHandler) and h.stream is sys.stderr
        for h in logging.getLogger().handlers
    ):
        replace_handler(Terminal, Terminal())
    logging.getLogger("r1_recipes").setLevel(
        logging.INFO if processes.is_main_process() else logging.ERROR
    )
    logging.getLogger(
        "huggingface_hub"
    ).handlers.clear()  # each of its lines came twice: by its own handler, and by ours
    if (
        getattr(training, "log_level", "passive") != "passive"
    ):  # that leaves Transformers' level to the application
        import transformers  # heavy

        transformers.utils.logging.set_verbosity(training.get_process_log_level())
