"""Run notebooks/quickstart.ipynb and keep its outputs: python tools/notebook.py.

What differs between machines is left out of the outputs: paths, seconds, free memory.
"""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"
SECONDS = 1200  # of one cell, on a busy machine
# What differs -> what is written instead.
VARYING = (
    (re.compile(r"\S*/r1-recipes/(SmolLM2-135M-Instruct)"), r"~/.cache/r1-recipes/\1"),
    (re.compile(r"the device has [\d.]+ GB"), "the device has … GB"),
    (re.compile(r"the disk of \S+ has [\d.]+ GB"), "the disk has … GB"),
    (re.compile(r"^( +\d/5 .*?) +[\d.]+ +\d\d:\d\d *$", re.MULTILINE), r"\1       …      …"),
    (re.compile(r"^(?:steps|sampling): +\d+%.*\n", re.MULTILINE), ""),
    (re.compile(r"\d+:\d\d:\d\d \(h:mm:ss\) at [\d.]+ s"), "… at … s"),
)
# What a terminal would not show: colours, and what a carriage return overwrites.
UNSEEN = re.compile(r"\x1b\[[\d;]*m|^[^\n]*\r(?!\n)|\r(?=\n)", re.MULTILINE)


def execute(folder: Path) -> Any:
    """Return the notebook with the outputs of a run in a folder."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    os.environ["PYTHONPATH"] = str(ROOT / "src")
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    return client.execute()


def tidied(notebook: Any, folder: Path) -> Any:
    """Return the notebook without what differs between machines."""
    here = {str(folder.resolve()): ".", str(folder): ".", sys.executable: "python"}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = together(cell.outputs)
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = UNSEEN.sub("", output.text)
                for path, name in here.items():
                    output.text = output.text.replace(path, name)
                for pattern, instead in VARYING:
                    output.text = pattern.sub(instead, output.text)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def together(outputs: list[Any]) -> list[Any]:
    """Return a cell's outputs, each stream as one text."""
    merged: list[Any] = []
    for output in outputs:
        last = merged[-1] if merged else None
        if last and output.output_type == last.output_type == "stream":
            last.text += output.text
        else:
            merged.append(output)
    return merged


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        finished = tidied(execute(Path(scratch)), Path(scratch))
    nbformat.write(finished, NOTEBOOK)
