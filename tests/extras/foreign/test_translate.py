"""Other projects' files: their real keys with invented values, what becomes of each, and that none
is lost without a word.
"""

import re
from dataclasses import fields

import pytest
import yaml

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.extras.foreign.translate import (
    OBSOLETE,
    REFUSED,
    REFUSED_REWARDS,
    RENAMED,
    RESHAPED,
    older_defaults,
    translate,
)
from r1_recipes.recipe.checks import check_batch
from r1_recipes.recipe.load import load_recipe
from r1_recipes.recipe.types import argument_types, namespace_value
from r1_recipes.rewards import REWARDS, reward_parameters
from tests.conftest import REPOSITORY

FIXTURES = REPOSITORY / "tests" / "fixtures"
DOCUMENT = (REPOSITORY / "docs" / "migration.md").read_text(encoding="utf-8")
KNOWN = {
    f.name
    for method in ("grpo", "sft", "generate", "evaluate")
    for kind in argument_types(method)
    for f in fields(kind)
}
KNOWN |= {*REWARDS, *reward_parameters(REWARDS)}
# Values, columns and their own keys, which the tables name beside keys of a recipe.
NO_KEYS = {
    "constant_with_warmup",
    "data_source",
    "dr_grpo",
    "flash_attention_2",
    "flash_attn",
    "low_var_kl",
    "max_response_length",
}
NO_KEYS |= {
    f"cosine_{length}_len_value_{verdict}"
    for length in ("min", "max")
    for verdict in ("wrong", "correct")
}
NO_KEYS |= {"soft_cache_length", "soft_max_length"}


# What a file leaves to the TRL that it was written for: the last open-r1, and alignment-handbook
# before its move to TRL 0.19.
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
# Values that were the same then: TRL must not change them unnoticed.
GRPO_SAME = {
    "learning_rate": 1e-6,
    "lr_scheduler_type": "linear",
    "num_generations": 8,
    "num_iterations": 1,
    "epsilon": 0.2,
}
GRPO_SAME |= {
    "scale_rewards": "group",
    "mask_truncated_completions": False,
    "shuffle_dataset": True,
    "top_p": 1.0,
}
GRPO_SAME |= {
    "importance_sampling_level": "token",
    "delta": None,
    "sync_ref_model": False,
    "max_grad_norm": 1.0,
    "weight_decay": 0.0,
}
SFT = TRAINER | {
    "mapper": "conversations",
    "mapper_config": {"whole": True},
    "completion_only_loss": False,
}
SFT |= {"average_tokens_across_devices": False}
HANDBOOK = SFT | {
    "mapper_config": {"whole": True, "empty_system": True},
    "packing": True,
    "packing_strategy": "wrapped",
}
SFT_SAME = {
    "learning_rate": 2e-5,
    "max_length": 1024,
    "assistant_only_loss": False,
    "loss_type": "nll",
    "max_grad_norm": 1.0,
}
# open-r1's 0da0f7c:src/open_r1/grpo.py, line 84
BEFORE_0_18 = {"temperature": 0.9, "top_k": 50}
FEBRUARY = BEFORE_0_18 | {"loss_type": "grpo", "reward_funcs": ["accuracy", "format"]}
FEBRUARY["system_prompt"] = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant "
    "solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with "
    "the answer. The reasoning "
    "process and answer are enclosed within <think> </think> and <answer> </answer> tags, "
    "respectively, i.e., "
    "<think> reasoning process here </think><answer> answer here </answer>"
)
SIMPLE_RL = "Think FIRST. The reasoning process MUST BE enclosed within <think> and </think> tags."
OLDER = {"overwrite_output_dir": True}


