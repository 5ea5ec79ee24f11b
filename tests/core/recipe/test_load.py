"""recipe.load: what a file and a command line may say, and what a wrong one is told."""

import json
import sys

import pytest
import yaml

from r1_recipes.common.errors import RecipeError
from r1_recipes.recipe.load import load_recipe

BASE = """\
model_name_or_path: nobody/model
dataset_name: nobody/data
use_cpu: true
bf16: false
"""
GRPO = BASE + "reward_funcs: [accuracy, format]\n"


@pytest.fixture
def write(tmp_path):
    """Write a recipe of base keys and ``extra``; returns its path."""

    def write(extra="", base=GRPO, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(base + extra, encoding="utf-8")
        return str(path)

    return write


def fails(argv, *parts, method="grpo"):
    with pytest.raises(RecipeError) as error:
        load_recipe(argv, method)
    for part in parts:
        assert part in str(error.value), str(error.value)
    return str(error.value)


def test_a_recipe_becomes_typed_arguments(write):
    recipe = load_recipe(
        [write("learning_rate: 1e-6\nnum_generations: 4\nbeta: 0\nrun_name: 2025-01-01\n")], "grpo"
    )
    assert (recipe.path.stem, recipe.method, recipe.warnings) == ("mine", "grpo", [])
    assert recipe.script.dataset_name == "nobody/data"
    assert recipe.script.response_format == "think_answer"
    assert recipe.training.learning_rate == 1e-6  # PyYAML reads 1e-6 as text
    assert recipe.training.num_generations == 4
    assert isinstance(recipe.training.beta, float)
    assert recipe.training.run_name == "2025-01-01"
    assert recipe.model.model_name_or_path == "nobody/model"
    assert recipe.settings["learning_rate"] == 1e-6
    assert yaml.safe_load(yaml.safe_dump(recipe.settings)) == recipe.settings


def test_the_command_line_wins(write):
    path = write("max_completion_length: 64\ngradient_checkpointing: true\nlog_completions: true\n")
    typed = "--max-completion-length=32 --reward-weights -0.5 -1e-3 --gradient_checkpointing false "
    typed += "--log_completions=no --use_vllm --max_steps -1 --keep_columns level"
    recipe = load_recipe([path, *typed.split(), "--lr_scheduler_kwargs", '{"a": 0.1}'], "grpo")
    assert recipe.training.max_completion_length == 32
    assert recipe.training.reward_weights == [-0.5, -1e-3]
    assert recipe.training.gradient_checkpointing is recipe.training.log_completions is False
    assert recipe.training.use_vllm is True
    assert recipe.training.lr_scheduler_kwargs == {"a": 0.1}
    assert recipe.training.max_steps == -1
    assert recipe.script.keep_columns == ["level"]


def test_mappings_on_the_command_line(write):
    few_shot = [{"question": "1+1?", "reasoning": "one and one", "answer": "1e5"}]
    sizes = {"train": {"size": 4, "seed": 1}, "test": {"size": 4, "seed": 2}}
    typed = ["--few_shot", json.dumps(few_shot), "--task_config", json.dumps(sizes)]
    recipe = load_recipe([write(), *typed], "grpo")
    assert (recipe.script.few_shot, recipe.script.task_config) == (few_shot, sizes)
    for key, value in (("task_config", '{"train": '), ("task_config", "small"), ("few_shot", "[1")):
        fails([write(), f"--{key}", value], key, value, "dict")


def test_a_key_of_another_method_is_unknown(write):
    said = "unknown key 'num_generations' for sft"
    fails([write("num_generations: 8\n", base=BASE)], said, method="sft")


def test_none_takes_a_limit_back(write):
    path = write("max_samples: 10\nmax_prompt_tokens: 100\nsystem_prompt: Be brief.\n")
    recipe = load_recipe(
        [path, "--max_samples", "none", "--max_prompt_tokens=null", "--system_prompt="], "grpo"
    )
    script = recipe.script
    assert (script.max_samples, script.max_prompt_tokens, script.system_prompt) == (None, None, "")
    fails([write("learning_rate:\n")], "learning_rate")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("num_generations: 2.5", ["num_generations", "2.5"]),
        ("reward_weights: [1,0, 0,5]", ["reward_weights has 4 entries for 2"]),
        ("learning_rate: 1,0e-4", ["learning_rate", "1,0e-4"]),
        ("mapper_config: [a]", ["mapper_config", "['a']"]),
        ("lr_scheduler_type: cosin", ["lr_scheduler_type", "cosin", "'cosine'"]),
    ],
)
def test_a_wrong_value_names_file_key_and_what_was_found(write, line, parts):
    path = write(line + "\n")
    fails([path], path, *parts)


