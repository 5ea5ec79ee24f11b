"""Each mistake that people ask about in issues, as a recipe, and what preflight says of it before a
run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from r1_recipes.extras.preflight import __main__ as preflight
from r1_recipes.extras.preflight import fit
from r1_recipes.extras.preflight.findings import Report

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("offline")]
HERE = "tests.extras.test_preflight"


def nothing(completions: list, **columns: Any) -> list[float]:
    return [0.0] * len(completions)


def broken(completions: list, **columns: Any) -> list[float]:
    raise KeyError("no such key")


def found(report: Report, level: str) -> dict[str, str]:
    """Messages by code; a code that occurs more often has its last one."""
    return {code: message for at, code, message in report.findings if at == level}


@pytest.fixture
def recipe(write_recipe):
    """A GRPO recipe on the eight sums with which nothing is wrong; ``recipe(key=value)``
    breaks it.
    """
    settings = {
        "reward_funcs": ["accuracy", "format"],
        "max_completion_length": 200,
        "response_format": "think_answer",
        "system_prompt": None,
    }
    return lambda **changes: write_recipe("grpo", **{**settings, **changes})


def check(path: str, no_model: bool = True, groups: int = 2, processes: int = 1) -> Report:
    options = {"groups": groups, "num_processes": processes}
    report, options = Report(), {**options, "recipe": path, "no_model": no_model}
    with report.refusals("recipe.unusable"):
        preflight.examine(report, argparse.Namespace(**options), [])
    return report


def rows_file(tmp_path: Path, *rows: tuple[str, str]) -> dict[str, Any]:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"prompt": prompt, "solution": gold}) + "\n" for prompt, gold in rows]
    path.write_text("".join(lines), encoding="utf-8")
    return {"dataset_name": str(path), "mapper": "prompt_solution"}


def test_a_good_recipe_has_no_errors_and_leaves_nothing_behind(recipe, tmp_path, capsys):
    report = check(recipe(dataset_test_split="train"))
    assert found(report, "error") == {} and found(report, "warning") == {}
    sections = {code.partition(".")[0] for _, code, _ in report.findings}
    assert sections == {"recipe", "data", "contract", "fit"}
    assert not (tmp_path / "run").exists()
    assert "8 of 8 rows kept" in found(report, "ok")["data.rows"]
    assert "window is 4096" in found(report, "ok")["data.window"]
    said = capsys.readouterr().out
    # Three rows as the model reads them, each with its reference answer, on the first screen
    rows, _, rest = said.partition("data.rows")
    assert rows.count("as the model reads it. Its reference answer: ") == 3
    assert rows.count("<|im_start|>assistant\n") == 3 and rows.count("\n") < 45
    assert "right  wrong  shapeless" in rest


def test_a_prompt_that_asks_for_other_tags_than_the_reward_reads(recipe):
    report = check(recipe(system_prompt="Put the answer between <result> and </result>."))
    assert "not for" in found(report, "warning")["contract.prompt"]


def test_reference_answers_that_a_reward_cannot_read(recipe, tmp_path):
    wrong = [("Why?", "Because?"), ("2+2?", "4"), ("Who?", "Who knows?"), ("How?", "By train?")]
    message = found(check(recipe(**rows_file(tmp_path, *wrong))), "error")["data.golds"]
    assert "accuracy cannot read 3 of 4 reference answers (rows 0, 2, 3" in message
    assert "'Because?'" in message and "solution_column" in message
    # a few among many are a warning
    report = check(recipe(**rows_file(tmp_path, *wrong[1:3], ("1+1?", "2"), ("3+3?", "6"))))
    assert found(report, "error") == {} and "1 of 4" in found(report, "warning")["data.golds"]


def test_a_random_model_has_spread_in_letters_and_is_cut(recipe):
    letters = ["tests.conftest:letters"]
    path = recipe(reward_funcs=letters, max_completion_length=16, num_generations=4)
    report = check(path, no_model=False)
    assert "2 of 2 groups have spread" in found(report, "ok")["signal.spread"]
    assert "Fix: max_completion_length: 32" in found(report, "error")["signal.truncation"]
    flat = check(recipe(reward_funcs=[f"{HERE}:nothing"]), no_model=False)
    assert "2 of 2 groups (100%)" in found(flat, "error")["signal.all_zero"]
    # A small weight does not help against a reward that alone has spread.
    only_form = check(recipe(reward_funcs=["accuracy", *letters]), no_model=False)
    assert "whatever their weights" in found(only_form, "warning")["signal.reward"]


@pytest.mark.parametrize(
    ("changes", "level", "code", "message"),
    [
        ({"reward_funcs": [f"{HERE}:broken"]}, "error", "reward_fails", "KeyError: 'no such key'"),
        ({"reward_funcs": [f"{HERE}:nothing"]}, "warning", "total", "right 0, wrong 0"),
        ({"reward_weights": [-1.0, 1.0]}, "error", "total", "right 0, wrong 1"),
    ],
)
def test_rewards_that_do_not_keep_the_contract(recipe, changes, level, code, message):
    assert message in found(check(recipe(**changes)), level)[f"contract.{code}"]


MODEL = torch.nn.Linear(10, 100, bias=False)  # 1000 parameters in fp32


def settings(**changes: Any) -> SimpleNamespace:
    training = {"optim": "adamw_torch", "bf16": True, "fp16": False, "beta": 0.0, "use_vllm": False}
    training |= {"use_cpu": False, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3}
    training |= {key: value for key, value in changes.items() if key in training}
    model = SimpleNamespace(
        use_peft=changes.get("use_peft", False), load_in_4bit=False, load_in_8bit=False
    )
    return SimpleNamespace(method="grpo", training=SimpleNamespace(**training), model=model)


@pytest.mark.parametrize(
    ("available", "shards", "changes", "level"),
    [
        (19_000, 1, {}, "ok"),
        (16_000, 1, {}, "warning"),  # activations have no room
        (15_999, 1, {}, "error"),
        (19_999, 1, {"beta": 0.1}, "error"),  # the reference model
        (19_000, 1, {"beta": 0.1, "use_peft": True}, "ok"),
        (9_500, 1, {"optim": "paged_adamw_32bit"}, "ok"),
        (3_999, 4, {}, "warning"),  # shards may be offloaded
        (6_000, 4, {"stage": "3"}, "ok"),
        (6_000, 4, {"stage": "2"}, "warning"),  # each device has all weights
        (20_000, 1, {"use_vllm": True}, "warning"),  # vLLM leaves 14,000, and may sleep
        (None, 1, {}, "ok"),
    ],
)
def test_it_is_compared_with_the_device(
    monkeypatch: pytest.MonkeyPatch, available: int | None, shards: int, changes: dict, level: str
) -> None:
    monkeypatch.setattr(fit, "device_memory", lambda _: available)
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", changes.get("stage", ""))
    report, recipe = Report(), settings(**changes)
    fit.check_memory(report, recipe, fit.training_state(recipe, MODEL, shards), shards)
    assert ("Fix: use_peft: true" in found(report, level)["fit.memory"]) == (level != "ok")
