"""Stop on a signal: the first asks for a checkpoint after the step, the second stops at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from r1_recipes.common.processes import is_main_process
from r1_recipes.runs.run_dir import Run

# A launcher forwards the Ctrl-C that its workers have already had from the terminal.
_SAME_REQUEST_SECONDS = 2.0


@contextlib.contextmanager
def handled_by(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Hand SIGINT, SIGTERM and, unless ``nohup`` ignores it, SIGHUP to ``handler``."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    previous = {}
    with contextlib.suppress(ValueError):  # not the main thread: the caller owns the signals
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if hangs_up else (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


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

    with handled_by(request):
        yield