def test_a_handbook_recipe_is_read_as_it_is():
    path = FIXTURES / "alignment_handbook_sft.yaml"
    recipe = load_recipe([str(path)], "sft")
    assert recipe.script.dataset_name == "nobody/talks"
    assert (recipe.script.dataset_train_split, recipe.script.dataset_test_split) == (
        "train_sft",
        "test_sft",
    )
    assert (recipe.training.max_length, recipe.training.warmup_steps) == (2048, 0.1)
    assert recipe.training.eval_strategy.value == "epoch"
    # Each key that is not carried over as it is has its sentence.
    said = "\n".join(recipe.warnings)
    written = read_yaml(path)
    for key in written:
        changed = key in RENAMED or key in OBSOLETE or key in RESHAPED
        assert (f"{path}: {key} is " in said) == changed, key
    kept = set(recipe.settings) | {key for key in written if key in OBSOLETE}
    assert {RENAMED.get(key, key) for key in written} - kept == {
        key for key in written if key in RESHAPED
    }
    assert {key: recipe.settings[key] for key in HANDBOOK if key not in written} == {
        key: value for key, value in HANDBOOK.items() if key not in written
    }


@pytest.mark.parametrize(
    ("name", "method", "then"),
    [
        (
            "open_r1_grpo",
            "grpo",
            "use_bias_correction_kl vllm_importance_sampling_correction beta loss_type optim "
            "temperature top_k response_format",
        ),
        (
            "open_r1_sft",
            "sft",
            "mapper mapper_config completion_only_loss average_tokens_across_devices optim",
        ),
        ("alignment_handbook_sft", "sft", " ".join(HANDBOOK)),
    ],
)
def test_each_key_of_a_file_is_carried_over_or_named(name, method, then):
    path = FIXTURES / f"{name}.yaml"
    written, recipe = read_yaml(path), load_recipe([str(path)], method)
    said = "\n".join(recipe.warnings)
    settings = recipe.settings | recipe.adapted
    carried = set()
    for key, value in written.items():
        today = RENAMED.get(key, key)
        named = f"{path}: {key} is read " in said or f"{path}: {key} is ignored: " in said
        assert named == (key in RENAMED or key in OBSOLETE or key in RESHAPED), key
        if today not in settings:
            assert key in OBSOLETE or key in RESHAPED, key
            continue
        carried.add(today)
        found = settings[today]
        if value is False and isinstance(found, str):
            value = {"eval_strategy": "no", "scale_rewards": "none"}[key]
        assert found == (float(value) if isinstance(found, float) else value), key
    made = (
        {"dataset_name", "dataset_train_split", "dataset_test_split"}
        if "dataset_mixer" in written
        else set()
    )
    assert settings.keys() - carried - made == set(then.split()) - written.keys()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset_mixer": "nobody/a"}, "f: dataset_mixer: must be {id: share}, shares in [0, 1]"),
        ({"dataset_mixer": {}}, "f: dataset_mixer: must be {id: share}, shares in [0, 1]"),
        ({"dataset_mixer": {"a": "most"}}, "got {'a': 'most'}"),
        ({"dataset_mixer": {"a": [1]}}, "got {'a': [1]}"),
        (
            {"dataset_mixer": {"a": 1.5}},
            "got {'a': 1.5}. Fix: dataset_mixture: {datasets: [{id, split, weight}]}",
        ),
        ({"dataset_mixer": {"a": 0}}, "got {'a': 0}"),
        ({"dataset_mixer": {"a": 1, "b": 1}, "dataset_configs": ["x"]}, "got {'a': 1, 'b': 1}"),
        (
            {"dataset_mixer": {"a": 1}, "dataset_splits": ["validation"]},
            "one split with 'train' in its name",
        ),
        (
            {"dataset_mixer": {"a": 1}, "dataset_splits": ["train_a", "train_b"]},
            "one split with 'train' in its name",
        ),
        ({"dataset_mixer": {"a": 1}, "dataset_splits": 3}, "one split with 'train' in its name"),
        (
            {"dataset_mixer": {"a": 1.0}, "dataset_name": "b"},
            "f: dataset_mixer is the old name of dataset_name, and both are set",
        ),
        (
            {
                "dataset_mixer": {"a": 1, "b": 1},
                "dataset_splits": ["training", "validation", "train_b"],
            },
            "f: dataset_mixer, dataset_splits: must be {id: share}, shares in [0, 1]; one "
            "split with 'train' in its name",
        ),
        (
            {"dataset_mixer": {"a": 1}, "dataset_configs": ["x", "y"]},
            "a list with one entry, or with one entry per data set, got {'a': 1}; ['x', 'y']",
        ),
        (
            {"tokenizer_name_or_path": "a"},
            "f: tokenizer_name_or_path: the tokenizer of the model is used. Fix: save",
        ),
        (
            {"reward_funcs": ["ioi_code"]},
            "f: reward_funcs: ioi_code needs the graders of IOI, which is not included. Fix: code, "
            "binary_code or my_module:ioi_code",
        ),
    ],
)
def test_shapes_that_cannot_be_translated_are_named(values, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        translate(values, "f", [])


def test_several_sets_are_a_mixture():
    warnings = []
    theirs = {
        "dataset_mixer": {"a": 0.25, "b": 1},
        "dataset_splits": ["train_sft", "test_sft"],
        "dataset_configs": ["x", None],
    }
    shared = {"split": "train_sft", "test_split": "test_sft", "first": True}
    assert translate(theirs, "f", warnings) == {
        "dataset_mixture": {
            "datasets": [
                {"id": "a", "config": "x", "weight": 0.25, **shared},
                {"id": "b", "weight": 1.0, **shared},
            ],
            "seed": 42,
        }
    }
    assert [warning.partition(" is ")[0] for warning in warnings] == [f"f: {key}" for key in theirs]


@pytest.mark.parametrize(
    ("method", "keys", "then", "name"),
    [
        (
            "grpo",
            OLDER,
            GRPO | GRPO_SAME,
            "open-r1 (with TRL 0.16 or 0.17: --temperature 0.9 --top_k 50; TRL 0.18)",
        ),
        (
            "grpo",
            {"vllm_device": "auto", "system_prompt": None},
            GRPO | GRPO_SAME | BEFORE_0_18,
            "open-r1 (TRL 0.14 to 0.17)",
        ),
        (
            "grpo",
            {"vllm_dtype": "auto", "scale_rewards": False},
            GRPO | BEFORE_0_18,
            "open-r1 (TRL 0.16 or 0.17)",
        ),
        (
            "grpo",
            {"vllm_device": "auto", "vllm_mode": "colocate"},
            GRPO | {"top_k": 0},
            "open-r1 (with TRL 0.16 or 0.17: ",
        ),
        (
            "grpo",
            {"vllm_device": "auto"},
            GRPO | GRPO_SAME | FEBRUARY,
            "open-r1 before 18 Feb 2025",
        ),
        (
            "grpo",
            {"vllm_device": "auto", "reward_funcs": ["cosine"]},
            {"response_format": "think_answer"},
            "open-r1 before 18 Feb 2025",
        ),
        (
            "grpo",
            OLDER | {"max_eval_samples": 8, "prompt_column": "q", "hub": "modelscope"},
            GRPO,
            "open-r1",
        ),
        (
            "sft",
            OLDER | {"average_tokens_across_devices": True, "packing": True},
            {"packing_strategy": "bfd"},
            "alignment-handbook (TRL 0.19)",
        ),
        (
            "grpo",
            OLDER | {"reward_funcs": ["accuracy"]},
            GRPO | {"response_format": "boxed", "reward_funcs": ["accuracy"]},
            "open-r1",
        ),
        (
            "grpo",
            OLDER | {"reward_funcs": ["code"]},
            {"mapper": "verifiable_code", "response_format": "boxed"},
            "open-r1",
        ),
        (
            "grpo",
            OLDER | {"code_provider": "e2b", "reward_funcs": ["code", "format"]},
            {"response_format": "think_answer"},
            "open-r1",
        ),
        (
            "sft",
            OLDER,
            SFT | SFT_SAME | {"packing": False},
            "open-r1 or alignment-handbook (since July 2025: --average",
        ),
        ("sft", OLDER | {"packing": True}, {"packing_strategy": "wrapped"}, "open-r1"),
        (
            "sft",
            OLDER | {"packing": True, "packing_strategy": "ffd"},
            {"packing_strategy": "bfd"},
            "open-r1",
        ),
        (
            "sft",
            {"dataset_mixer": {"nobody/talks": 1}},
            HANDBOOK | SFT_SAME,
            "alignment-handbook (TRL 0.12)",
        ),
        (
            "sft",
            {"dataset_mixer": {"a": 1}, "auto_insert_empty_system_msg": False},
            {"mapper_config": {"whole": True}},
            "alignment-handbook",
        ),
    ],
)
def test_a_file_trains_with_the_defaults_of_its_time_and_names_them(
    tmp_path, method, keys, then, name
):
    path = tmp_path / "theirs.yaml"
    data = {} if "dataset_mixer" in keys else {"dataset_name": "nobody/rows"}
    path.write_text(
        yaml.safe_dump(
            {"model_name_or_path": "nobody/m", "output_dir": "out", "use_cpu": True} | data | keys
        ),
        encoding="utf-8",
    )
    # One process: TRL's batch of 8 is one group.
    recipe = load_recipe([str(path)], method)
    found = {key: namespace_value(recipe, key) for key in then}
    assert {key: getattr(value, "value", value) for key, value in found.items()} == then
    [line] = [warning for warning in recipe.warnings if "read as a file for" in warning]
    assert line.startswith(f"{path}: read as a file for {name}") and line.endswith(
        "; a key in the file or on the command line takes precedence"
    )
    listed = yaml.safe_load("{" + re.search(r"\): (.*); a key", line)[1] + "}")
    assert listed.items() <= recipe.settings.items() and not listed.keys() & keys.keys()
    # Nothing else differs from what today's defaults give the same file.
    ours = tmp_path / "ours.yaml"
    ours.write_text(yaml.safe_dump({key: value for key, value in recipe.settings.items() if key not in listed} | {"few_shot": None}
                                   | {key: listed[key] for key in {"reward_funcs", "bf16"} & listed.keys()}), encoding="utf-8")  # fmt: skip
    today = load_recipe([str(ours)], method)
    assert today.warnings == []
    for part in ("script", "training", "model"):
        for key, value in vars(getattr(recipe, part)).items():
            if key not in listed and not key.startswith("_"):
                assert str(value) == str(getattr(getattr(today, part), key)), key


def test_a_prompt_of_theirs_decides_which_format_is_rewarded():
    rewards = {**OLDER, "reward_funcs": ["accuracy", "format"]}
    then = older_defaults(rewards | {"system_prompt": SIMPLE_RL}, {}, "grpo", "f", warnings := [])
    assert (
        then["response_format"] == "think_prose" and "response_format: think_prose" in warnings[-1]
    )
    assert any("format rewards think_prose" in warning for warning in warnings)
    assert any(
        "accuracy and code read only the text after </think>" in warning for warning in warnings
    )
    assert older_defaults(dict(rewards), {}, "grpo", "f", [])["response_format"] == "think_answer"
    older_defaults(rewards, {"response_format": "boxed"}, "grpo", "f", warnings := [])
    assert not any("<answer>" in warning for warning in warnings)
    newer = older_defaults({"vllm_device": "auto"}, {"system_prompt": ""}, "grpo", "f", [])
    assert newer["loss_type"] == "bnpo" and "tag_count" in newer["reward_funcs"]


def test_seven_processes_for_fourteen_completions():
    values = {
        "num_generations": 14,
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 4,
    }
    with pytest.raises(
        RecipeError, match=r"or 7 processes \(accelerate launch --num_processes 7\)$"
    ):
        check_batch("f", values.get, 8)


def test_older_keys_beside_ours_are_said_to_be_read_with_today_s_defaults():
    warnings: list[str] = []
    assert older_defaults({**OLDER, "response_format": "boxed"}, {}, "grpo", "f", warnings) == {}
    (warning,) = warnings
    assert warning.startswith("f: read with the current defaults (beta 0.0, loss_type dapo, …).")
    assert "remove response_format" in warning


@pytest.mark.parametrize("key", ["datasets", "env"])
def test_keys_of_trl_s_own_files_are_refused_with_what_to_write(key):
    with pytest.raises(RecipeError, match=rf"^f: {key}: .* Fix: "):
        translate({key: 1}, "f", [])


def test_a_key_of_another_method_names_it(tmp_path):
    path = tmp_path / "theirs.yaml"
    path.write_text("use_vllm: true\n", encoding="utf-8")
    with pytest.raises(
        RecipeError,
        match=r"unknown key 'use_vllm' for sft, but it is a key of grpo: python -m r1_recipes\.grpo FILE",
    ):
        load_recipe([str(path)], "sft")


def test_the_command_line_wins_over_the_defaults_of_its_time():
    path = FIXTURES / "open_r1_sft.yaml"
    recipe = load_recipe(
        [
            str(path),
            "--mapper",
            "auto",
            "--optim",
            "adamw_torch_fused",
            "--completion_only_loss",
            "true",
        ],
        "sft",
    )
    assert (
        recipe.script.mapper,
        recipe.script.mapper_config,
        recipe.training.completion_only_loss,
    ) == ("auto", None, True)
    [line] = [warning for warning in recipe.warnings if "read as a file for" in warning]
    assert "optim" not in line and "mapper" not in line


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "recipes").rglob("*.yaml")), ids=lambda path: path.stem
)
def test_no_recipe_of_ours_is_taken_for_another_project_s(path):
    values = read_yaml(path)
    for method in ("grpo", "sft"):
        assert older_defaults(values, {}, method, "f", []) == {}