def test_what_lies_beside_the_recipe_is_found_and_what_is_here_comes_first(tmp_path, monkeypatch):
    beside, here = tmp_path / "beside", tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
        (folder / "rows.csv").write_text("question,answer\n1,2\n")
    (beside / "own.jinja").write_text("{{ messages }}")
    (beside / "beside_module.py").write_text(
        "def f(completions, **columns): return [0.0] * len(completions)\n"
    )
    mixture = "dataset_mixture: {datasets: [{id: beside.csv}, {id: rows.csv}, {id: nobody/data}]}\n"
    (beside / "beside.csv").write_text("question,answer\n1,2\n")
    monkeypatch.chdir(here)
    keys = "model_name_or_path: a/b\nreward_funcs: ['beside_module:f']\nchat_template: own.jinja\n"
    (beside / "one.yaml").write_text(f"dataset_name: NAME\n{keys}")
    for name, found in (
        ("rows.csv", "rows.csv"),
        ("beside.csv", str(beside / "beside.csv")),
        ("nobody/data", "nobody/data"),
        (str(here / "rows.csv"), str(here / "rows.csv")),
        ("countdown:2", "countdown:2"),
    ):
        script = load_recipe([str(beside / "one.yaml"), "--dataset_name", name], "grpo").script
        assert (script.dataset_name, script.chat_template) == (found, str(beside / "own.jinja"))
    (beside / "two.yaml").write_text(mixture + keys)
    parts = load_recipe(["../beside/two.yaml"], "grpo").script.dataset_mixture["datasets"]
    assert [part["id"] for part in parts] == ["../beside/beside.csv", "rows.csv", "nobody/data"]
    typed = ["../beside/two.yaml", "--reward_funcs", "nowhere_at_all:f"]
    fails(typed, "No module named 'nowhere_at_all'", str(here), str(beside))


CUSTOM = """\
from __future__ import annotations
from typing import Optional

def plain(prompts, completions, **columns):
    return [0.0 for _ in completions]

def untyped(completions, *, untyped_words=["a"], untyped_name, untyped_other=None, **columns):
    return [0.0 for _ in completions]

def brevity(
    completions,
    *,
    brevity_limit=100,
    brevity_slope: Optional[float] = None,
    brevity_words: list[str] = (),
    brevity_strict: bool = False,
    **columns,
):
    return [float(brevity_limit) for _ in completions]
"""


@pytest.fixture
def custom(tmp_path, monkeypatch):
    """A module of rewards in the working directory, as a user would have it."""
    name = f"own_rewards_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(CUSTOM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    sys.modules.pop(name, None)


def test_a_reward_from_the_working_directory_has_parameters(write, custom):
    base = BASE + f"reward_funcs: ['{custom}:brevity', '{custom}:plain', format]\n"
    path = write("brevity_limit: 7\nbrevity_slope: 1e-2\n", base)
    recipe = load_recipe([path, *["--brevity_words", "a", "b", "--brevity_strict"]], "grpo")
    assert recipe.reward_params == {
        "brevity_limit": 7,
        "brevity_slope": 0.01,
        "brevity_words": ["a", "b"],
        "brevity_strict": True,
    }
    from r1_recipes.rewards import get_reward_funcs

    funcs = get_reward_funcs(
        recipe.script.reward_funcs, recipe.script.response_format, **recipe.reward_params
    )
    assert [func.__name__ for func in funcs] == ["brevity", "plain", "format"]
    assert funcs[0](completions=["x"]) == [7.0]
    base = BASE + f"reward_funcs: ['{custom}:untyped']\n"
    recipe = load_recipe([write("untyped_words: [a, b]\nuntyped_name: abc\n", base)], "grpo")
    assert recipe.reward_params == {"untyped_words": ["a", "b"], "untyped_name": "abc"}
    fails([write("brevity_limits: 7\n", base)], "unknown key 'brevity_limits'", "brevity_limit")
    fails([write("brevity_limit: 7\n")], "unknown key 'brevity_limit'")  # the reward is not named


@pytest.fixture
def no_accelerator(monkeypatch):
    import torch

    monkeypatch.setattr(torch.accelerator, "is_available", lambda *arguments: False)


FOR_A_GPU = "model_name_or_path: a\ndataset_name: b\nreward_funcs: [format]\n"


@pytest.mark.usefixtures("no_accelerator")
@pytest.mark.parametrize(
    "said",
    [
        "use_vllm: true\nbf16: true\ntf32: true\n",
        "use_vllm: true\nfp16: true\n",
        "use_vllm: true\n",
    ],
)
def test_a_recipe_for_a_gpu_is_adapted_to_a_machine_without_a_gpu(write, said):
    path = write(said, FOR_A_GPU)
    recipe = load_recipe([path], "grpo")
    training = recipe.training
    assert training.use_cpu
    assert not (training.bf16 or training.fp16 or training.use_vllm or training.tf32)
    changed = {"use_cpu", "use_vllm", "fp16" if "fp16" in said else "bf16"}
    assert {key: recipe.settings[key] for key in changed} == {
        key: key == "use_cpu" for key in changed
    }
    assert load_recipe([path], "grpo").settings == recipe.settings
    (warning,) = recipe.warnings
    assert all(f"{key}: {str(recipe.settings[key]).lower()}" in warning for key in changed)
