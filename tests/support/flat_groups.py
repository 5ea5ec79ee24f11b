"""A reward without spread for some prompts, and a record of what was sampled."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS: list[tuple[int, list[str]]] = []  # the optimizer step and the questions of each round
SECONDS = 0.02  # that a call takes
_calls = 0


def is_flat(solution: str) -> bool:
    """Return whether all completions of a row get the same reward."""
    return int(solution) % 3 != 0


def spread(
    completions: list,
    solution: list[str],
    log_extra: Callable[[str, list], None],
    trainer_state: Any,
    **columns: Any,
) -> list[float]:
    """Score by letters, but 0.25 for a flat question; with ``R1_TEST_KILL`` the process is killed
    in that call.
    """
    global _calls
    if trainer_state.train_batch_size is not None:  # not the try before training
        _calls += 1
        time.sleep(SECONDS)
        ROUNDS.append((trainer_state.global_step, list(solution)))
        if os.environ.get("R1_TEST_KILL") == str(_calls):
            os.kill(os.getpid(), signal.SIGKILL)
    log_extra("asked", list(solution))
    texts = [turns[-1]["content"] for turns in completions]
    return [
        0.25 if is_flat(asked) else letters(text)
        for asked, text in zip(solution, texts, strict=True)
    ]


def letters(text: str) -> float:
    """Return a number that differs between completions of a random model."""
    return sum(map(ord, text)) % 997 / 1000


def write_rows(path: Path, count: int) -> str:
    """Write rows whose question is their number."""
    rows = [{"question": f"{row}?", "answer": f"#### {row}"} for row in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)
