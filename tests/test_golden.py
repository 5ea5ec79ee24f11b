"""Behaviour frozen in tests/golden: the settings of the first recipes, values of rewards, metrics
of tiny runs.

After an intended change, or an upgrade of TRL or torch, rewrite the files with
R1_RECIPES_WRITE_GOLDEN=1 and explain each changed line in the commit. Only public names and the
recipe loader are used here, so that modules can move.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.rows import rows
from r1_recipes.recipe.load import load_recipe
from r1_recipes.rewards import REWARDS, get_reward_funcs, reward_parameters
from tests.conftest import RECIPES, REPOSITORY, method_of

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent / "golden"
FIRST = [path for path in RECIPES if path.parent.name == "recipes" or path.stem.startswith("demo_")]
# Settings that the trainers derive from the device or the log level.
DERIVED = {
    "accelerator_config",
    "dataloader_pin_memory",
    "debug",
    "disable_tqdm",
    "pad_to_multiple_of",
}
# Metrics that depend on the machine, its load, or what this process has judged before: only their
# names are frozen.
UNSTEADY = re.compile(r"time|second")
# Short enough for the rows here to reach both ends of the curves.
PARAMETERS = {"cosine_max_len": 100, "max_completion_len": 120, "soft_punish_cache": 60}
# No row of benchmarks/rows.py has the columns that these need.
OF_TASKS = {"countdown", "code", "binary_code"}
OF_SHAPE = [
    "accuracy",
    "exact_match",
    *sorted(name for name in REWARDS if re.search(r"format|tag|xml|steps|integer", name)),
]


def check(name: str, now: Any, rel: float = 0.0, abs: float = 0.0) -> None:
    """Compare with a golden file. With R1_RECIPES_WRITE_GOLDEN, write it first."""
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("R1_RECIPES_WRITE_GOLDEN"):
        # One line for each list and each scalar.
        path.write_text(
            yaml.safe_dump(now, default_flow_style=None, width=10**6, allow_unicode=True),
            encoding="utf-8",
        )
    found = differences(yaml.safe_load(path.read_text(encoding="utf-8")), now, name, rel, abs)
    assert not found, "\n".join(
        [
            f"{len(found)} differences from {path.relative_to(REPOSITORY)}. If they are meant, write "
            "them: R1_RECIPES_WRITE_GOLDEN=1 pytest tests/test_golden.py",
            *found[:40],
        ]
    )


def differences(golden: Any, now: Any, where: str, rel: float, abs: float) -> list[str]:
    if isinstance(golden, dict) and isinstance(now, dict):
        pairs = [
            (f"{where}: {key}", golden.get(key, "(nothing)"), now.get(key, "(nothing)"))
            for key in {**golden, **now}
        ]
    elif isinstance(golden, list) and isinstance(now, list) and len(golden) == len(now):
        pairs = [
            (f"{where}[{index}]", old, new)
            for index, (old, new) in enumerate(zip(golden, now, strict=True))
        ]
    else:
        numbers = all(
            isinstance(value, int | float) and not isinstance(value, bool)
            for value in (golden, now)
        )
        same = math.isclose(golden, now, rel_tol=rel, abs_tol=abs) if numbers else golden == now
        return [] if same else [f"{where}: golden {golden!r}, now {now!r}"]
    return [line for place, old, new in pairs for line in differences(old, new, place, rel, abs)]


def test_resolved_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    found = {}
    for path in FIRST:
        name, method = path.relative_to(REPOSITORY).as_posix(), method_of(path)
        own = yaml.safe_load(path.read_text(encoding="utf-8"))
        # Without an accelerator the loader changes these keys unless they are typed, and with
        # several GPUs the batch sizes change.
        typed = {"use_cpu": "true"} | {
            key: str(own[key]) for key in ("use_vllm", "bf16", "fp16") if key in own
        }
        recipe = load_recipe([name, *(f"--{key}={value}" for key, value in typed.items())], method)
        parts = {
            key: value
            for part in (recipe.script, recipe.training, recipe.model)
            for key, value in not_default(part).items()
        }
        found[name] = {
            "method": method,
            **parts,
            **recipe.reward_params,
            "use_cpu": own.get("use_cpu", False),
        }
    check("recipes", found)


def not_default(part: Any) -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(part):
        default = (
            field.default_factory()
            if field.default_factory is not dataclasses.MISSING
            else field.default
        )
        value = getattr(part, field.name)
        if value != default and field.name not in DERIVED:
            found[field.name] = json.loads(json.dumps(value, default=str))
    return found


def paid(
    names: list[str], batch: list[dict[str, Any]], response_format: str
) -> dict[str, list[float | None]]:
    """Reward values of a batch of rows by reward, rounded to six decimals."""
    keys = {key for row in batch for key in row} - {"completion", "question"}
    columns: dict[str, Any] = {key: [row.get(key) for row in batch] for key in keys}
    columns["completions"] = [
        [{"role": "assistant", "content": row["completion"]}] for row in batch
    ]
    columns["prompts"] = [
        [{"role": "user", "content": row.get("question", "How many are there in the basket?")}]
        for row in batch
    ]
    columns["completion_ids"] = [list(range(len(row["completion"]) // 4)) for row in batch]
    own = {key: value for key, value in PARAMETERS.items() if key in reward_parameters(names)}
    given = [reward(**columns) for reward in get_reward_funcs(names, response_format, **own)]
    return {
        name: [value and round(float(value), 6) for value in values]
        for name, values in zip(names, given, strict=True)
    }


def test_rewards() -> None:
    given = yaml.safe_load((GOLDEN / "rows.yaml").read_text(encoding="utf-8"))
    values, names = {}, set(REWARDS)
    if not os.environ.get("R1_RECIPES_WRITE_GOLDEN"):  # a new reward has no golden values
        names &= yaml.safe_load((GOLDEN / "rewards.yaml").read_text(encoding="utf-8"))[
            "tasks"
        ].keys()
    # Few adversarial rows: each eighth runs into the time limit.
    for mix, count in {"gsm8k": 64, "math": 64, "adversarial": 16, "hostile": 16}.items():
        questions = [
            f"What is number {index // 8} of the list?" for index in range(count)
        ]  # eight completions each
        drawn = zip(questions, rows(mix, 0), strict=False)
        batch = [
            {"completion": row.completion, "solution": row.gold, "question": question}
            for question, row in drawn
        ]
        values[mix] = paid(sorted(names - OF_TASKS), batch, "boxed")
    for name in given["formats"]:
        values[f"shapes as {name}"] = paid(
            [name for name in OF_SHAPE if name in names],
            [{"completion": text, "solution": "42"} for text in given["shapes"]],
            name,
        )
    shape = "<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>"
    tasks = [
        {"completion": shape.format(**{"reasoning": "Well.", "answer": "", **row}), **row}
        for row in given["tasks"]
    ]
    values["tasks"] = paid(sorted(names), tasks, "think_answer")
    check("rewards", values)


@pytest.mark.usefixtures("offline")
def test_metrics_of_tiny_runs(write_recipe: Callable[..., str], tmp_path: Path) -> None:
    common = {
        "max_steps": 4,
        "learning_rate": 1e-3,
        "save_strategy": "no",
        "eval_strategy": "steps",
        "eval_steps": 2,
    }
    common |= {
        "dataset_train_split": "train[:6]",
        "dataset_test_split": "train[6:]",
        "per_device_eval_batch_size": 4,
    }
    rewards = ["tests.conftest:letters", "accuracy", "tag_count", "repetition_penalty"]
    runs: dict[str, dict[str, Any]] = {
        "sft": {},
        "distill": {
            "teacher_model_name_or_path": str(tmp_path / "sft"),
            "max_completion_length": 8,
        },
        "grpo": {
            "reward_funcs": rewards,
            "num_generations": 4,
            "per_device_train_batch_size": 8,
            "beta": 0.05,
        },
    }
    logged = {}
    for method, own in runs.items():
        run = tmp_path / method
        importlib.import_module(f"r1_recipes.{method}").main(
            [write_recipe(method, **common, **own, output_dir=str(run))]
        )
        entries = [
            json.loads(line)
            for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        keys = sorted({key for entry in entries for key in entry})
        steady = {
            key: [entry.get(key) and float(f"{entry[key]:.7g}") for entry in entries]
            for key in keys
            if not UNSTEADY.search(key)
        }
        logged[method] = {**steady, "unsteady": [key for key in keys if UNSTEADY.search(key)]}
    # Other CPUs add in other orders: a float32 differs in its seventh digit, and after a few steps
    # in its fifth or sixth.
    check("metrics", logged, rel=1e-3, abs=1e-6)
