"""recipe.load: what a file and a command line may say, and what a wrong one is told."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import read_yaml
from r1_recipes.extras.foreign import TABLE
from r1_recipes.recipe import load
from r1_recipes.recipe.load import load_recipe

FIXTURES = Path(__file__).parents[2] / "fixtures"
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
    assert (recipe.name, recipe.method, recipe.warnings) == ("mine", "grpo", [])
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
    path = write(
        "learning_rate: 1e-6\nmax_completion_length: 64\nreward_weights: [1.0, "
        "0.5]\ngradient_checkpointing: true\nlog_completions: true\n"
    )
    argv = [path, *["--learning_rate", "5e-6", "--max-completion-length=32"]]
    argv += [
        "--reward_funcs",
        "accuracy",
        "format",
        "tag_count",
        "--reward-weights",
        "1",
        "-0.5",
        "-1e-3",
    ]
    argv += ["--gradient_checkpointing", "false", "--log_completions=no", "--use_vllm"]
    argv += ["--lr_scheduler_kwargs", '{"min_lr_rate": 0.1}']
    argv += ["--max_steps", "-1", "--report_to", "none", "--keep_columns", "level"]
    recipe = load_recipe(argv, "grpo")
    assert recipe.training.learning_rate == 5e-6
    assert recipe.training.max_completion_length == 32
    assert recipe.script.reward_funcs == ["accuracy", "format", "tag_count"]
    assert recipe.training.reward_weights == [1.0, -0.5, -1e-3]
    assert recipe.training.gradient_checkpointing is False
    assert recipe.training.log_completions is False
    assert recipe.training.use_vllm is True
    assert recipe.training.lr_scheduler_kwargs == {"min_lr_rate": 0.1}
    assert recipe.training.max_steps == -1
    assert recipe.script.keep_columns == ["level"]
    assert recipe.settings["learning_rate"] == 5e-6


@pytest.mark.parametrize("value", ["-1e-6", "-1.5", "-2"])
def test_a_negative_number_is_a_value_not_a_switch(write, value):
    for words in (["--entropy_coef", value], [f"--entropy-coef={value}"]):
        recipe = load_recipe([write(), *words], "grpo")
        assert recipe.training.entropy_coef == float(value)


def test_keys_with_json_and_text_for_mappings(write):
    few_shot = [{"question": "1+1?", "reasoning": "one and one", "answer": "1e5"}]
    sizes = {"train": {"size": 4, "seed": 1}, "test": {"size": 4, "seed": 2}}
    argv = [
        write(),
        "--few_shot",
        json.dumps(few_shot),
        "--task_config",
        json.dumps(sizes),
        "--model_init_kwargs",
        '{"a": 1}',
    ]
    recipe = load_recipe(argv, "grpo")
    assert recipe.script.few_shot == few_shot
    assert recipe.script.task_config == sizes
    assert recipe.training.model_init_kwargs == {"a": 1}
    assert (
        load_recipe([write(f"few_shot: {json.dumps(few_shot)}\n")], "grpo").script.few_shot
        == few_shot
    )
    assert (
        load_recipe([write(), "--few_shot", json.dumps(few_shot[0])], "grpo").script.few_shot
        == few_shot
    )
    for key, value in (("task_config", '{"train": '), ("task_config", "small"), ("few_shot", "[1")):
        fails([write(), f"--{key}", value], key, value, "dict")
    fails(
        [write(), "--reward_weights", "1,0 0,5"],
        "reward_weights",
    )


def test_none_takes_a_limit_back(write):
    path = write("max_samples: 10\nmax_prompt_tokens: 100\nsystem_prompt: Be brief.\n")
    recipe = load_recipe(
        [path, "--max_samples", "none", "--max_prompt_tokens=null", "--system_prompt="], "grpo"
    )
    assert (
        recipe.script.max_samples,
        recipe.script.max_prompt_tokens,
        recipe.script.system_prompt,
    ) == (None, None, "")
    assert load_recipe([write("max_samples: null\n")], "grpo").script.max_samples is None
    fails([write("learning_rate:\n")], "learning_rate")


def test_an_unknown_key_names_file_key_and_the_nearest(write):
    path = write("num_generation: 8\n")
    fails([path], path, "unknown key 'num_generation' for grpo", "num_generations")
    fails(
        [write(), "--learning-rat", "1"],
        "unknown key 'learning_rat'",
        "learning_rate",
    )
    fails([write("zzqqxxyy: 1\n")], "unknown key 'zzqqxxyy'")
    fails(
        [write("num_generations: 8\n", base=BASE)],
        "unknown key 'num_generations' for sft",
        method="sft",
    )


def test_a_repeated_key_is_refused(write):
    path = write("seed: 1\nseed: 2\n")
    fails([path], path, "seed", "line")
    fails([write("task_config: {train: 1, train: 2}\n")], "train", "line 6")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("num_generations: many", ["num_generations", "many"]),
        ("num_generations: 2.5", ["num_generations", "2.5"]),
        ("learning_rate: fast", ["learning_rate", "fast"]),
        ("use_vllm: perhaps", ["use_vllm", "perhaps", "true/false"]),
        ("reward_weights: [1.0, high]", ["reward_weights", "high"]),
        ("reward_weights: [1,0, 0,5]", ["reward_weights has 4 entries for 2"]),
        ("learning_rate: 1,0e-4", ["learning_rate", "1,0e-4"]),
        ("mapper_config: [a]", ["mapper_config", "['a']"]),
        ("lr_scheduler_type: cosin", ["lr_scheduler_type", "cosin", "'cosine'"]),
        ("hub: elsewhere", ["hub", "elsewhere", "modelscope"]),
        ("a: b: c", ["not valid YAML", "line 6"]),
    ],
)
def test_a_wrong_value_names_file_key_and_what_was_found(write, line, parts):
    path = write(line + "\n")
    fails([path], path, *parts)


@pytest.mark.parametrize(
    "words",
    [["accuracy", "format"], ["[accuracy, format]"]],
)
def test_a_list_on_the_command_line_has_spaces_or_brackets(write, words):
    path = write(base=BASE, extra="reward_funcs: [tag_count]\n")
    weights = [word.replace("accuracy", "1").replace("format", "0.5") for word in words]
    recipe = load_recipe(
        [path, "--reward_funcs", *words, "--reward_weights", *weights, "--keep_columns", *words],
        "grpo",
    )
    assert recipe.script.reward_funcs == recipe.script.keep_columns == ["accuracy", "format"]
    assert recipe.training.reward_weights == [1.0, 0.5]


def test_files_that_are_no_recipe(tmp_path, write):
    path = write(name="gsm8k_small.yaml")
    missing = str(Path(path).with_name("gsm8k_smal.yaml"))
    fails([missing], f"{missing}: no such recipe file. Did you mean {path}?")
    fails([str(tmp_path / "nowhere" / "x.yaml")], "no such recipe file.")
    for content, part in (
        (b"- a\n- b\n", "mapping"),
        (b"", "mapping"),
        (b"a: \xff\xfe", "not valid YAML"),
    ):
        (tmp_path / "bad.yaml").write_bytes(content)
        fails([str(tmp_path / "bad.yaml")], "bad.yaml", part)


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
    keys = (
        "dataset_name: NAME\nmodel_name_or_path: a/b\nreward_funcs: "
        "['beside_module:f']\nchat_template: own.jinja\n"
    )
    (beside / "one.yaml").write_text(keys)
    for name, found in (
        ("rows.csv", "rows.csv"),
        ("beside.csv", str(beside / "beside.csv")),
        ("nobody/data", "nobody/data"),
        (str(here / "rows.csv"), str(here / "rows.csv")),
        ("~/beside.csv", "~/beside.csv"),
        ("countdown:2", "countdown:2"),
        ("x" * 300, "x" * 300),
    ):
        script = load_recipe([str(beside / "one.yaml"), "--dataset_name", name], "grpo").script
        assert (script.dataset_name, script.chat_template) == (found, str(beside / "own.jinja"))
    (beside / "two.yaml").write_text(keys.replace("dataset_name: NAME\n", mixture))
    parts = load_recipe(["../beside/two.yaml"], "grpo").script.dataset_mixture["datasets"]
    assert [part["id"] for part in parts] == ["../beside/beside.csv", "rows.csv", "nobody/data"]
    fails(
        ["../beside/two.yaml", "--reward_funcs", "nowhere_at_all:f"],
        "No module named 'nowhere_at_all'",
        str(here),
        str(beside),
    )


def test_names_that_are_in_no_registry(write):
    fails(
        [write("", BASE + "reward_funcs: [acuracy]\n")],
        "mine.yaml: reward_funcs: unknown reward 'acuracy'",
        "'accuracy'",
    )
    fails(
        [write("", BASE + "reward_funcs: ['no_such_file:f']\n")], "No module named 'no_such_file'"
    )
    fails(
        [write("", BASE + "reward_funcs: [format, cosine: {cosine_max_len: 5}]\n")],
        "mine.yaml: reward_funcs: reward ",
        "cosine",
    )
    for method in ("grpo", "sft"):
        base = GRPO if method == "grpo" else BASE
        fails(
            [write("response_format: think_anser\n", base)],
            "mine.yaml",
            "'think_anser'",
            "'think_answer'",
            method=method,
        )
    fails(
        [write("reward_weights: [1.0]\n")],
        "reward_weights has 1 entries for 2 reward_funcs ['accuracy', 'format']",
    )


CUSTOM = """\
from __future__ import annotations
from typing import Optional

