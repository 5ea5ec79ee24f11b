"""recipe.load: what a file and a command line may say, and what a wrong one is told."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.extras.foreign.translate import OBSOLETE, RENAMED
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.prompts import FORMATS
from r1_recipes.recipe import load
from r1_recipes.recipe.load import Recipe, load_recipe, namespace_value
from r1_recipes.recipe.types import argument_types
from r1_recipes.rewards import REWARDS, reward_parameters
from tests.conftest import RECIPES, method_of

ROOT = Path(__file__).parents[3]
FIXTURES = Path(__file__).parents[2] / "fixtures"
BASE = """\
model_name_or_path: nobody/model
dataset_name: nobody/data
use_cpu: true
bf16: false
"""
GRPO = BASE + "reward_funcs: [accuracy, format]\n"
# By this key a recipe with older keys is still one of ours.
OURS = "response_format: think_answer\n"


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
    argv = [
        path,
        "--learning_rate",
        "5e-6",
        "--max-completion-length=32",
        "--reward_funcs",
        "accuracy",
        "format",
        "tag_count",
    ]
    argv += [
        "--reward-weights",
        "1",
        "-0.5",
        "-1e-3",
        "--gradient_checkpointing",
        "false",
        "--log_completions=no",
        "--use_vllm",
    ]
    argv += [
        "--lr_scheduler_kwargs",
        '{"min_lr_rate": 0.1}',
        "--max_steps",
        "-1",
        "--report_to",
        "none",
        "--keep_columns",
        "level",
    ]
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
    assert load_recipe([write(), "--entropy_coef", value], "grpo").training.entropy_coef == float(
        value
    )
    assert load_recipe([write(), f"--entropy-coef={value}"], "grpo").training.entropy_coef == float(
        value
    )


def test_the_path_may_stand_anywhere_and_under_config(write):
    path = write()
    for argv in (
        [path],
        ["--config", path],
        [f"--config={path}"],
        ["--seed", "3", "--config", path],
        ["--seed=3", path],
    ):
        assert load_recipe(argv, "grpo").path == Path(path)
    fails([], "no recipe given", "r1-recipes grpo RECIPE")
    fails([path, "--config", path], "A run takes one recipe")
    fails(["--config", path, "--config", path], "A run takes one recipe")
    assert load_recipe(["--smoke", path], "grpo").script.smoke is True
    fails([path, path], "unexpected argument")
    fails(["--seed=3"], "no recipe given")


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
    fails([write(), "--task_config", '{"train": '], "command line: task_config", "not valid YAML")
    fails([write(), "--task_config", "small"], "task_config: must be a mapping, got 'small' (str)")
    fails([write(), "--few_shot", "[1"], "command line: few_shot", "not valid YAML")
    fails(
        [write(), "--reward_weights", "1,0 0,5"],
        "command line: reward_weights: must be float, got '0 0'",
        "--reward_weights 1.0 0.5",
    )


def test_numbers_with_exponent_inside_a_mapping(write):
    recipe = load_recipe(
        [
            write(
                "lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1e-7, "
                "name: e5}\n"
            )
        ],
        "grpo",
    )
    assert recipe.training.lr_scheduler_kwargs == {"min_lr": 1e-7, "name": "e5"}


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
    fails(
        [write("learning_rate:\n")],
        "learning_rate: has no value",
    )


def test_booleans_where_text_is_expected(write):
    recipe = load_recipe(
        [write("eval_strategy: no\nsave_strategy: off\nscale_rewards: false\n")], "grpo"
    )  # YAML 1.1: no and off are false
    assert (recipe.training.eval_strategy.value, recipe.training.save_strategy.value) == (
        "no",
        "no",
    )
    assert recipe.training.scale_rewards == "none"
    assert (
        load_recipe([write(), "--scale_rewards", "true"], "grpo").training.scale_rewards == "group"
    )
    fails([write("run_name: on\n")], "run_name: must be str, got True (bool)", "quotes")


@pytest.mark.parametrize(
    ("said", "decided"), [("bf16: false\n", "no"), ("bf16: true\n", "bf16"), ("", "bf16")]
)
def test_the_recipes_precision_wins_over_the_launchers(write, monkeypatch, said, decided):
    monkeypatch.setenv(
        "ACCELERATE_MIXED_PRECISION", "bf16"
    )  # as accelerate launch exports mixed_precision: bf16
    base = GRPO.replace("bf16: false\n", "")
    assert load_recipe([write(said, base)], "grpo").training.mixed_precision == decided


def test_ours_can_be_unset_from_the_command_line(write):
    path = write("system_prompt: Think.\nprefill: <think>\n")
    script = load_recipe([path, "--system_prompt", "none", "--prefill", "null"], "grpo").script
    assert (script.system_prompt, script.prefill) == (None, None)
    # In a file it is a text like any other, and null is null.
    assert load_recipe([write("system_prompt: none\n")], "grpo").script.system_prompt == "none"
    fails(
        [path, "--output_dir", ""], "output_dir: must be the folder that the run writes to, got ''"
    )


def test_a_recipe_sets_no_environment_variable(write, monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    said = fails([write("env: {LD_PRELOAD: canary}\n")], "env: a recipe cannot set")
    assert "canary" not in said and "LD_PRELOAD" not in os.environ


# Each doubles, or multiplies by ten, what stands before it.
BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 30)
)
MERGES = "a0: &a0 {k: v}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 12)
)
LEVELS = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 70))


@pytest.mark.parametrize(
    "text, said",
    [
        (BOMB, "through YAML aliases"),
        (MERGES, "through YAML aliases"),
        (LEVELS, "through YAML aliases"),
        ("a: &a [*a]\n", "through YAML aliases"),
        ("a: &a {b: *a}\n", "through YAML aliases"),
        ("a: " + "1" * 5000, "not valid YAML: ValueError: Exceeds the limit"),
        ("a: 0x" + "f" * 5000, "not valid YAML: ValueError: Exceeds the limit"),
        ("a: " + "1" + ":1" * 200_000, "not valid YAML: ValueError: a number of 400001 characters"),
        ("a: " + "1" + ":1" * 200_000 + ".5", "not valid YAML: ValueError: a number of"),
        ("a: " + "[" * 100 + "]" * 100, "64 levels"),
        ("a: " + "[" * 50_000, "64 levels"),
        ("a: 2025-02-30\n", "ValueError: day is out of range"),
        ("a: !!timestamp soon\n", "not valid YAML: "),
        ("a: !!bool maybe\n", "not valid YAML: "),
        ("a: !!map [b]\n", "not valid YAML: "),
        ("a: !!python/object/apply:os.system [id]\n", "could not determine a constructor"),
        ("? [a]\n: 1\n", "unhashable key"),
        ("a: " + "x" * 1_000_001, "1000004 bytes, but a recipe may have at most 1000000"),
    ],
)
def test_a_file_that_expands_to_too_much_is_refused(tmp_path, text, said):
    path = tmp_path / "bomb.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError) as error:
        read_yaml(path)
    assert str(error.value).startswith(f"{path}: ") and said in str(error.value)


def test_a_file_that_cannot_be_opened_is_named(write, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    fails([write()], "mine.yaml: cannot be read: [Errno 13] Permission denied")


def test_yaml_anchors_and_merges_are_read(write):
    path = write(
        "lr_scheduler_kwargs: &a {min_lr_rate: 0.1}\ngeneration_kwargs: {<<: *a, "
        "min_lr_rate: 0.2, x: 1}\n"
    )
    assert load_recipe([path], "grpo").training.generation_kwargs == {"min_lr_rate": 0.2, "x": 1}


def test_an_unknown_key_names_file_key_and_the_nearest(write):
    path = write("num_generation: 8\n")
    fails([path], path, "unknown key 'num_generation' for grpo", "num_generations")
    fails(
        [write(), "--learning-rat", "1"],
        "command line: unknown key 'learning_rat'",
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
    fails([path], path, "key 'seed' appears more than once, line 7")
    fails([write("task_config: {train: 1, train: 2}\n")], "'train' appears more than once, line 6")
    assert load_recipe([write("seed: 1\nseed: 1\n")], "grpo").training.seed == 1, (
        "said twice is no contradiction"
    )


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("num_generations: many", ["num_generations: must be int, got 'many' (str)"]),
        ("num_generations: 2.5", ["num_generations: must be int, got 2.5 (float)"]),
        ("num_generations: [4, 8]", ["num_generations: must be int, got [4, 8]"]),
        ("num_generations: true", ["num_generations: must be int, got True (bool)"]),
        ("learning_rate: fast", ["learning_rate: must be float, got 'fast' (str)"]),
        ("learning_rate: {a: 1}", ["learning_rate: must be float, got {'a': 1}"]),
        ("use_vllm: perhaps", ["use_vllm: must be true/false, got 'perhaps' (str)", "true/false"]),
        ("reward_weights: [1.0, high]", ["reward_weights: must be float, got 'high' (str)"]),
        (
            "reward_weights: [1,0, 0,5]",
            ["reward_weights has 4 entries for 2", "a decimal point"],
        ),
        (
            "learning_rate: 1,0e-4",
            ["learning_rate: must be float, got '1,0e-4' (str). Fix: 1.0e-4, with a decimal point"],
        ),
        ("temperature: 0,7", ["Fix: 0.7, with a decimal point"]),
        ("dataset_config: [a, b]", ["dataset_config: must be str, got ['a', 'b']"]),
        ("mapper_config: [a]", ["mapper_config: must be a mapping, got ['a']"]),
        (
            "lr_scheduler_type: cosin",
            ["lr_scheduler_type: unknown value 'cosin'", "Did you mean 'cosine'"],
        ),
        ("save_strategy: sometimes", ["save_strategy: unknown value 'sometimes'", "epoch"]),
        ("log_level: loud", ["log_level: unknown value 'loud'", "warning"]),
        ("max_samples: few", ["max_samples: must be int, got 'few' (str)"]),
        (
            "hub: elsewhere",
            ["hub: unknown value 'elsewhere'", "Available: huggingface, modelscope"],
        ),
        (
            "cosine_max_len: long\nreward_weights: null",
            ["cosine_max_len: must be int, got 'long' (str)"],
        ),
        ("1: 2", ["the key 1 as int"]),
        ("a: b: c", ["not valid YAML", "line 6"]),
    ],
)
def test_a_wrong_value_names_file_key_and_what_was_found(write, line, parts):
    path = write(line + "\n")
    fails([path], path, *parts)


@pytest.mark.parametrize(
    "words",
    [["accuracy", "format"], ["accuracy,format"], ["accuracy,", "format"], ["[accuracy, format]"]],
)
def test_a_list_on_the_command_line_may_have_spaces_commas_or_brackets(write, words):
    path = write(base=BASE, extra="reward_funcs: [tag_count]\n")
    weights = [word.replace("accuracy", "1").replace("format", "0.5") for word in words]
    recipe = load_recipe(
        [path, "--reward_funcs", *words, "--reward_weights", *weights, "--keep_columns", *words],
        "grpo",
    )
    assert recipe.script.reward_funcs == recipe.script.keep_columns == ["accuracy", "format"]
    assert recipe.training.reward_weights == [1.0, 0.5]


def test_a_list_of_patterns_keeps_its_commas_and_brackets(write):
    recipe = load_recipe([write(), "--unfrozen_parameters", "[a-z]{1,2}", "[0-9]"], "grpo")
    assert recipe.script.unfrozen_parameters == ["[a-z]{1,2}", "[0-9]"]


def test_a_wrong_value_on_the_command_line_says_so(write):
    fails(
        [write(), "--learning_rate", "nan"],
        "command line: learning_rate: must be in [0, 1], got nan",
    )
    fails(
        [write(), "--smoke", "--num_generation", "8"], "command line: unknown key 'num_generation'"
    )
    fails(
        [write(), "--num_generations", "many"],
        "command line: num_generations: must be int, got 'many'",
    )
    fails([write(), "--num_generations"], "command line: --num_generations needs a value: int")


def test_files_that_are_no_recipe(tmp_path, write):
    path = write(name="gsm8k_small.yaml")
    missing = str(Path(path).with_name("gsm8k_smal.yaml"))
    fails([missing], f"{missing}: no such recipe file. Did you mean {path}?")
    fails([str(tmp_path / "nowhere" / "x.yaml")], "no such recipe file.")
    for content, part in (
        (b"- a\n- b\n", "found list"),
        (b"", "found NoneType"),
        (b"a: \xff\xfe", "line 1: is not UTF-8"),
    ):
        (tmp_path / "bad.yaml").write_bytes(content)
        fails([str(tmp_path / "bad.yaml")], "bad.yaml", part)


@pytest.mark.parametrize(
    ("encoding", "found"),
    [
        ("cp1252", "cp1252"),
        ("utf-16", "utf-16"),
        ("utf-16-le", "utf-16le"),
        ("utf-16-be", "utf-16be"),
        ("gb2312", "gbk"),
    ],
)
def test_a_recipe_in_another_encoding_gets_the_command_that_converts_it(tmp_path, encoding, found):
    path = tmp_path / "mine.yaml"
    path.write_bytes((GRPO + f"# {'文' if encoding == 'gb2312' else 'ü'}\n").encode(encoding))
    fails([str(path)], f"{path}: line ", "is not UTF-8. Fix: iconv -f ", f"-f {found}", "-t utf-8")


@pytest.mark.parametrize("method", ["grpo", "sft", "generate", "distill"])
def test_a_pipeline_or_data_instead_of_a_recipe(tmp_path, method):
    pipeline = next((ROOT / "recipes" / "pipelines").glob("*.yaml"))
    fails(
        [str(pipeline)],
        f"{pipeline}: is a pipeline",
        f"python -m r1_recipes.pipeline {pipeline}",
        method=method,
    )
    for name in ("my data.csv", "rows.jsonl"):
        (tmp_path / name).write_text("question,answer\n1,2\n")
        fails([str(tmp_path / name)], "got data. Fix: r1-recipes init ", name, method=method)


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
        "no module 'nowhere_at_all'",
        str(here),
        str(beside),
    )


def test_an_environment_that_judges_asks_for_no_format(write):
    game = "environment: guess_number\ndataset_name: environment:guess_number\n"
    base = BASE.replace("dataset_name: nobody/data\n", "")
    assert load_recipe([write(game, base)], "grpo").script.system_prompt == ""
    for keys in (
        "response_format: boxed\n",
        "reward_funcs: [accuracy]\n",
        "system_prompt: Play.\n",
    ):
        assert load_recipe([write(game + keys, base)], "grpo").script.system_prompt in (
            None,
            "Play.",
        )


def test_what_a_recipe_must_have(write):
    fails(
        [write(base="model_name_or_path: a\nuse_cpu: true\nreward_funcs: [format]\n")],
        "dataset_name: missing",
        "mine.yaml",
    )
    fails(
        [write(base="dataset_name: a\nuse_cpu: true\nbf16: false\nreward_funcs: [format]\n")],
        "model_name_or_path: missing",
        "mine.yaml",
    )
    fails([write(base=BASE)], "reward_funcs: missing", "accuracy")
    fails(
        [write("dataset_mixture: {datasets: [{id: a}]}\n")],
        "dataset_name and dataset_mixture are both set",
    )
    assert load_recipe([write(base=BASE)], "sft").script.dataset_name == "nobody/data"


def test_names_that_are_in_no_registry(write):
    fails(
        [write("", BASE + "reward_funcs: [acuracy]\n")],
        "mine.yaml: reward_funcs: unknown reward 'acuracy'",
        "'accuracy'",
    )
    fails([write("", BASE + "reward_funcs: ['no_such_file:f']\n")], "no module 'no_such_file'")
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
            [write("mapper: gms8k\n", base)],
            "mine.yaml",
            "unknown mapper 'gms8k'",
            "'gsm8k'",
            method=method,
        )
    fails(
        [write("mapper: arithmetic\nmapper_config: {share: 1}\n")],
        "key of mapper 'arithmetic' 'share'",
        "worked_share",
    )
    fails(
        [write("reward_weights: [1.0]\n")],
        "reward_weights has 1 entries for 2 reward_funcs ['accuracy', 'format']",
    )


def test_parameters_of_rewards(write):
    base = BASE + "reward_funcs: [cosine, repetition_penalty]\n"
    recipe = load_recipe(
        [write("cosine_max_len: 200\nrepetition_max_penalty: -5e-1\n", base)], "grpo"
    )
    assert recipe.reward_params == {"cosine_max_len": 200, "repetition_max_penalty": -0.5}
    assert recipe.warnings == []
    assert recipe.settings["cosine_max_len"] == 200


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_a_parameter_of_no_selected_reward_is_one_warning(write, method):
    recipe = load_recipe(
        [write("cosine_max_len: 200\n", GRPO if method == "grpo" else BASE)], method
    )
    assert len(recipe.warnings) == 1
    assert "cosine_max_len is ignored" in recipe.warnings[0]
    assert recipe.reward_params == {}


CUSTOM = """\
from dataclasses import dataclass
from typing import Optional
from r1_recipes.rewards import Reward