@pytest.mark.parametrize("method", ["grpo", "sft"])
@pytest.mark.parametrize(
    "older", [{"dataset_mixer": {"a": 0.5}}, {"torch_dtype": "bfloat16", "loss_type": "kto_pair"}]
)
def test_preference_training_is_trl_s_own(method, older):
    with pytest.raises(
        RecipeError,
        match=r"^f: beta without reward_funcs: .* Fix: trl dpo --config f \(or trl kto\)$",
    ):
        older_defaults({"beta": 0.1, **older}, {}, method, "f", [])


def test_lists_that_open_r1_never_read_are_ignored_and_alignment_handbook_s_are_read():
    warnings = []
    theirs = {"dataset_name": "a", "dataset_configs": ["train"], "dataset_splits": ["train"]}
    assert translate(theirs, "f", warnings) == {"dataset_name": "a"}
    assert [warning.partition(": open-r1 ")[0] for warning in warnings] == [
        "f: dataset_configs is ignored",
        "f: dataset_splits is ignored",
    ]
    assert translate({"dataset_mixer": {"a": 1}, "dataset_configs": "all"}, "f", []) == {
        "dataset_name": "a",
        "dataset_config": "all",
    }


@pytest.mark.parametrize(
    "theirs",
    [
        {"actor_rollout_ref": {"rollout": {"n": 4}}},
        {"data.train_batch_size": 64},
        {"rlhf_type": "grpo"},
    ],
)
def test_settings_of_verl_and_ms_swift_are_unknown_keys(tmp_path, theirs):
    path = tmp_path / "theirs.yaml"
    path.write_text(yaml.safe_dump(theirs), encoding="utf-8")
    with pytest.raises(
        RecipeError,
        match=re.escape(f"{path}: unknown key {next(iter(theirs))!r} for grpo")
        + r".* docs/migration\.md",
    ):
        load_recipe([str(path)], "grpo")


