"""Other projects' files: their real keys with invented values, what becomes of each, and that none
is lost without a word.
"""

import re

import pytest
import yaml

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.extras.foreign.translate import OBSOLETE, RENAMED, RESHAPED
from r1_recipes.recipe.load import load_recipe
from r1_recipes.recipe.types import namespace_value
from tests.conftest import REPOSITORY

FIXTURES = REPOSITORY / "tests" / "fixtures"


# What a file leaves to the TRL that it was written for: the last open-r1.
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
OLDER = {"overwrite_output_dir": True}


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
    assert settings.keys() - carried == set(then.split()) - written.keys()


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
        ("sft", OLDER, SFT | SFT_SAME | {"packing": False}, "open-r1"),
        ("sft", OLDER | {"packing": True}, {"packing_strategy": "wrapped"}, "open-r1"),
        (
            "sft",
            OLDER | {"packing": True, "packing_strategy": "ffd"},
            {"packing_strategy": "bfd"},
            "open-r1",
        ),
    ],
)
def test_a_file_trains_with_the_defaults_of_its_time_and_names_them(
    tmp_path, method, keys, then, name
):
    path = tmp_path / "theirs.yaml"
    path.write_text(
        yaml.safe_dump(
            {"model_name_or_path": "nobody/m", "dataset_name": "nobody/rows", "output_dir": "out"}
            | {"use_cpu": True}
            | keys
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
