"""Other projects' files: their real keys with invented values, what becomes of each, and that none is lost without a word."""

import re
from dataclasses import fields

import pytest
import yaml

from r1_recipes.common.errors import RecipeError
from r1_recipes.recipe.compat import OBSOLETE, RENAMED, RESHAPED, translate
from r1_recipes.recipe.load import load_recipe
from r1_recipes.recipe.text import read_yaml
from r1_recipes.recipe.types import argument_types
from r1_recipes.rewards import REWARDS, reward_parameters
from tests.conftest import REPOSITORY

FIXTURES = REPOSITORY / "tests" / "fixtures"
DOCUMENT = (REPOSITORY / "docs" / "migration.md").read_text(encoding="utf-8")
KNOWN = {f.name for method in ("grpo", "sft", "generate", "evaluate") for kind in argument_types(method) for f in fields(kind)}
KNOWN |= {*REWARDS, *reward_parameters(REWARDS)}
# Values, columns and their own keys, which the tables name beside keys of a recipe.
NO_KEYS = {"constant_with_warmup", "data_source", "dr_grpo", "flash_attention_2", "flash_attn", "low_var_kl", "max_response_length"}
NO_KEYS |= {f"cosine_{length}_len_value_{verdict}" for length in ("min", "max") for verdict in ("wrong", "correct")}
NO_KEYS |= {"soft_cache_length", "soft_max_length"}