def test_no_key_of_a_recipe_is_taken_for_another_project_s():
    warnings: list[str] = []
    values = dict.fromkeys(
        KNOWN | {"data"}, 1
    )  # a reward of somebody's may have a parameter `data`
    assert translate(values, "f", warnings) == values and warnings == []


@pytest.mark.parametrize("name", ["train.sh", "train.bash", "grpo_demo.py"])
def test_scripts_are_refused_in_one_line(name):
    with pytest.raises(
        RecipeError,
        match=rf"^{name}: a recipe must be a YAML file, got a script\. Fix: .*docs/migration\.md$",
    ):
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


@pytest.mark.parametrize(
    ("theirs", "here"), [row[1:] for row in ROWS if row[0] in ("open-r1", "alignment-handbook")]
)
def test_the_migration_guide_says_what_the_code_does(theirs, here):
    for key in keys(theirs):
        if here.startswith("ignored"):
            assert key in OBSOLETE
        elif key in RENAMED:
            assert f"`{RENAMED[key]}`" in here
        elif here.startswith("an error"):
            assert key in REFUSED | REFUSED_REWARDS


@pytest.mark.parametrize(
    "here", [row[2] for row in ROWS if row[0] not in ("open-r1", "alignment-handbook")]
)
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
    group, gpus, updates = (
        theirs["rollout.n"],
        8,
        theirs["train_batch_size"] // theirs["ppo_mini_batch_size"],
    )
    assert ours["num_generations"] == group
    assert ours["generation_batch_size"] == theirs["train_batch_size"] * group
    assert ours["per_device_train_batch_size"] == theirs["ppo_micro_batch_size_per_gpu"]
    per_update = ours["per_device_train_batch_size"] * ours["gradient_accumulation_steps"] * gpus
    assert per_update == theirs["ppo_mini_batch_size"] * group
    assert (
        ours["generation_batch_size"] == per_update * updates
        and ours["warmup_steps"] == theirs["lr_warmup_steps"] * updates
    )


