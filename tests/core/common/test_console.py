"""Help texts can be printed where a terminal or a pipe has ASCII alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY


def command(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    places = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    return subprocess.run(
        [sys.executable, "-m", "r1_recipes", *words],
        capture_output=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": places, **environment},
        timeout=300,
    )


def test_every_help_text_can_be_printed_in_ascii(tmp_path: Path) -> None:
    for name in ("report", "evaluate"):
        done = command(name, "--help", folder=tmp_path, PYTHONIOENCODING="ascii")
        assert done.returncode == 0, done.stderr
