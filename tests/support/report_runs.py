"""Run directories as training leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet


def write_run(
    folder: Path,
    metrics: dict[str, list[float]] | None = None,
    completions: dict[int, list[dict]] | None = None,
    recipe: str = "reward_funcs: [accuracy, format]\nmax_completion_length: 48\n",
) -> Path:
    """A finished run: one logged step an entry of ``metrics``, completions by step."""
    (folder / "completions").mkdir(parents=True)
    metrics = {"reward": [0.5]} if metrics is None else metrics
    lines = [
        {"step": i + 1, **{key: values[i] for key, values in metrics.items() if i < len(values)}}
        for i in range(max(map(len, metrics.values())))
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    (folder / "run.json").write_text('{"recipe": "sums", "method": "grpo", "finished": true}')
    (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
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
        "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": prompt}],
        "completion": [{"role": "assistant", "content": text}],
        "accuracy": 1.0,
        "format": 0.5,
        "answer_parsed": "4",
        "refused": "",
        "solution": "4",
        "advantage": 0.25,
        **columns,
    }
