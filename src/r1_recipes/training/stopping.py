"""Stop on a signal: the first asks for a checkpoint after the step, the second stops at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from r1_recipes.common.processes import is_main_process
from r1_recipes.runs.run_dir import Run

# A launcher forwards the Ctrl-C that its workers have already had from the terminal.
_SAME_REQUEST_SECONDS = 2.0


def stop_signals() -> list[int]:
    """Signals that ask for a stop; SIGHUP too, unless ``nohup`` ignores it."""
    return [signal.SIGINT, signal.SIGTERM, *([] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP])]


@contextlib.contextmanager
def stop_on_signal(run: Run) -> Iterator[None]:
    """Set ``run.stop_requested`` on the first SIGINT, SIGTERM or SIGHUP; raise KeyboardInterrupt on the second."""
    saves = run.recipe.training.save_strategy != "no"
    promise = "with a checkpoint" if saves else "without a checkpoint, since save_strategy is 'no'"
    asked = None

    def request(number: int, frame: Any) -> None:
        nonlocal asked
        if asked is not None:
            if time.monotonic() - asked < _SAME_REQUEST_SECONDS:
                return
            raise KeyboardInterrupt
        asked = time.monotonic()
        run.stop_requested = True
        if is_main_process():
            # Not through sys.stderr: the signal may have interrupted a write to it.
            os.write(2, f"\nstopping after this step, {promise}; once more to stop at once\n".encode())

    previous = {}
    with contextlib.suppress(ValueError):  # not the main thread: the caller owns the signals
        previous = {number: signal.signal(number, request) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
