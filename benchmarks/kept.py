"""What the benchmarks of hours share: a folder has one set of settings, and a command that is told to stop may save first."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from r1_recipes.common import processes

# The allocator keeps its large blocks; the Makefile says why.
_ENVIRONMENT = {**os.environ, "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}


def hold_settings(parser: argparse.ArgumentParser, output: Path, settings: dict[str, Any]) -> None:
    """Make the folder for runs with these settings; the parser's error where it holds runs with others."""
    output.mkdir(parents=True, exist_ok=True)
    kept = output / "settings.json"
    if not kept.exists():  # another process of the same benchmark may read it now
        kept.write_text(json.dumps(settings), encoding="utf-8")
    elif (found := kept.read_text(encoding="utf-8")) != json.dumps(settings):
        parser.error(f"--output {output}: holds runs with other settings, {found}; choose another folder")


def run_logged(words: list[str], folder: Path, *, may_fail: bool = False) -> str:
    """Python with these words in a process of its own; its standard output, which goes to ``folder/log.txt`` too, as its errors do.

    Raises:
        SystemExit: it failed; the log's end is shown.
    """
    log = folder / "log.txt"
    sys.stderr.write(f"{words[1]} … (what it says: {log})\n")
    with log.open("a", encoding="utf-8") as sink:
        # In a group of its own a terminal's Ctrl-C does not reach it a second time.
        command = [sys.executable, *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, text=True, env=_ENVIRONMENT, process_group=0)
        with processes.handled_by(lambda number, frame: process.terminate()):
            text = process.communicate()[0]
        sink.write(text)
    if process.returncode and not may_fail:
        tail = log.read_text(encoding="utf-8", errors="replace")[-3000:]
        raise SystemExit(f"{tail}\nerror: {' '.join(words[:3])} ended with status {process.returncode}: see {log}")
    return text
