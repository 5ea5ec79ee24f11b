"""Each rule refuses its mistake by key, and takes a recipe that differs from it in that key alone."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from r1_recipes.common.errors import RecipeError
from r1_recipes.recipe import load_recipe

LEFT_OUT = ...
DATA = {"dataset_name": "nobody/data", "use_cpu": True}
TRAINING = {**DATA, "model_name_or_path": "nobody/model", "bf16": False}
BASES: dict[str, dict[str, Any]] = {
    "sft": TRAINING,
    "distill": {**TRAINING, "teacher_model_name_or_path": "nobody/teacher"},
    "grpo": {**TRAINING, "reward_funcs": ["accuracy", "format"]},
    "generate": {**DATA, "model_name_or_path": "nobody/model", "output_dir": "out"},
    "evaluate": {**DATA, "num_samples": 2, "reward_funcs": ["accuracy"]},
}
SERVER = {"use_vllm": True, "vllm_mode": "server"}
MIXTURE = {"datasets": [{"id": "nobody/data"}]}
LORA = {"use_peft": True}
PAIR = LORA | {"unfrozen_parameters": ["layers"]}
MODELS = {"reward_models": {"kind": {"model": "m"}}}
NAMESAKES = ["tests.conftest:letters", "tests.support.flat_groups:letters"]
FILTERED = {"tools": ["calculator"], "keep": {"filters": {"truncated": True}}}
ROUNDS = "dynamic_sampling"
ROUNDED = {"max_rounds": 3, "reward": "format"}
TEACHER = "teacher_model_name_or_path"
GAME = {"environment": "tests.support.callers:Game"}
RESUMED = {"resume_from_checkpoint": "outputs/other/checkpoint-100"}

# The method, keys that are refused, what mends them, and what the error names.
CASES = [
    ("sft", {"model_name_or_path": LEFT_OUT}, {"model_name_or_path": "m"}, "model_name_or_path"),
    ("sft", {"dataset_name": LEFT_OUT}, {"dataset_name": "d"}, "dataset_name"),
    ("sft", {"dataset_mixture": MIXTURE}, {"dataset_name": LEFT_OUT}, "dataset_mixture"),
    ("sft", PAIR, {"unfrozen_parameters": None}, "unfrozen_parameters"),
    ("sft", {"packing": None}, {"packing": False}, "packing"),
    ("sft", RESUMED, {"resume_from_checkpoint": LEFT_OUT}, "resume_from_checkpoint"),
    ("distill", {TEACHER: LEFT_OUT}, {TEACHER: "t"}, TEACHER),
    ("grpo", SERVER | LORA | {"load_in_8bit": True}, {"load_in_8bit": False}, "load_in_8bit"),
    ("grpo", {"loss_type": "gspo"}, {"loss_type": "dapo"}, "loss_type"),
    ("grpo", {"scale_rewards": "std"}, {"scale_rewards": False}, "scale_rewards"),
    ("grpo", {"vllm_mode": "servr"}, {"vllm_mode": "server"}, "vllm_mode"),
    ("grpo", {"reward_funcs": []}, GAME, "reward_funcs"),
    ("grpo", MODELS, {"reward_funcs": ["kind"]}, "reward_models: 'kind'"),
    ("grpo", {"reward_funcs": NAMESAKES}, {"reward_funcs": NAMESAKES[:1]}, "reward_funcs"),
    ("grpo", {ROUNDS: {"max_rounds": 1}}, {ROUNDS: {"max_rounds": 2}}, ROUNDS),
    ("grpo", {ROUNDS: ROUNDED | {"reward": "cosine"}}, {ROUNDS: ROUNDED}, ROUNDS),
    ("generate", FILTERED, {"tools": []}, "keep"),
    ("generate", {"keep": {"correct": True}}, {"reward_funcs": ["accuracy"]}, "keep: correct"),
]


def load(folder: Path, method: str, keys: dict[str, Any]) -> Any:
    path = folder / "mine.yaml"
    settings = {
        key: value for key, value in (BASES[method] | keys).items() if value is not LEFT_OUT
    }
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return load_recipe([str(path)], method, world_size=1)


@pytest.mark.parametrize(("method", "broken", "mended", "key"), CASES)
def test_a_mistake_is_refused_by_key_and_what_is_near_it_is_not(
    tmp_path: Path, method: str, broken: dict, mended: dict, key: str
) -> None:
    load(tmp_path, method, broken | mended)
    with pytest.raises(RecipeError) as refusal:
        load(tmp_path, method, broken)
    assert "mine.yaml: " in str(refusal.value) and key in str(refusal.value)


def test_a_value_takes_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R1_TEST_ROOT", "/data")
    keys = {"output_dir": "${R1_TEST_ROOT}/run"}
    assert load(tmp_path, "sft", keys).training.output_dir == "/data/run"
    monkeypatch.delenv("R1_TEST_ROOT")
    texts = {"prompt_template": "Solve ${question}$", "few_shot": [{"question": "${x}$?"}]}
    assert load(tmp_path, "sft", texts).script.few_shot == texts["few_shot"]
    with pytest.raises(RecipeError, match="R1_TEST_ROOT"):
        load(tmp_path, "sft", keys)


def test_the_engine_holds_a_prompt_and_its_completion(tmp_path: Path) -> None:
    keys = {**SERVER, "max_prompt_tokens": 100, "max_completion_length": 512}
    tools = {"tools": ["calculator"]}  # the last turn is cut after it was generated
    for changes, length in (({}, 612), (tools, 1124), ({"max_prompt_tokens": None}, None)):
        assert load(tmp_path, "grpo", keys | changes).training.vllm_max_model_length == length