def test_open_r1_s_characters_are_said_to_be_tokens(tmp_path):
    path = tmp_path / "theirs.yaml"
    path.write_text(
        (FIXTURES / "open_r1_grpo.yaml").read_text(encoding="utf-8") + "cosine_max_len: 120\n",
        encoding="utf-8",
    )
    warnings = load_recipe([str(path)], "grpo").warnings
    assert any(
        "cosine_max_len: 120 is read as tokens; open-r1 counts characters" in warning
        for warning in warnings
    )
    older_defaults(
        OLDER | {"reward_funcs": ["accuracy", "length"]}, {}, "grpo", "f", warnings := []
    )
    assert any("length counts tokens" in warning for warning in warnings)
    said: list[str] = []
    ours = {"cosine_max_len": 120, "reward_funcs": ["cosine"], "mapper": "math"}
    assert older_defaults(ours, {}, "grpo", "f", said) == {} and translate(ours, "f", said) == ours
    assert said == [], "a recipe of ours counts tokens"


def test_two_older_names_of_one_key_are_refused():
    message = (
        "f: use_liger_loss is the old name of use_liger_kernel, and both are set. Fix: keep only "
        "use_liger_kernel"
    )
    with pytest.raises(RecipeError, match=re.escape(message)):
        translate({"use_liger": True, "use_liger_loss": False}, "f", [])