def plain(prompts, completions, **columns):
    return [0.0 for _ in completions]

@dataclass(frozen=True)
class Brevity(Reward):
    brevity_limit: int = 100
    brevity_slope: Optional[float] = None
    brevity_words: list[str] = ()
    brevity_strict: bool = False
    name = "brevity"

    def __call__(self, completions, **columns):
        return [float(self.brevity_limit) for _ in completions]

@dataclass(frozen=True)
class Clash(Reward):
    temperature: float = 1.0
    name = "clash"
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
    base = BASE + f"reward_funcs: ['{custom}:Brevity', '{custom}:plain', format]\n"
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


def test_a_reward_parameter_that_is_the_trainer_s_own_key_is_refused(write, custom):
    fails(
        [write("", BASE + f"reward_funcs: ['{custom}:Clash']\n")],
        "parameter 'temperature' of a reward is a key of the trainer too",
    )


def test_no_registered_reward_shadows_a_key():
    for method in ("grpo", "sft", "generate"):
        own = {f.name for kind in argument_types(method) for f in dataclasses.fields(kind)}
        assert not own & set(reward_parameters(REWARDS))


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


@pytest.mark.parametrize(
    ("funcs", "entries", "parts"),
    [
        (
            "[format]",
            "{helpful: {model: a/b}}",
            ["reward_models: 'helpful': must be named in reward_funcs, got ['format']"],
        ),
        (
            "[format, helpfull]",
            "{helpful: {model: a/b}}",
            ["reward_models: 'helpful': must be named in reward_funcs"],
        ),
        (
            "[format, step]",
            "{step: {model: a/b}}",
            ["reward_models: 'step': must not be the name of a column"],
        ),
        (
            "[format]",
            "{format: {model: a/b}}",
            ["reward_models: 'format': must be letters, digits and _"],
        ),
        (
            "[helpful]",
            "{helpful: {model: a/b, scop: full}}",
            ["mine.yaml: reward_models: helpful: unknown key 'scop'", "'scope'"],
        ),
        ("[helpful]", "[a/b]", ["reward_models: must be a mapping, got ['a/b']"]),
        ("[helpful]", "null", ["unknown reward 'helpful'"]),
    ],
)
def test_reward_models_that_cannot_be(write, funcs, entries, parts):
    fails([write(f"reward_models: {entries}\n", BASE + f"reward_funcs: {funcs}\n")], *parts)