def plain(prompts, completions, **columns):
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

def clash(completions, *, temperature=1.0, **columns):
    return [temperature for _ in completions]
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
    argv = [
        write("brevity_limit: 7\nbrevity_slope: 1e-2\n", base),
        "--brevity_words",
        "a",
        "b",
        "--brevity_strict",
    ]
    recipe = load_recipe(argv, "grpo")
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
    fails([write("brevity_limits: 7\n", base)], "unknown key 'brevity_limits'", "brevity_limit")
    fails([write("brevity_limit: 7\n")], "unknown key 'brevity_limit'")  # the reward is not named


def test_reward_models_are_rewards_by_name(write):
    base = BASE + "reward_funcs: [accuracy, helpful, kind]\n"
    entries = (
        "reward_models:\n  helpful: {model: a/b, batch_size: 4}\n  kind: {model: 'openai:m', "
        "prompt: 'Rate {response}', scope: full}\n"
    )
    recipe = load_recipe(
        [write(entries + "task_rewards: {maths: [accuracy], chat: [helpful, kind]}\n", base)],
        "grpo",
    )
    assert recipe.reward_params["reward_models"]["helpful"] == {"model": "a/b", "batch_size": 4}
    assert recipe.settings["reward_models"] == recipe.script.reward_models
    typed = load_recipe(
        [write(entries, base), "--reward_models", "{helpful: {model: c/d}, kind: {model: e/f}}"],
        "grpo",
    )
    assert typed.script.reward_models == {"helpful": {"model": "c/d"}, "kind": {"model": "e/f"}}


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
    assert (training.use_cpu, training.bf16, training.fp16, training.use_vllm) == (
        True,
        False,
        False,
        False,
    ) and not training.tf32
    # What ran is in recipe.yaml, what was asked in run.json; the same again is the same run.
    assert {key: recipe.settings[key] for key in recipe.adapted} == {
        key: key == "use_cpu" for key in recipe.adapted
    }
    assert recipe.adapted == {"use_cpu": False, "use_vllm": True} | {
        key: True for key in ("bf16", "fp16", "tf32") if key in recipe.adapted
    }
    assert {"use_cpu", "use_vllm", "fp16" if "fp16" in said else "bf16"} <= set(recipe.adapted)
    assert load_recipe([path], "grpo").settings == recipe.settings
    (warning,) = recipe.warnings
    assert "no accelerator is visible" in warning and "hundreds of times slower" in warning
    assert all(f"{key}: {str(recipe.settings[key]).lower()}" in warning for key in recipe.adapted)


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_an_open_r1_recipe_parses_as_it_is(method, monkeypatch):
    monkeypatch.setattr(load, "follow_machine", lambda *arguments: {})
    path = FIXTURES / f"open_r1_{method}.yaml"
    written = read_yaml(path)
    older = [key for key in written if key in TABLE["renamed"] or key in TABLE["obsolete"]]
    recipe = load_recipe([str(path)], method)
    assert (
        re.findall(r"\.yaml: (\w+)(?: is ignored|: \S+ is read as)", "\n".join(recipe.warnings))
        == older
    )
    assert len(older) >= 4 and set(recipe.settings) >= {
        TABLE["renamed"].get(key, key) for key in written if key not in TABLE["obsolete"]
    }
    assert recipe.model.dtype == "bfloat16"
    assert recipe.training.lr_scheduler_kwargs == {"min_lr_rate": 0.1}
    assert recipe.training.warmup_steps == written["warmup_ratio"]
    assert recipe.training.report_to == ["wandb"]
    assert recipe.training.save_strategy.value == "epoch"
    assert recipe.training.eval_strategy.value == "no"
