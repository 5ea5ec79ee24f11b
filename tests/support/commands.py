"""Commands that have to succeed."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conftest import REPOSITORY


def succeed(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    folder: Path = REPOSITORY,
    stdin: str | None = None,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; the end of what it wrote to stderr is the failure's message."""
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done