@pytest.mark.parametrize(
    "key",
    [
        "reward_model",
        "reward_model_scope",
        "reward_model_activation",
        "reward_model_prompt",
        "reward_model_batch_size",
    ],
)
def test_the_keys_of_a_single_reward_model_say_what_to_write(write, key):
    for extra, *words in ((f"{key}: full\n",), ("", f"--{key}", "full")):
        fails(
            [write(extra), *words],
            f"{key}: must be in an entry of reward_models",
            "Fix: reward_models: {NAME: {model: …,",
            "NAME in reward_funcs",
        )


def test_pairs_need_something_to_compare(write):
    base = "model_name_or_path: a\ndataset_name: b\noutput_dir: c\nkeep: {output: pairs}\n"
    for extra in ("num_generations: 4\n", "reward_funcs: [accuracy]\n"):
        fails(
            [write(extra, base)],
            "keep: output: pairs needs reward_funcs, num_generations of 2 or more, and no best_of",
            method="generate",
        )
    load_recipe([write("reward_funcs: [accuracy]\nnum_generations: 2\n", base)], "generate")


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


@pytest.mark.usefixtures("no_accelerator")
def test_what_is_typed_and_what_a_recipe_for_a_cpu_says_stays(write):
    path = write("use_vllm: true\nbf16: true\n", FOR_A_GPU)
    typed = load_recipe([path, "--use_cpu", "true", "--bf16", "true"], "grpo")
    assert (
        typed.training.bf16 is True
        and typed.adapted == {"use_vllm": True}
        and "use_cpu is true" in typed.warnings[0]
    )
    assert (
        load_recipe([path, "--use_vllm", "true"], "grpo").training.use_vllm is True
    )  # which check_generation_backend refuses
    server = load_recipe([path, "--vllm_mode", "server"], "grpo")
    assert (
        server.training.use_vllm is True and "use_vllm" not in server.adapted
    )  # it has a GPU of its own
    own = load_recipe([write("use_cpu: true\nbf16: true\n", FOR_A_GPU)], "grpo")
    assert own.training.bf16 is True and own.warnings == []


