"""Files of open-r1 run unchanged, with the defaults of their TRL. Files of other projects are named."""

import re

import pytest
import yaml

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras import foreign
from r1_recipes.recipe.load import load_recipe
from r1_recipes.recipe.types import namespace_value
from tests.conftest import REPOSITORY

FIXTURES = REPOSITORY / "tests" / "fixtures"
OLDER = {"overwrite_output_dir": True, "dataset_name": "nobody/rows"}
# What TRL 0.18.0 and Transformers 4.52.3 had, by their sources.
TRAINER = {"bf16": False, "gradient_checkpointing": False, "optim": "adamw_torch"}
GRPO = TRAINER | {
    "beta": 0.04,
    "loss_type": "bnpo",
    "max_prompt_tokens": 512,
    "max_completion_length": 256,
    "temperature": 1.0,
    "use_bias_correction_kl": False,
    "vllm_importance_sampling_correction": False,
    "system_prompt": "",
    "reward_funcs": ["accuracy", "format", "tag_count"],
    "response_format": "think_answer",
}
SFT = TRAINER | {
    "mapper": "conversations",
    "mapper_config": {"whole": True},
    "completion_only_loss": False,
    "average_tokens_across_devices": False,
    "packing_strategy": "wrapped",
}
# These have not changed since. If TRL changes one, it belongs into foreign.yaml.
SAME = {
    "grpo": {
        "learning_rate": 1e-6,
        "num_generations": 8,
        "epsilon": 0.2,
        "scale_rewards": "group",
        "top_p": 1.0,
        "max_grad_norm": 1.0,
        "shuffle_dataset": True,
        "mask_truncated_completions": False,
    },
    "sft": {"learning_rate": 2e-5, "max_length": 1024, "packing": False, "max_grad_norm": 1.0},
}
FIRST_THINK = "The reasoning process MUST BE enclosed within <think> and </think> tags."


def load(tmp_path, method, keys, *typed):
    path = tmp_path / "theirs.yaml"
    path.write_text(yaml.safe_dump({"output_dir": "out", "use_cpu": True} | keys), encoding="utf-8")
    return load_recipe([str(path), "--model_name_or_path", "nobody/m", *typed], method)


@pytest.mark.parametrize(("method", "then"), [("grpo", GRPO), ("sft", SFT)])
def test_a_file_has_the_defaults_of_its_time_and_names_them(tmp_path, method, then):
    recipe = load(tmp_path, method, OLDER)
    expected = then | SAME[method]
    found = {key: namespace_value(recipe, key) for key in expected}
    assert {key: getattr(value, "value", value) for key, value in found.items()} == expected
    [line] = [warning for warning in recipe.warnings if "read as a file of open-r1" in warning]
    listed = yaml.safe_load("{" + re.search(r"TRL 0\.18: (.*)\. Your own keys", line)[1] + "}")
    assert listed == then


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_each_key_of_a_file_of_open_r1_is_kept_or_named(method):
    path = FIXTURES / f"open_r1_{method}.yaml"
    recipe = load_recipe([str(path)], method)
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    for key in written:
        new = foreign.TABLE["renamed"].get(key, key)
        said = re.compile(rf"{re.escape(str(path))}: {key}(: .* is read as| is ignored:)")
        named = any(map(said.match, recipe.warnings))
        assert named == (new != key or new not in recipe.settings), key
    assert recipe.training.warmup_steps == written["warmup_ratio"]


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"reward_funcs": ["accuracy"]}, "boxed"),
        ({"reward_funcs": ["accuracy", "format"]}, "think_answer"),
        ({"reward_funcs": ["accuracy", "format"], "system_prompt": FIRST_THINK}, "think_prose"),
        ({"reward_funcs": ["code"], "system_prompt": "Write <think> <answer> tags."}, "think_answer"),
        ({"reward_funcs": ["code"]}, "boxed"),
    ],
)  # fmt: skip
def test_rewards_and_prompt_decide_the_format(keys, name):
    read = foreign.read(OLDER | keys, {}, "grpo", "f", [])
    assert read["response_format"] == name
    assert read.get("mapper") == ("verifiable_code" if "code" in keys["reward_funcs"] else None)


def test_the_command_line_wins_over_these_defaults(tmp_path):
    typed = ("--mapper", "auto", "--completion_only_loss", "true", "--max_seq_length", "64")
    recipe = load(tmp_path, "sft", OLDER, *typed)
    assert recipe.script.mapper == "auto"
    assert recipe.training.completion_only_loss and recipe.training.max_length == 64


def test_values_have_their_new_names():
    assert foreign.translate({"packing_strategy": "ffd"}, "f", []) == {"packing_strategy": "bfd"}


def test_no_recipe_of_ours_is_taken_for_open_r1_s():
    for path in REPOSITORY.glob("recipes/**/*.yaml"):
        keys = yaml.safe_load(path.read_text(encoding="utf-8"))
        warnings: list[str] = []
        assert foreign.read(keys, {}, "grpo", "f", warnings) == keys and not warnings, path
    ours = OLDER | {"response_format": "boxed"}
    assert "beta" not in foreign.read(ours, {}, "grpo", "f", [])


# As their projects' examples begin, with invented values.
OTHERS = {
    "Axolotl": {
        "base_model": "nobody/m",
        "rl": "grpo",
        "trl": {"num_generations": 16},
        "datasets": [{"path": "nobody/rows", "type": "rows.transform"}],
        "micro_batch_size": 16,
        "warmup_ratio": 0.1,
    },
    "LLaMA-Factory": {
        "model_name_or_path": "nobody/m",
        "stage": "sft",
        "finetuning_type": "lora",
        "dataset": "rows",
        "template": "qwen",
        "cutoff_len": 512,
        "overwrite_output_dir": True,
    },
    "ms-swift": {
        "model": "nobody/m",
        "tuner_type": "lora",
        "torch_dtype": "bfloat16",
        "split_dataset_ratio": 0.0,
        "dataset": "nobody/rows#1000",
    },
}


@pytest.mark.parametrize("project", OTHERS)
def test_a_file_of_another_project_is_one_line_that_names_it(tmp_path, project):
    with pytest.raises(RecipeError, match=rf"keys of {project}, .*docs/migration\.md$"):
        load(tmp_path, "grpo", OTHERS[project])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("lr", "learning_rate"), ("model", "model_name_or_path"), ("epochs", "num_train_epochs")],
)
def test_what_everybody_types_is_told_the_key(tmp_path, typed, meant):
    with pytest.raises(RecipeError, match=rf"unknown key '{typed}' .* Did you mean {meant}\?"):
        load(tmp_path, "grpo", {typed: 1, "dataset_name": "nobody/rows"})