def test_a_handbook_recipe_is_read_as_it_is():
    path = FIXTURES / "alignment_handbook_sft.yaml"
    recipe = load_recipe([str(path)], "sft")
    assert recipe.script.dataset_name == "nobody/talks"
    assert (recipe.script.dataset_train_split, recipe.script.dataset_test_split) == ("train_sft", "test_sft")
    assert (recipe.training.max_length, recipe.training.warmup_steps) == (2048, 0.1)
    assert recipe.training.eval_strategy.value == "epoch"
    # Each key that is not carried over as it is has its sentence.
    said = "\n".join(recipe.warnings)
    written = read_yaml(path)
    for key in written:
        changed = key in RENAMED or key in OBSOLETE or key in RESHAPED
        assert (f"{path}: {key} is " in said) == changed, key
    kept = set(recipe.settings) | {key for key in written if key in OBSOLETE}
    assert {RENAMED.get(key, key) for key in written} - kept == {key for key in written if key in RESHAPED}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset_mixer": "nobody/a"}, "f: dataset_mixer: must be one {id: 1.0}"),
        ({"dataset_mixer": {}}, "f: dataset_mixer: must be one {id: 1.0}"),
        ({"dataset_mixer": {"a": "most"}}, "got {'a': 'most'}"),
        ({"dataset_mixer": {"a": [1]}}, "got {'a': [1]}"),
        ({"dataset_mixer": {"a": 0.5}}, "got {'a': 0.5}. Fix: dataset_mixture: {datasets: [{id, split, weight}]}"),
        ({"dataset_mixer": {"a": 1.0, "b": 1.0}}, "Fix: dataset_mixture: {datasets"),
        ({"dataset_splits": ["validation"]}, "f: dataset_splits: must be one split with 'train' in its name"),
        ({"dataset_splits": ["train_a", "train_b"]}, "f: dataset_splits: must be one split with 'train' in its name"),
        ({"dataset_splits": 3}, "f: dataset_splits: must be one split with 'train' in its name"),
        (
            {"dataset_mixer": {"a": 1.0}, "dataset_name": "b"},
            "f: dataset_mixer is today's dataset_name, and both are set. Fix: keep dataset_name alone",
        ),
        ({"dataset_configs": ["x", "y"]}, "f: dataset_configs: must be a list of one, got ['x', 'y']"),
    ],
)
def test_shapes_that_cannot_be_translated_are_named(values, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        translate(values, "f", [])


def test_open_r1_s_list_of_one_configuration():
    warnings = []
    assert translate({"dataset_configs": ["all"]}, "f", warnings) == {"dataset_config": "all"}
    assert warnings == ["f: dataset_configs is read as dataset_config: all"]


@pytest.mark.parametrize("theirs", [{"actor_rollout_ref": {"rollout": {"n": 4}}}, {"data.train_batch_size": 64}, {"rlhf_type": "grpo"}])
def test_settings_of_verl_and_ms_swift_are_unknown_keys(tmp_path, theirs):
    path = tmp_path / "theirs.yaml"
    path.write_text(yaml.safe_dump(theirs), encoding="utf-8")
    with pytest.raises(RecipeError, match=re.escape(f"{path}: unknown key {next(iter(theirs))!r} for grpo") + r".* docs/migration\.md"):
        load_recipe([str(path)], "grpo")


def test_no_key_of_a_recipe_is_taken_for_another_project_s():
    warnings: list[str] = []
    values = dict.fromkeys(KNOWN | {"data"}, 1)  # a reward of somebody's may have a parameter `data`
    assert translate(values, "f", warnings) == values and warnings == []


@pytest.mark.parametrize("name", ["train.sh", "train.bash", "grpo_demo.py"])
def test_scripts_are_refused_in_one_line(name):
    with pytest.raises(RecipeError, match=rf"^{name}: a recipe must be a YAML file, got a script\. Fix: .*docs/migration\.md$"):
        load_recipe([name, "--learning_rate", "1e-6"], "grpo")


def document_rows():
    """``(section, theirs, here)`` of the tables in docs/migration.md."""
    section = ""
    for line in DOCUMENT.splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif section and line.startswith("| ") and not line.startswith(("| theirs", "| here")):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            yield section, *(reversed(cells) if section == "Batches and steps" else cells)


def keys(cell):
    """The keys that a cell names: ``key`` or ``key: value``."""
    return re.findall(r"`([a-z][a-z0-9_]*)(?::[^`]*)?`", cell)


ROWS = list(document_rows())


@pytest.mark.parametrize(("theirs", "here"), [row[1:] for row in ROWS if row[0] in ("open-r1", "alignment-handbook")])
def test_the_migration_guide_says_what_the_code_does(theirs, here):
    for key in keys(theirs):
        if here.startswith("ignored"):
            assert key in OBSOLETE
        elif here.startswith("unknown"):
            assert key not in KNOWN | {*OBSOLETE, *RENAMED, *RESHAPED}
        elif key in RENAMED:
            assert f"`{RENAMED[key]}`" in here


@pytest.mark.parametrize("here", [row[2] for row in ROWS if row[0] not in ("open-r1", "alignment-handbook")])
def test_the_migration_guide_names_keys_that_exist(here):
    assert [key for key in keys(here) if "_" in key and key not in KNOWN | NO_KEYS] == []
    for key, value in re.findall(r"`([a-z_0-9]+): ([^`]+)`", here):
        assert key in KNOWN | {"keep"}
        for name in yaml.safe_load(value) if key == "reward_funcs" else []:
            assert name in REWARDS or ":" in name


def test_the_example_of_batches_adds_up():
    [block] = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    ours = yaml.safe_load(block)
    example = DOCUMENT[DOCUMENT.index("For example:") : DOCUMENT.index(block)]
    theirs = {key: int(number) for key, number in re.findall(r"([a-z_.]+)=(\d+)", example)}
    group, gpus, updates = theirs["rollout.n"], 8, theirs["train_batch_size"] // theirs["ppo_mini_batch_size"]
    assert ours["num_generations"] == group
    assert ours["generation_batch_size"] == theirs["train_batch_size"] * group
    assert ours["per_device_train_batch_size"] == theirs["ppo_micro_batch_size_per_gpu"]
    per_update = ours["per_device_train_batch_size"] * ours["gradient_accumulation_steps"] * gpus
    assert per_update == theirs["ppo_mini_batch_size"] * group
    assert ours["generation_batch_size"] == per_update * updates and ours["warmup_steps"] == theirs["lr_warmup_steps"] * updates


def test_open_r1_s_characters_are_said_to_be_tokens(tmp_path):
    path = tmp_path / "theirs.yaml"
    path.write_text((FIXTURES / "open_r1_grpo.yaml").read_text(encoding="utf-8") + "cosine_max_len: 120\n", encoding="utf-8")
    warnings = load_recipe([str(path)], "grpo").warnings
    assert any("cosine_max_len: 120 is read as tokens; open-r1 counts characters" in warning for warning in warnings)
    said: list[str] = []
    assert translate({"cosine_max_len": 120, "learning_rate": 1}, "f", said) == {"cosine_max_len": 120, "learning_rate": 1}
    assert said == [], "a recipe of ours counts tokens"


def test_two_older_names_of_one_key_are_refused():
    message = "f: use_liger_loss is today's use_liger_kernel, and both are set. Fix: keep use_liger_kernel alone"
    with pytest.raises(RecipeError, match=re.escape(message)):
        translate({"use_liger": True, "use_liger_loss": False}, "f", [])