def test_with_an_accelerator_nothing_follows(write, monkeypatch):
    import torch

    monkeypatch.setattr(torch.accelerator, "is_available", lambda *arguments: True)
    path = Path(write("use_vllm: true\nbf16: true\n", FOR_A_GPU))
    settings = read_yaml(path)
    recipe = Recipe(path=path, method="grpo", script=None, training=None, model=None)
    assert (
        load._follow_machine(recipe, settings) == {}
        and settings == read_yaml(path)
        and recipe.warnings == []
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--reward_funcs", "acuracy"], "unknown reward 'acuracy'"),
        ([], "outputs/demo/cold_start does not exist yet"),
    ],
)
def test_what_needs_no_torch_is_refused_without_it(arguments, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    heavy = "{'torch', 'transformers', 'trl', 'datasets'} & set(sys.modules)"
    program = (
        f"import sys\nfrom r1_recipes import grpo\ntry:\n    grpo.main(sys.argv[1:])\nfinally:\n "
        f"   assert not {heavy}"
    )
    command = [sys.executable, "-c", program, str(ROOT / "recipes" / "cpu/demo_2_grpo.yaml"), *arguments]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and message in refused.stderr and refused.stderr.count("\n") == 1


def test_a_token_is_not_among_the_settings_that_a_run_keeps(write):
    recipe = load_recipe([write("hub_token: hf_secret\n")], "grpo")
    assert recipe.training.hub_token == "hf_secret"
    assert "hf_secret" not in str(recipe.settings)


KEYS = {
    method: {f.name for kind in argument_types(method) for f in dataclasses.fields(kind)}
    | set(reward_parameters(REWARDS))
    for method in ("grpo", "sft")
}
# A value that the key's type takes.
VALUES = {
    "torch_dtype": "bfloat16",
    "evaluation_strategy": "no",
    "warmup_ratio": 0.1,
    "vllm_guided_decoding_regex": "a+",
}
VALUES |= {"dataset_prompt_column": "problem", "hub_model_revision": "v1"}
VALUES |= dict.fromkeys(("use_liger", "use_liger_loss", "wandb_log_unique_prompts"), True)


@pytest.mark.parametrize("old", RENAMED)
def test_a_renamed_key_is_read_as_today_s_with_one_warning(write, old):
    new = RENAMED[old]
    method = "grpo" if new in KEYS["grpo"] else "sft"
    assert new in KEYS[method] and old not in KEYS["grpo"] | KEYS["sft"]
    base = "".join(
        line
        for line in (GRPO if method == "grpo" else BASE).splitlines(True)
        if not line.startswith(f"{new}:")
    )
    value = VALUES.get(old, 8)
    recipe = load_recipe([write(f"{old}: {value}\n{OURS}", base)], method)
    assert [f"{old} is read as {new}" in warning for warning in recipe.warnings[1:]] == [True]
    found = namespace_value(recipe, new)
    assert getattr(found, "value", found) == value
    assert new in recipe.settings and old not in recipe.settings
    fails(
        [write(f"{old}: {value}\n{new}: {value}\n", base)],
        f"{old} is the old name of {new}, and both are set",
        method=method,
    )


@pytest.mark.parametrize("old", OBSOLETE)
def test_an_obsolete_key_is_dropped_with_one_warning(write, old):
    assert old not in KEYS["grpo"] | KEYS["sft"]
    for method, base in (("grpo", GRPO), ("sft", BASE)):
        recipe = load_recipe([write(f"{old}: true\n{OURS}", base)], method)
        today, ignored = recipe.warnings
        assert (
            "read with the current defaults" in today
            and f"{old} is ignored: {OBSOLETE[old]}" in ignored
        )
        assert old not in recipe.settings


def test_keys_that_the_tables_recommend_exist():
    known = (
        KEYS["grpo"]
        | KEYS["sft"]
        | {"use_reentrant", "id", "datasets", "split", "weight", "colocate"}
    )
    for text in OBSOLETE.values():
        for key in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text):
            if key not in (
                "my_module",
                "my_reward",
                "num_tokens",
                "step_time",
                "group_by_length",
                "binary_code",
            ):
                assert key in known, text


