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

import pyarrow.parquet
import pytest

from r1_recipes import grpo
from r1_recipes.__main__ import commands
from r1_recipes.common.errors import RecipeError
from r1_recipes.data import Mapper
from tests.conftest import REPOSITORY, SUMS

pytestmark = pytest.mark.usefixtures("offline")
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


def nothing(completions: list, **columns: Any) -> None:
    return None


def words(completions: list, **columns: Any) -> list[str]:
    return ["1"] * len(completions)


def not_finite(completions: list, **columns: Any) -> list[float]:
    return [float("inf")] * len(completions)


def narrow(completions: list) -> list[float]:
    return [1.0] * len(completions)


def not_a_number(completions: list, **columns: Any) -> list[float]:
    return [float("nan")] * len(completions)


def exits(completions: list, **columns: Any) -> list[float]:
    sys.exit(0)


class NoArguments:
    def __init__(self) -> None:
        pass


class NoGold(Mapper):
    columns = ("question", "answer")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"question": row["question"]}


class TwoTypes(NoGold):
    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {
            "question": row["question"],
            "solution": "1",
            "extra": 1 if "2+" in row["question"] else "x",
        }


class Leaves(NoGold):
    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        sys.exit("no")


class NotHere:
    """A mapper that is none."""


async def late(completions: list, level: list, **columns: Any) -> list[float]:
    return [1.0] * len(completions)


async def fails_late(completions: list, **columns: Any) -> list[float]:
    await asyncio.wait_for(asyncio.sleep(0), 1)
    raise KeyError("gold")


def _line(function: Callable, after: int = 0) -> str:
    return rf"\({re.escape(__file__)}:{function.__code__.co_firstlineno + after}\)"