# What open-r1's own files were like while they were run on TRL's main of February 2025.
WINTER = {
    "vllm_device": "auto",
    "use_vllm": True,
    "dataset_name": "nobody/rows",
    "system_prompt": SIMPLE_RL,
    "reward_funcs": ["format"],
}


def said_of(keys, typed=None, method="grpo"):
    older_defaults({**keys}, typed or {}, method, "f", warnings := [])
    return warnings


@pytest.mark.parametrize(
    ("keys", "top_k"),
    [
        ({}, None),  # vLLM sampled from all tokens until TRL 0.16
        ({"use_vllm": False}, 50),
        ({"top_p": 0.9}, 50),
        ({"top_p": 0.9, "vllm_tensor_parallel_size": 2}, None),
    ],
)
def test_top_k_is_that_of_the_file_s_time(keys, top_k):
    assert older_defaults(WINTER | keys, {}, "grpo", "f", []).get("top_k") == top_k


@pytest.mark.parametrize(
    ("keys", "typed", "said"),
    [
        ({}, {}, "f: temperature: 0.9: "),
        ({"temperature": 0.7}, {}, "f: temperature: 0.7: "),
        ({"temperature": 0.7}, {"temperature": "1.0"}, None),
        ({"temperature": 1}, {}, None),
        ({"scale_rewards": False}, {}, None),  # of TRL 0.16 or later, whose loss divides
    ],
)
def test_a_loss_on_undivided_logits_is_named(keys, typed, said):
    found = [warning for warning in said_of(WINTER | keys, typed) if "f: temperature: " in warning]
    assert bool(found) == bool(said) and all(warning.startswith(said) for warning in found)