def test_translation_works_on_the_command_line_too(write):
    recipe = load_recipe(
        [
            write("max_prompt_length: 100\n" + OURS),
            "--max_prompt_tokens",
            "50",
            "--torch-dtype",
            "float32",
        ],
        "grpo",
    )
    assert recipe.script.max_prompt_tokens == 50
    assert recipe.model.dtype == "float32"
    assert [warning.split(" (")[0] for warning in recipe.warnings[1:]] == [
        f"{recipe.path}: max_prompt_length is read as max_prompt_tokens: 100",
        "command line: torch_dtype is read as dtype: float32",
    ]


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_an_open_r1_recipe_parses_as_it_is(method, monkeypatch):
    monkeypatch.setattr(load, "_follow_machine", lambda *arguments: {})
    path = FIXTURES / f"open_r1_{method}.yaml"
    written = read_yaml(path)
    older = [key for key in written if key in RENAMED or key in OBSOLETE]
    recipe = load_recipe([str(path)], method)
    assert re.findall(r"\.yaml: (\w+) is (?:read as|ignored)", "\n".join(recipe.warnings)) == older
    assert len(older) >= 4 and set(recipe.settings) >= {
        RENAMED.get(key, key) for key in written if key not in OBSOLETE
    }
    assert recipe.model.dtype == "bfloat16"
    assert recipe.training.lr_scheduler_kwargs == {"min_lr_rate": 0.1}
    assert recipe.training.warmup_steps == written["warmup_ratio"]
    assert recipe.training.report_to == ["wandb"]
    assert recipe.training.save_strategy.value == "epoch"
    assert recipe.training.eval_strategy.value == "no"


