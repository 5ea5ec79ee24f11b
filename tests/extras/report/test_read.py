"""Scores beside a run."""

from __future__ import annotations

import json
from pathlib import Path

from r1_recipes.extras.report.read import finite, read_run
from r1_recipes.metrics.intervals import mean_interval
from tests.support.report_runs import page_of, write_run
from tests.support.rewards import seconds


def test_evaluations_beside_the_run(tmp_path: Path) -> None:
    right = [1.0, 0.0, 1.0, 1.0]
    scores = {
        "model": "out/grpo",
        "greedy": right,
        "mean_tokens": 36.5,
        "language": None,
        "examples": [{"question": "2+2?"}],
    }
    folder = write_run(tmp_path / "grpo")
    raw = {**scores, "model": "raw", "mean_tokens": 40}
    made = {
        "stages": {
            "raw": {"label": "the raw model", "scores": raw},
            "grpo": {"label": "GRPO", "scores": scores, "yielded": None},
        }
    }
    (tmp_path / "results.json").write_text(json.dumps(made), encoding="utf-8")
    (folder / "torn").mkdir()
    (folder / "torn" / "results.json").write_text("{", encoding="utf-8")
    # evaluate --output RUN/evaluation
    (folder / "evaluation").mkdir()
    entry = {
        "model": "out/n",
        "pass_at": {"2": [0.5, 0.25, 0.75]},
        "rewards": {"format": [1.0, None, 0.5], "none": [None]},
    }
    (folder / "evaluation" / "results.json").write_text(json.dumps([entry]), encoding="utf-8")
    data = page_of(folder).data
    interval = [finite(bound) for bound in mean_interval(right)]
    assert interval[0] == 0.75
    assert data["evaluations"] == [
        {
            "source": "results.json",
            "label": "n",
            "model": "out/n",
            "values": {
                "rewards/format": [finite(bound) for bound in mean_interval([1.0, 0.5])],
                "pass@2": [0.5, 0.25, 0.75],
            },
        },
        # A pipeline's table has its labels and its order.
        {
            "source": "results.json",
            "label": "the raw model",
            "model": "raw",
            "values": {"greedy": interval, "mean_tokens": [40.0, None, None]},
        },
        {
            "source": "results.json",
            "label": "GRPO",
            "model": "out/grpo",
            "values": {"greedy": interval, "mean_tokens": [36.5, None, None]},
        },
    ]
    assert [(item["code"], item["values"]["file"]) for item in data["runs"][0]["missing"]] == [
        ("torn_file", "results.json")
    ]


def test_yaml_that_would_take_minutes_and_endless_names_are_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "recipe.yaml").write_text("a: x" + "\nb: 1" * 250_000)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 1, **{f"m{number}": 1 for number in range(9_999)}}) + "\n")
    with seconds(5):
        run = read_run(folder)
    missing = {one["values"]["file"]: one["values"].get("reason", "") for one in run.missing}
    assert "1250004 characters" in missing["recipe.yaml"] and "2000" in missing["metrics.jsonl"]
    assert len(run.series) == 2_000


def test_a_file_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("ab") as file:
        file.truncate(1 << 30)  # without a block on the disk
    missing = [(one["code"], one["values"]["file"]) for one in read_run(folder).missing]
    assert ("torn_file", "metrics.jsonl") in missing
