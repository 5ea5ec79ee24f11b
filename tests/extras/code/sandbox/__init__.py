"""Programs in a sandbox, and commands that stand in for one."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from r1_recipes.extras.code.sandbox import Call, Outcome, Sandbox

# Time enough for an honest program on a machine that does other things; only those that overrun get
# less.
ROOM = {"cpu_seconds": 30}
SHORT = {"cpu_seconds": 1}


def run(
    box: Sandbox,
    code: str,
    stdin: bytes = b"",
    function: str | None = None,
    limits: dict = ROOM,
    room: int = 1 << 16,
) -> Outcome:
    return box.run(textwrap.dedent(code), Call(stdin, room, function, **limits))


def command(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
    (folder / name).chmod(0o755)