@pytest.mark.parametrize(
    ("keys", "typed", "batch"),
    [
        ({}, {}, 64),
        ({"per_device_train_batch_size": 1, "num_generations": 8}, {}, 8),
        ({"per_device_train_batch_size": 2}, {"num_generations": "4"}, 8),
        ({}, {"per_device_train_batch_size": "16"}, None),
        ({"reward_weights": [1.0]}, {}, None),  # TRL has it since 11 Feb 2025
        ({"system_prompt": SIMPLE_RL}, {}, None),  # since 18 Feb 2025
    ],
)
def test_batches_that_counted_prompts_are_named_with_the_number_to_write(keys, typed, batch):
    early = {
        key: value for key, value in WINTER.items() if key not in ("system_prompt", "reward_funcs")
    }
    found = [
        warning
        for warning in said_of(early | keys, typed)
        if "per_device_train_batch_size" in warning
    ]
    assert bool(found) == bool(batch) and all(
        f"--per_device_train_batch_size {batch})" in warning for warning in found
    )


def test_a_tag_reward_that_scores_another_format_is_named():
    assert any("format rewards think_prose" in warning for warning in said_of(WINTER))
    assert not any(
        "format rewards" in warning
        for warning in said_of(WINTER, {"response_format": "think_answer"})
    )
    asks = "Write <think> and <answer> tags."
    said = said_of(WINTER | {"system_prompt": asks})
    assert not any("format rewards" in warning for warning in said) and any(
        "read only the <answer> block" in warning for warning in said
    )


def test_sft_on_gsm8k_s_rows_is_refused_with_their_mapper():
    file = OLDER | {"dataset_name": "openai/gsm8k", "dataset_config": "main"}
    with pytest.raises(
        RecipeError, match=r"^f: dataset_name: .*openai/gsm8k.* Fix: --mapper gsm8k$"
    ):
        older_defaults(file, {}, "sft", "f", [])
    assert "mapper_config" not in older_defaults(file, {"mapper": "gsm8k"}, "sft", "f", [])


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("reflection", "my_module:my_reward"),
        ("their.rewards.reflection", "their.rewards:reflection"),
    ],
)
def test_an_unknown_reward_s_refusal_names_the_way_out(tmp_path, name, own):
    path = tmp_path / "theirs.yaml"
    path.write_text(
        yaml.safe_dump(OLDER | {"dataset_name": "nobody/rows", "reward_funcs": [name]}),
        encoding="utf-8",
    )
    with pytest.raises(
        RecipeError,
        match=rf"reward_funcs: unknown reward '{name}'.* write a colon: "
        rf"{own}\.$",
    ):
        load_recipe([str(path)], "grpo")


def test_two_sizes_of_one_rollout_are_refused():
    values = {
        "num_generations": 8,
        "per_device_train_batch_size": 8,
        "generation_batch_size": 16,
        "steps_per_generation": 2,
    }
    with pytest.raises(
        RecipeError, match=r"^f: generation_batch_size, steps_per_generation: .* Fix: "
    ):
        check_batch("f", values.get, 1)