MISTAKES = [
    (
        {"learning_rate": -1e-6},
        r"learning_rate: must be in \[0, 1\], got -1e-06\. Fix: remove it",
    ),
    ({"num_train_epochs": 0, "max_steps": None}, r"num_train_epochs: must be in \(0, inf\), got 0"),
    ({"max_steps": 0}, r"max_steps: must be in \[1, inf\), got 0"),
    ({"max_samples": 0}, r"max_samples: must be in \[1, inf\)"),
    ({"per_device_train_batch_size": 0}, r"per_device_train_batch_size: must be in \[1, inf\)"),
    ({"max_completion_length": 0}, r"max_completion_length: must be in \[1, inf\)"),
    ({"top_p": 2.0}, r"top_p: must be in \(0, 1\], got 2\."),
    ({"beta": -1.0}, r"beta: must be in \[0, inf\)"),
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
        {"num_generations": 8},
        r"Fix: gradient_accumulation_steps: 2, or num_generations: 4, or \d processes "
        r"\(accelerate launch --num_processes \d\)$",
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
        {"reward_weights": [0.0]},
        r"reward_weights: must be finite numbers that are not all 0, got \[0\.0\]",
    ),
    ({"max_samples": 1}, r"1 training rows for 2 prompts a batch .* Fix: more rows"),
    (
        {"max_samples": 1, "generation_batch_size": 4},
        r"1 training rows for 2 .* Fix: more rows, or a smaller generation_batch_size$",
    ),
    (
        {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 2},
        r"no row is left to train on\. Fix: dataset",
    ),
    (
        {"mapper": "prompt_solution", "prompt_column": "qestion", "solution_column": "answer"},
        r"'qestion'.* Fix: prompt_column: question$",
    ),
    ({"dataset_train_split": "trian"}, r"'trian'.*which has 'train'.*Did you mean 'train'"),
    ({"dataset_train_split": "trian[:-2]"}, r"'trian'.*which has 'train'"),
    ({"push_to_hub": True}, r"push_to_hub: .* Fix: .*--push_to_hub false"),
    ({"reward_funcs": [f"{OWN}:rises"]}, r"Did you mean 'raises'"),
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
        {"reward_funcs": [f"{OWN}:nothing"]},
        rf"'{OWN}:nothing' returned None {_line(nothing)}\. Fix: return a list",
    ),
    (
        {"reward_funcs": [f"{OWN}:words"]},
        r"returned \['1', .*Fix: return a list with one finite number",
    ),
    (
        {"reward_funcs": [f"{OWN}:not_finite"]},
        r"returned \[inf, .*Fix: return a list with one finite number",
    ),
    (
        {"reward_funcs": [f"{OWN}:not_a_number"]},
        rf"returned \[nan, .*{_line(not_a_number)}\. Fix: return a list with one finite number",
    ),
    ({"reward_funcs": [f"{OWN}:exits"]}, rf"'{OWN}:exits' fails: SystemExit: 0 {_line(exits, 1)}"),
    (
        {"reward_funcs": [f"{OWN}:OWN"]},
        rf"'{OWN}:OWN': must be a function, or a class with __call__, got '{OWN}'\. Fix: def ",
    ),
    (
        {"reward_funcs": [f"{OWN}:NoArguments"]},
        rf"NoArguments' fails: TypeError: .*'response_format' "
        rf"{_line(NoArguments.__init__)}\. Fix: class NAME\(Reward\)",
    ),
    (
        {"mapper": f"{OWN}:NoGold"},
        rf"'accuracy' compares .*'solution', which mapper 'NoGold' "
        rf"{_line(NoGold.__call__)}.* Fix: return",
    ),
    (
        {"mapper": f"{OWN}:TwoTypes"},
        rf"mapper 'TwoTypes' {_line(TwoTypes.__call__)}: column 'extra' must hold .* one "
        rf"type.* Fix: return str",
    ),
    (
        {"mapper": f"{OWN}:Leaves"},
        rf"all rows were dropped: .*mapper 'Leaves' fails with SystemExit {_line(Leaves.__call__, 1)}",
    ),
    (
        {"mapper": f"{OWN}:NotHere"},
        r"must be a subclass of r1_recipes\.data\.Mapper.* Fix: class NAME\(Mapper\)",
    ),
    ({"mapper": "./mine.py"}, r"write a colon: \./mine\.py:NAME\."),
    (
        {"reward_funcs": [f"{OWN}:narrow"]},
        r"narrow\(\) got an unexpected keyword.*\. Fix: end its parameters with \*\*columns",
    ),
    (
        {"reward_funcs": [f"{OWN}:late"]},
        r"late' fails: TypeError: late\(\) missing 1 required positional argument: 'level'",
    ),
    (
        {
            "reward_funcs": ["format", f"{OWN}:nothing"],
            "task_rewards": {"sum": [f"{OWN}:nothing"]},
            "task_column": "level",
        },
        "task_column: unknown column 'level'",
    ),
    (
        {"num_generation": 8},
        r"unknown key 'num_generation' for grpo\. Did you mean num_generations",
    ),
    ({"lr": 1e-6}, r"unknown key 'lr' for grpo\. Did you mean learning_rate\?"),
    ({"batch_size": 8}, r"Did you mean per_device_train_batch_size\?"),
    ({"model": "x"}, r"Did you mean model_name_or_path\?"),
    ({"epochs": 3}, r"Did you mean num_train_epochs\?"),
    (
        {"keep": {"correct": True}},
        r"unknown key 'keep' for grpo, but it is a key of generate: python -m r1_recipes\.generate FILE",
    ),
    ({"learning_rate": "fast"}, r"learning_rate: must be float, got 'fast' \(str\)"),
    ({"bf16": "maybe"}, r"bf16: must be true/false, got 'maybe' \(str\)"),
    (
        {"num_train_epochs": "3 epochs"},
        r"num_train_epochs: must be float, got '3 epochs' \(str\)",
    ),
    ({"response_format": "think_anser"}, r"Did you mean 'think_answer'"),
    ({"mapper": "gsmk8"}, r"Did you mean 'gsm8k'"),
    ({"mapper_config": {1: "z"}}, r"mapper_config: must be .*names as keys"),
    ({"mapper_config": {"name": "z"}}, r"key of mapper 'gsm8k' 'name'"),
    ({"environment": 3}, r"unknown environment '3'"),
    ({"dataset_name": "rowz.jsonl"}, r"no such file or folder \(looked in .* beside the recipe"),
    ({"dataset_name": None}, r"dataset_name: missing"),
    (
        {"model_name_or_path": None},
        r"model_name_or_path: missing",
    ),
    ({"output_dir": ""}, r"output_dir: must be .*, got ''"),
    (
        {"reward_funcs": ["accuracy", "accuracy"]},
        r"reward_funcs: lists a reward twice.* reward_weights 2\.0",
    ),
    ({"reward_weights": [1, 2]}, r"reward_weights has 2 entries for 1 reward_funcs"),
    (
        {"reward_funcs": ["no_such_module:brevity"]},
        r"no module 'no_such_module' on the path or in ",
    ),
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
            "use_transformers_continuous_batching": True,
            "bf16": True,
            "dtype": "bfloat16",
            "use_peft": True,
        },
        r"use_transformers_continuous_batching: .*use_peft: true",
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
    (
        {
            **_HALVES,
            "save_strategy": "best",
            "metric_for_best_model": "eval_loss",
            "per_device_eval_batch_size": 2,
        },
        r"metric_for_best_model: must be a reward, got 'eval_loss'",
    ),
    (
        {"use_vllm": True, "vllm_mode": "server", "use_peft": True, "load_in_4bit": True},
        r"load_in_4bit: TRL cannot merge",
    ),
    ({"max_logged_completions": 0}, r"max_logged_completions: must be in \[1, inf\), got 0"),
    ({"tools": ["calculater"]}, r"Did you mean 'calculator'"),
    ({"environment": "no_such_module:Game"}, r"environment 'no_such_module:Game': no module"),
    (
        {"curriculum": ["a"]},
        r"curriculum: must be two or more different tasks, .*got \['a'\]",
    ),
    (
        {"chat_template_kwargs": {"enable_thinkin": True}},
        r"has no variable with this name\. Fix: remove it",
    ),
    (
        {"system_prompt": "Think in <think>, answer in \\boxed{}."},
        r"must ask for <answer>.* Fix: response_format: think_boxed",
    ),
    (
        {"prompt_template": "{quest}"},
        r"prompt_template: must contain \{question\}, ",
    ),
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