def test_what_the_open_r1_recipes_say_is_what_is_run():
    grpo = load_recipe([str(FIXTURES / "open_r1_grpo.yaml")], "grpo")
    assert grpo.script.prompt_column == "problem"
    assert grpo.script.max_prompt_tokens == 256
    assert grpo.training.hub_revision == "v1"
    assert grpo.training.vllm_max_model_length == 4096
    assert grpo.training.learning_rate == 2e-5
    assert grpo.training.scale_rewards == "none"
    assert grpo.training.log_unique_prompts is True
    assert grpo.reward_params == {
        key: value
        for key, value in read_yaml(FIXTURES / "open_r1_grpo.yaml").items()
        if key.startswith(("cosine_", "repetition_"))
    }
    sft = load_recipe([str(FIXTURES / "open_r1_sft.yaml")], "sft")
    assert sft.training.max_length == 1024
    assert sft.training.eos_token == "<|im_end|>"
    assert sft.script.dataset_mixture["datasets"][0]["columns"] == ["messages"]
    assert sft.script.wandb_project == "talks"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(ROOT / "recipes")))
def test_every_shipped_recipe_parses_without_a_warning(path, monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    method = method_of(path)
    on_cpu = ["--use_cpu", "true"] + (
        ["--bf16", "false", "--tf32", "none"] if method not in ("generate", "evaluate") else []
    )
    on_cpu += ["--use_vllm", "false"] if method in ("grpo", "distill") else []
    recipe = load_recipe([str(path), *on_cpu], method)
    assert recipe.warnings == []
    assert method == "evaluate" or recipe.training.output_dir, "a run needs a folder of its own"


def test_smoke_shrinks_a_recipe_and_leaves_what_was_typed(write):
    path = write(
        "max_prompt_tokens: 100\nunfrozen_parameters: [layers]\nnum_generations: "
        "8\nmax_steps: 500\n"
    )
    recipe = load_recipe(["--smoke", path, "--max_steps", "2"], "grpo", smoke=smoke_overrides)
    assert (
        recipe.training.max_steps,
        recipe.training.num_generations,
        recipe.script.max_prompt_tokens,
    ) == (2, 2, None)
    assert Path(recipe.model.model_name_or_path).is_dir()
    assert recipe.script.smoke is True


def test_no_two_recipes_share_a_folder_or_a_hub_id():
    for key in ("output_dir", "hub_model_id"):
        values = [(read_yaml(path).get(key), path.name) for path in RECIPES]
        named = [value for value, _ in values if value is not None]
        assert len(set(named)) == len(named), values


# Prompts and formats


MONOLOGUE = (
    "You are a tutor. First think it over, as an inner monologue enclosed in <think> and "
    "</think> tags, then tell the answer."
)
BOXED = "请逐步推理，最后把答案写在 \\boxed{} 里。"


@pytest.mark.parametrize(
    ("response_format", "prompt", "wanted", "fits"),
    [
        ("think_answer", MONOLOGUE, "<answer>", "think_prose"),
        ("think_answer", "先在 <think> 和 </think> 之间思考，再回答。", "<answer>", "think_prose"),
        ("think_answer", BOXED, "<answer>", "boxed"),
        (
            "think_answer",
            "Think in <think></think>, then write \\boxed{}.",
            "<answer>",
            "think_boxed",
        ),
        (
            "think_answer",
            "Use the headings '## Thinking' and '## Final Response'.",
            "<think> and <answer>",
            "thinking_response",
        ),
        (
            "think_answer",
            "格式：|special_token|推理|special_token|总结",
            "<think> and <answer>",
            "special_token",
        ),
        (
            "think_answer",
            "在 <reasoning> 里推理，在 <answer> 里作答。",
            "<think>",
            "reasoning_answer",
        ),
        ("think_boxed", "<think>…</think> and then <answer>…</answer>.", "\\boxed", "think_answer"),
        ("boxed_only", "Put the answer between <answer> and </answer>.", "\\boxed", "think_answer"),
        ("special_token", MONOLOGUE, "|special_token|", "think_prose"),
        ("thinking_response", "Write '## Thinking' first.", "## Final Response", None),
        ("think_answer", "Do not be verbose. Put the answer in \\boxed{}.", "<answer>", "boxed"),
        ("think_answer", "分别写出步骤，答案放入 \\boxed{}。", "<answer>", "boxed"),
    ],
)
def test_a_prompt_for_another_shape_than_the_format_reads(
    write, response_format, prompt, wanted, fits
):
    path = write(yaml.safe_dump({"response_format": response_format, "system_prompt": prompt}))
    fix = (
        f"response_format: {fits}" if fits else "a system_prompt that asks for the answer's format"
    )
    found = (
        f"system_prompt: must ask for {wanted}, which rewards read (response_format "
        f"{response_format})"
    )
    fails([path], found, f"Fix: {fix}, or remove system_prompt")
    if fits:
        load_recipe([path, "--response_format", fits], "grpo")


@pytest.mark.parametrize(
    ("prompt", "wanted", "odd"),
    [
        ("<Think>…</Think><ANSWER>…</ANSWER>", "<think> and <answer>", "<think> and <answer>"),
        ("＜think＞…＜/think＞, <answer>…</answer>", "<think>", "<think>"),
        (
            "&lt;think&gt;…&lt;/think&gt; &lt;answer&gt;…",
            "<think> and <answer>",
            "<think> and <answer>",
        ),
    ],
)
def test_marks_are_written_exactly(write, prompt, wanted, odd):
    path = write(yaml.safe_dump({"response_format": "think_answer", "system_prompt": prompt}))
    fails(
        [path],
        f"system_prompt: must ask for {wanted}, ",
        f"in other characters. Fix: write {odd}",
    )


@pytest.mark.parametrize(
    ("response_format", "prompt", "changes"),
    [
        (
            "think_answer",
            "You are a helpful assistant. 你是一个有用的助手。",
            {},
        ),  # a persona; preflight warns
        ("think_answer", "", {}),
        (
            "think_answer",
            "答案写在 <answer> 和 </answer> 之间。",
            {},
        ),  # reasoning models, or their templates, open <think> themselves
        ("think_boxed", BOXED, {}),
        ("think_prose", BOXED, {}),
        ("think_boxed", MONOLOGUE, {}),  # the data may ask for the box
        ("answer_or_boxed", BOXED, {}),
        ("boxed", MONOLOGUE, {}),  # it searches the whole text
        ("think_answer", "Between <passage> and </passage> stands a text.", {}),
        (
            "think_answer",
            "Answer in <answer></answer>, the number in \\boxed{}.",
            {"prefill": "<think>\n"},
        ),
        (
            "special_token",
            BOXED,
            {"few_shot": [{"question": "1+1?", "reasoning": "one more", "answer": "2"}]},
        ),
        (
            "think_answer",
            MONOLOGUE,
            {"reward_funcs": ["tests.conftest:letters"]},
        ),  # nothing reads the format
        # An answer is paid whatever stands before it.
        (
            "reasoning_answer",
            "答案写在 <answer> 和 </answer> 之间。",
            {"reward_funcs": ["accuracy"]},
        ),
        (
            "think_answer",
            "在 <reasoning> 里推理，在 <answer> 里作答。",
            {"reward_funcs": ["accuracy"]},
        ),
        ("think_answer", "## Thinking\nBe brief.", {}),
        ("think_answer", "Do not write \\boxed{}.", {}),
        ("think_answer", "Don’t use \\boxed{} or <reasoning>.", {}),
        ("boxed_only", "Never use <reasoning> tags.", {}),
        ("think_answer", "直接回答，不要使用\\boxed{}。", {}),
        *((name, None, {}) for name in FORMATS),
    ],
)
def test_prompts_that_are_in_order_or_for_preflight_to_judge(
    write, response_format, prompt, changes
):
    settings = {
        "reward_funcs": ["accuracy", "format"],
        "response_format": response_format,
        "system_prompt": prompt,
        **changes,
    }
    load_recipe([write(yaml.safe_dump(settings), base=BASE)], "grpo")


def test_without_the_end_of_the_reasoning_nothing_is_read(write):
    prompt = {
        "system_prompt": "Think in <think>, then write \\boxed{}.",
        "reward_funcs": ["accuracy"],
    }
    for name in ("thinking_response", "special_token"):
        path = write(yaml.safe_dump({"response_format": name, **prompt}), base=BASE)
        fails([path], f"system_prompt: must ask for {FORMATS[name].reasoning_tags[1]}, which")


def test_a_prompt_template_for_another_shape(write):
    text = (
        "model_name_or_path: m\ndataset_name: d\noutput_dir: o\nreward_funcs: "
        "[accuracy]\nsystem_prompt: ''\n"
    )
    path = write("prompt_template: '{question} 答案写在 \\boxed{} 里。'\n", base=text)
    fails(
        [path],
        "prompt_template: must ask for <answer>",
        "Fix: response_format: boxed, or remove prompt_template",
        method="generate",
    )


def test_pairs_of_right_completions_alone(write):
    text = (
        "model_name_or_path: m\ndataset_name: d\nuse_cpu: true\noutput_dir: o\nnum_generations: "
        "4\nseed: 1\n"
    )
    keep = "keep: {output: pairs, correct: true}\n"
    fails(
        [write(keep + "reward_funcs: [accuracy]\n", base=text)],
        "keep: correct: must be false for output: pairs",
        method="generate",
    )
    load_recipe([write(keep + "reward_funcs: [accuracy, length]\n", base=text)], "generate")


@pytest.mark.parametrize("name", ["completion", "answer_parsed", "solution", "refused", "turns"])
def test_a_reward_model_named_as_a_column_of_the_completions(write, name):
    entries = {"reward_funcs": [name], "reward_models": {name: {"model": "m"}}}
    fails(
        [write(yaml.safe_dump(entries), base=BASE)],
        f"reward_models: {name!r}: must not be the name of a column",
    )
