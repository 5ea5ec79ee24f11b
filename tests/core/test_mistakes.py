"""What newcomers write by mistake: each costs one line that says what to write instead, before a
model is loaded.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from r1_recipes import grpo
from r1_recipes.data import Mapper
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("offline")]
OWN = "tests.core.test_mistakes"
_HALVES = {
    "dataset_train_split": "train[:4]",
    "dataset_test_split": "train[4:]",
    "eval_strategy": "steps",
    "eval_steps": 1,
}


def raises(completions: list, solution: list, **columns: Any) -> list[float]:
    return [
        float(gold) / len(turn["content"])
        for gold, (turn,) in zip(solution, completions, strict=True)
    ]


def too_short(completions: list, **columns: Any) -> list[float]:
    return [1.0]


class NoGold(Mapper):
    columns = ("question", "answer")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"question": row["question"]}


async def fails_late(completions: list, **columns: Any) -> list[float]:
    await asyncio.wait_for(asyncio.sleep(0), 1)
    raise KeyError("gold")


def _line(function: Callable, after: int = 0) -> str:
    return rf"\({re.escape(__file__)}:{function.__code__.co_firstlineno + after}\)"


MISTAKES = [
    ({"learning_rate": -1e-6}, r"learning_rate: must be in \[0, 1\], got -1e-06\. Fix: remove it"),
    ({"max_steps": 0}, r"max_steps: must be in \[1, inf\), got 0"),
    ({"top_p": 2.0}, r"top_p: must be in \(0, 1\], got 2\."),
    (
        {"temperature": 0.0},
        r"temperature: must be above 0 for training, got 0.* Fix: temperature: 1\.0",
    ),
    (
        {"num_generations": 1},
        r"num_generations: must be at least 2, got 1,.* Fix: num_generations: 8$",
    ),
    (
        {"num_generations": 3},
        r"Fix: gradient_accumulation_steps: 3, or num_generations: 2, or 6 processes "
        r"\(accelerate launch --num_processes 6\)$",
    ),
    (
        {**_HALVES, "per_device_eval_batch_size": 3},
        r"Fix: per_device_eval_batch_size: 4, or num_generations_eval: 1$",
    ),
    (
        {"mapper": "prompt_solution", "prompt_column": "question", "solution_column": "question"},
        r"accuracy cannot parse any of the 8 reference answers .*answer_match",
    ),
    ({"reward_funcs": []}, r"reward_funcs: missing\. Fix: name at least one of accuracy"),
    ({"reward_funcs": ["acuracy"]}, r"Did you mean 'accuracy'"),
    (
        {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 2},
        r"no row is left to train on\. Fix: dataset",
    ),
    (
        {"mapper": "prompt_solution", "prompt_column": "qestion", "solution_column": "answer"},
        r"'qestion'.* Fix: prompt_column: question$",
    ),
    ({"dataset_train_split": "trian"}, r"'trian'.*which has 'train'.*Did you mean 'train'"),
    ({"push_to_hub": True}, r"push_to_hub: .* Fix: .*--push_to_hub false"),
    (
        {"reward_funcs": [f"{OWN}:raises"]},
        rf"'{OWN}:raises' fails: ZeroDivisionError.* {_line(raises, 2)}",
    ),
    (
        {"reward_funcs": [f"{OWN}:fails_late"]},
        rf"'{OWN}:fails_late' fails: KeyError: 'gold' {_line(fails_late, 2)}",
    ),
    (
        {"reward_funcs": [f"{OWN}:too_short"]},
        rf"returned \[1\.0\] {_line(too_short)}\. Fix: return a list .* per completion, here 4",
    ),
    (
        {"mapper": f"{OWN}:NoGold"},
        rf"'accuracy' compares .*'solution', which mapper 'NoGold' "
        rf"{_line(NoGold.__call__)}.* Fix: return",
    ),
    ({"mapper": "./mine.py"}, r"write a colon: \./mine\.py:NAME\."),
    (
        {"num_generation": 8},
        r"unknown key 'num_generation' for grpo\. Did you mean num_generations",
    ),
    ({"lr": 1e-6}, r"unknown key 'lr' for grpo\. Did you mean learning_rate\?"),
    ({"epochs": 3}, r"Did you mean num_train_epochs\?"),
    (
        {"keep": {"correct": True}},
        r"unknown key 'keep' for grpo, but it is a key of generate: python -m r1_recipes\.generate FILE",
    ),
    ({"learning_rate": "fast"}, r"learning_rate: must be float, got 'fast' \(str\)"),
    ({"response_format": "think_anser"}, r"Did you mean 'think_answer'"),
    ({"mapper_config": {"name": "z"}}, r"key of mapper 'gsm8k' 'name'"),
    ({"dataset_name": "rowz.jsonl"}, r"no such file or folder \(looked in .* beside the recipe"),
    ({"dataset_name": None}, r"dataset_name: missing"),
    ({"model_name_or_path": None}, r"model_name_or_path: missing"),
    (
        {"reward_funcs": ["accuracy", "accuracy"]},
        r"reward_funcs: lists a reward twice.* reward_weights 2\.0",
    ),
    ({"reward_weights": [1, 2]}, r"reward_weights has 2 entries for 1 reward_funcs"),
    ({"loss_type": "gspo"}, r"loss_type: unknown value 'gspo'\. .*losses\.md"),
    (
        {"scale_rewards": "std"},
        r"scale_rewards: unknown value 'std'\. Available: batch, group, none",
    ),
    (
        {"use_transformers_continuous_batching": True, "bf16": True},
        r"use_transformers_continuous_batching: TRL casts all weights to bfloat16 .*got "
        r"dtype: float32.*use_vllm: true",
    ),
    (
        {
            **_HALVES,
            "load_best_model_at_end": True,
            "save_steps": 1,
            "per_device_eval_batch_size": 2,
        },
        r"metric_for_best_model: must be a reward, got 'loss'.*Fix: metric_for_best_model: "
        r"eval_rewards/accuracy/mean and greater_is_",
    ),
    ({"tools": ["calculater"]}, r"Did you mean 'calculator'"),
    (
        {"chat_template_kwargs": {"enable_thinkin": True}},
        r"has no variable with this name\. Fix: remove it",
    ),
    (
        {"system_prompt": "Think in <think>, answer in \\boxed{}."},
        r"must ask for <answer>.* Fix: response_format: think_boxed",
    ),
    ({"prompt_template": "{quest}"}, r"prompt_template: must contain \{question\}, "),
    ({"max_prompt_tokens": 3}, r"all rows were dropped.*prompt over max_prompt_tokens 3"),
    ({"report_to": "wanb"}, r"report_to: unknown tracker 'wanb'\. Did you mean 'wandb'"),
    ({"number_locale": "fr"}, r"number_locale: must be one of en, de, got 'fr'"),
]


@pytest.mark.parametrize(
    ("changes", "said"),
    MISTAKES,
    ids=lambda value: None if isinstance(value, dict) else str(value)[:40],
)
def test_a_mistake_costs_one_line_before_the_model_is_loaded(
    write_recipe: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    changes: dict[str, Any],
    said: str,
) -> None:
    monkeypatch.setattr(
        "r1_recipes.training.trainer.RecipeGRPOTrainer",
        lambda **arguments: pytest.fail("the model was loaded"),
    )
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    given = {"reward_funcs": ["accuracy"], **changes}
    with pytest.raises(SystemExit) as ended:
        grpo.main([write_recipe("grpo", **given)])
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert ended.value.code == 2 and re.search(said, line), line


def test_what_is_no_mistake_passes(write_recipe: Callable[..., str]) -> None:
    """A default may lie outside of its interval, and a recipe may be judged greedily."""
    from r1_recipes.recipe.load import load_recipe

    assert (
        load_recipe(
            [write_recipe("grpo", max_steps=-1, temperature=0.0)], "grpo"
        ).training.max_steps
        == -1
    )
    assert any(
        "warmup_steps 10 of max_steps 6" in note
        for note in load_recipe([write_recipe("grpo", warmup_steps=10)], "grpo").warnings
    )


def _package(
    *words: str, folder: Path = REPOSITORY, python: str = sys.executable
) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    return subprocess.run(
        [python, "-m", *words],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("gpro", "grpo"),
        ("GRPO", "grpo"),
        ("train", "grpo"),
        ("preflite", "preflight"),
        ("my.yaml", "grpo my.yaml"),
        ("xyzzyq", None),
    ],
)
def test_an_unknown_command_is_named_with_the_nearest(word: str, meant: str | None) -> None:
    done = _package("r1_recipes", word)
    assert (done.returncode, done.stdout) == (2, "") and f"unknown command {word!r}" in done.stderr
    assert (f"Did you mean r1-recipes {meant}?" in done.stderr) is (
        meant is not None
    ) and done.stderr.count("\n") == 1
