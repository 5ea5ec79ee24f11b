"""Run directories as training leaves them, and a page as a browser reads it."""

from __future__ import annotations

import base64
import gzip
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from r1_recipes.extras import report
from r1_recipes.extras.report.page import build

SOURCE = Path(report.__file__).parent


ASSETS = SOURCE / "assets"


EVIL = (
    "</script><script>window.hacked = 1</script><!-- <script> & \u2028 @packed@ <img src=x "
    "onerror='window.hacked = 1'>"
)


def write_run(
    folder: Path,
    metrics: dict[str, list[float]] | None = None,
    completions: dict[int, list[dict]] | None = None,
    **entry: Any,
) -> Path:
    """A run directory as training leaves it: one logged step an entry of ``metrics``, completions
    by step.
    """
    (folder / "completions").mkdir(parents=True)
    metrics = {"reward": [0.5]} if metrics is None else metrics
    count = max(map(len, metrics.values()))
    lines = [
        {"step": i + 1, **{key: values[i] for key, values in metrics.items() if i < len(values)}}
        for i in range(count)
    ]
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )
    run = {
        "recipe": "sums",
        "method": "grpo",
        "versions": {"trl": "1.16.0", "vllm": None},
        "finished": True,
        **entry,
    }
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    (folder / "recipe.yaml").write_text(
        "reward_funcs: [accuracy, format]\nreward_weights: [1.0, 0.2]\nmax_completion_length: 48\n",
        encoding="utf-8",
    )
    for step, rows in ({1: [completion(1)]} if completions is None else completions).items():
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(rows),
            folder / "completions" / f"completions_{step:05d}.parquet",
        )
    return folder


def completion(
    step: int, text: str = "<answer>4</answer>", prompt: str = "2+2?", **columns: Any
) -> dict[str, Any]:
    """One row in TRL's schema."""
    return {
        "step": step,
        "prompt": [{"role": "user", "content": prompt}],
        "completion": [{"role": "assistant", "content": text}],
        "accuracy": 1.0,
        "format": 0.5,
        "answer_parsed": "4",
        "solution": "4",
        "advantage": 0.25,
        **columns,
    }


class Page(HTMLParser):
    """Reads a page as a browser would: the scripts, by id where they have one, and every
    attribute.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: dict[str, str | None] | None = None
        self._text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._open, self._text = dict(attrs), ""

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self.scripts.append((self._open, self._text))
            self._open = None

    def script(self, name: str) -> str:
        return next(text for attributes, text in self.scripts if attributes.get("id") == name)

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.script("data"))

    @property
    def completions(self) -> dict[str, Any]:
        return json.loads(gzip.decompress(base64.b64decode(self.script("packed"))))


def page_of(*folders: Path) -> Page:
    return Page(build(folders))


def ramp(begin: float, end: float, count: int = 8) -> list[float]:
    """``begin`` for the first quarter, ``end`` for the last, straight between."""
    quarter = count // 4
    inner = count - 2 * quarter
    return (
        [begin] * quarter
        + [begin + (end - begin) * (i + 1) / (inner + 1) for i in range(inner)]
        + [end] * quarter
    )