def in_parts(
    completions: list, solution: list, log_extra: Callable[[str, list], None], **columns: Any
) -> Any:
    """Neither a list nor plain floats, but what TRL takes."""
    import torch

    log_extra("answer_parsed", [f"own {gold}" for gold in solution])
    return torch.tensor([float(len(turn["content"])) for (turn,) in completions])


def test_rewards_that_log_the_same_columns_share_them(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    """Each completion stays one row of the table; the first that has something to say of a row
    fills its field.
    """
    path = write_recipe(
        "grpo",
        reward_funcs=[f"{OWN}:in_parts", "accuracy", "answer_match"],
        max_steps=1,
        log_completions=True,
        num_completions_to_print=0,
    )
    grpo.main([path])
    (table,) = [
        pyarrow.parquet.read_table(file).to_pylist()
        for file in (tmp_path / "run" / "completions").glob("*.parquet")
    ]
    assert len(table) == 4 and {row["solution"] for row in table} <= {str(a + b) for a, b in SUMS}
    assert all(
        row["answer_parsed"] == f"own {row['solution']}" for row in table
    )  # the random model gives no answer


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


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_the_package_says_what_its_commands_are(arguments: list[str]) -> None:
    done = _package("r1_recipes", *arguments)
    assert done.returncode == 0 and all(f"  {name} " in done.stdout for name in commands())


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


def test_the_version_and_the_recipes_are_printed() -> None:
    assert re.fullmatch(r"r1-recipes \d\S*\n", _package("r1_recipes", "--version").stdout)
    for line in _package("r1_recipes", "recipes").stdout.splitlines()[1:]:
        assert line.endswith("."), line  # a whole sentence


def test_files_named_as_libraries_hide_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("json", "random", "trl", "yaml"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
    (tmp_path / "mine.py").write_text(
        "def own(completions, **columns):\n    return [1.0]\n", encoding="utf-8"
    )
    recipe = (
        "model_name_or_path: nobody/model\ndataset_name: no.jsonl\nreward_funcs: "
        "['mine:own']\nuse_cpu: true\nbf16: false\n"
    )
    (tmp_path / "r.yaml").write_text(recipe, encoding="utf-8")
    done = _package("r1_recipes.grpo", "r.yaml", "--output_dir", "run", folder=tmp_path)
    assert "error: r.yaml: model_name_or_path" in done.stderr and "imported" not in done.stderr, (
        done.stderr
    )


def test_a_python_without_the_libraries_gets_one_line(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
    for module in ("r1_recipes", "r1_recipes.grpo"):
        done = _package(module, python=str(tmp_path / "empty" / "bin" / "python"))
        assert (
            done.returncode == 2
            and done.stderr.count("\n") == 1
            and "lacks yaml, torch, trl" in done.stderr
        ), done.stderr


def test_every_command_is_listed() -> None:
    source = REPOSITORY / "src" / "r1_recipes"
    found = {
        path.stem
        for path in source.glob("[!_]*.py")
        if '__name__ == "__main__"' in path.read_text("utf-8")
    }
    assert found | {"recipes", "show", "demo"} == set(commands())


def test_a_user_s_reward_is_tested_on_the_rows_of_its_task(sums: Path) -> None:
    from datasets import Dataset

    from r1_recipes.prompts import FORMATS
    from r1_recipes.rewards.routing import route
    from r1_recipes.rewards.trial import try_own_rewards

    seen: list[str] = []

    def own(completions: list, level: list, **columns: Any) -> list[None]:
        seen.extend(level)
        return [None] * len(level)

    rows = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": str(i)}], "solution": "1", "level": "ab"[i % 2]}
            for i in range(6)
        ]
    )
    (routed,) = route([own], ["x:own"], {"b": ["x:own"], "a": ["x:own"]}, "level")
    try_own_rewards(
        ["x:own"],
        [routed],
        rows.filter(lambda row: row["level"] == "b"),
        FORMATS["think_answer"],
        None,
    )
    assert seen == ["b"] * 4
    with pytest.raises(RecipeError, match="row 0 has task 'a'"):
        (narrower,) = route([own], ["x:own"], {"b": ["x:own"]}, "level")
        try_own_rewards(["x:own"], [narrower], rows, FORMATS["think_answer"], None)
