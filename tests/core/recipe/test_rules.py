"""Each rule refuses what its docstring says, and not its near miss."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from r1_recipes.common.errors import RecipeError
from r1_recipes.recipe import load_recipe, rules
from r1_recipes.recipe.rules import RULES

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
MIXTURE = {"datasets": [{"id": "nobody/data"}]}
SERVER = {"use_vllm": True, "vllm_mode": "server"}
DISTILL_SERVER = {"distill_with": "server", "teacher_model_server_url": "http://127.0.0.1:1"}
STEPS = {"eval_strategy": "steps", "eval_steps": 1}
REWARDED = {"reward_funcs": ["accuracy"]}
OPENAI = {"backend": "openai"}
BATCHING = {"use_transformers_continuous_batching": True, "bf16": True}
BEST = {**STEPS, "load_best_model_at_end": True, "save_steps": 1}
BY_REWARD = {"metric_for_best_model": "eval_reward"}

# The rule, the method, keys that it refuses, the same with what is missing or mended, and the key
# that the error names.
CASES = [
    (
        "model_is_named",
        "sft",
        {"model_name_or_path": LEFT_OUT},
        {"model_name_or_path": "m"},
        "model_name_or_path",
    ),
    ("data_are_named", "sft", {"dataset_name": LEFT_OUT}, {"dataset_name": "d"}, "dataset_name"),
    (
        "data_are_named",
        "sft",
        {"dataset_mixture": MIXTURE},
        {"dataset_name": LEFT_OUT},
        "dataset_name and dataset_mixture",
    ),
    ("mapper_is_known", "sft", {"mapper": "gsmk8"}, {"mapper": "gsm8k"}, "gsmk8"),
    (
        "mapper_is_known",
        "sft",
        {"mapper": "sums", "mapper_config": {"no": 1}},
        {"mapper_config": {}},
        "'no'",
    ),
    ("output_is_named", "generate", {"output_dir": LEFT_OUT}, {"output_dir": "out"}, "output_dir"),
    (
        "teacher_is_named",
        "distill",
        {"teacher_model_name_or_path": LEFT_OUT},
        DISTILL_SERVER,
        "teacher_model_name_or_path",
    ),
    (
        "gold_keeps_the_vocabulary",
        "distill",
        {"distill_with": "gold", "use_uld_loss": False},
        {"use_uld_loss": True},
        "use_uld_loss",
    ),
    (
        "adapters_reach_vllm",
        "grpo",
        {**SERVER, "use_peft": True, "load_in_8bit": True},
        {"load_in_8bit": False},
        "load_in_8bit",
    ),
    (
        "samples_are_counted",
        "evaluate",
        {"num_samples": LEFT_OUT},
        {"num_samples": 0},
        "num_samples",
    ),
    ("top_k_counts_tokens", "generate", {"top_k": -1}, {"top_k": 0}, "top_k"),
    (
        "completions_differ",
        "generate",
        {"temperature": 0, "num_generations": 2},
        {"num_generations": 1},
        "temperature",
    ),
    (
        "completions_differ",
        "evaluate",
        {"temperature": 0, "num_samples": 2},
        {"num_samples": 1},
        "temperature",
    ),
    ("sampling_has_a_seed", "generate", {"seed": None}, OPENAI, "seed"),
    ("sampling_has_a_seed", "evaluate", {"seed": None, **OPENAI}, {"seed": 0}, "seed"),
    ("nothing_is_trained", "generate", {"use_peft": True}, {"use_peft": False}, "use_peft"),
    (
        "nothing_is_trained",
        "evaluate",
        {"unfrozen_parameters": ["head"]},
        {"unfrozen_parameters": []},
        "unfrozen_parameters",
    ),
    (
        "keep_fits",
        "generate",
        {"tools": ["calculator"], "keep": {"filters": {"truncated": True}}},
        {"tools": []},
        "keep",
    ),
    ("keep_fits", "generate", {"keep": {"corect": True}}, {"keep": LEFT_OUT}, "corect"),
    ("keep_fits", "generate", {"keep": {"correct": True}}, REWARDED, "keep: correct"),
    ("keep_fits", "generate", {"keep": {"pass_rate": [0.1, 0.9]}}, REWARDED, "keep: correct"),
    (
        "server_has_the_tokenizer",
        "generate",
        {**OPENAI, "max_prompt_tokens": 9},
        {"max_prompt_tokens": LEFT_OUT},
        "max_prompt_tokens",
    ),
    (
        "server_has_the_tokenizer",
        "generate",
        {**OPENAI, "chat_template": "{{ messages }}"},
        {"backend": "vllm"},
        "chat_template",
    ),
    ("choices_are_known", "grpo", {"loss_type": "gspo"}, {"loss_type": "dapo"}, "loss_type"),
    (
        "choices_are_known",
        "grpo",
        {"scale_rewards": "std"},
        {"scale_rewards": False},
        "scale_rewards",
    ),
    (
        "something_is_rewarded",
        "grpo",
        {"reward_funcs": []},
        {"environment": "tests.support.callers:Game"},
        "reward_funcs: missing",
    ),
    (
        "rewards_differ",
        "grpo",
        {"reward_funcs": ["format", "format"]},
        {"reward_funcs": ["format"]},
        "reward_funcs",
    ),
    (
        "weights_are_numbers",
        "grpo",
        {"reward_weights": [0.0, 0.0]},
        {"reward_weights": [0.0, 1.0]},
        "reward_weights",
    ),
    (
        "weights_are_numbers",
        "grpo",
        {"reward_weights": [1.0, float("inf")]},
        {"reward_weights": [1.0, -1.0]},
        "reward_weights",
    ),
    ("weights_fit_rewards", "grpo", {"reward_weights": [1.0]}, REWARDED, "reward_weights"),
    (
        "weights_fit_rewards",
        "generate",
        {"reward_weights": [], **REWARDED},
        {"reward_weights": [2.0]},
        "reward_weights",
    ),
    (
        "reward_models_are_used",
        "grpo",
        {"reward_models": {"kind": {"model": "m"}}},
        {"reward_funcs": ["kind"]},
        "reward_models: 'kind'",
    ),
    (
        *("reward_models_are_used", "grpo"),
        {"reward_funcs": ["step"], "reward_models": {"step": {"model": "m"}}},
        *(
            {"reward_funcs": ["steps"], "reward_models": {"steps": {"model": "m"}}},
            "reward_models: 'step'",
        ),
    ),
    (
        "rewards_can_be_built",
        "evaluate",
        {"number_locale": "fr"},
        {"number_locale": "de"},
        "number_locale",
    ),
    (
        "prompt_fits_format",
        "grpo",
        {"system_prompt": "Write \\boxed{}."},
        {"system_prompt": "Do not write \\boxed{}."},
        "system_prompt",
    ),
    (
        "prompt_fits_format",
        "grpo",
        {"system_prompt": "Write \\boxed{}."},
        {"reward_funcs": ["repetition_penalty"]},
        "system_prompt",
    ),
    (
        "tasks_name_rewards",
        "evaluate",
        {"task_rewards": {"a": ["format"]}},
        {"task_rewards": {"a": ["accuracy"]}},
        "task_rewards",
    ),
    (
        "trainer_takes_the_keys",
        "grpo",
        {"dynamic_sampling": {"max_rounds": 1}},
        {"dynamic_sampling": {"max_rounds": 2}},
        "dynamic_sampling: max_rounds",
    ),
    (
        "trainer_takes_the_keys",
        "grpo",
        {"dynamic_sampling": {"rounds": 3}},
        {"dynamic_sampling": {"max_rounds": 3}},
        "dynamic_sampling",
    ),
    (
        "trainer_takes_the_keys",
        "grpo",
        {"dynamic_sampling": {"max_rounds": 3, "reward": "format"}, "reward_funcs": ["accuracy"]},
        {"dynamic_sampling": {"max_rounds": 3, "reward": "accuracy"}, "reward_funcs": ["accuracy"]},
        "dynamic_sampling: reward",
    ),
    (
        "weights_keep_their_precision",
        "grpo",
        BATCHING,
        {"dtype": "bfloat16"},
        "use_transformers_continuous_batching",
    ),
    ("best_is_by_reward", "grpo", BEST, BY_REWARD, "metric_for_best_model"),
    (
        "best_is_by_reward",
        "grpo",
        {"lr_scheduler_type": "reduce_lr_on_plateau", **STEPS},
        BY_REWARD,
        "metric_for_best_model",
    ),
    (
        "greedy_evaluation_samples_once",
        "grpo",
        {**SERVER, **STEPS, "eval_temperature": 0},
        {"num_generations_eval": 1},
        "num_generations_eval",
    ),
    *(
        (
            "adapters_are_trained_alone",
            method,
            {"use_peft": True, "unfrozen_parameters": ["layers"]},
            {"unfrozen_parameters": None},
            "unfrozen_parameters",
        )
        for method in ("sft", "distill", "grpo")
    ),
]


def load(folder: Path, method: str, keys: dict[str, Any]) -> Any:
    path = folder / "mine.yaml"
    settings = {
        key: value for key, value in (BASES[method] | keys).items() if value is not LEFT_OUT
    }
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return load_recipe([str(path)], method, world_size=1)


@pytest.mark.parametrize(("name", "method", "broken", "mended", "key"), CASES)
def test_each_rule_refuses_its_mistake_and_accepts_a_similar_valid_recipe(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    method: str,
    broken: dict,
    mended: dict,
    key: str,
) -> None:
    load(tmp_path, method, broken | mended)
    monkeypatch.setitem(RULES, method, ())
    load(tmp_path, method, broken)  # nothing else refuses it
    monkeypatch.setitem(RULES, method, (getattr(rules, name),))
    with pytest.raises(RecipeError) as refusal:
        load(tmp_path, method, broken)
    assert "mine.yaml: " in str(refusal.value) and key in str(refusal.value)


def test_every_rule_has_a_case_and_says_when_it_refuses() -> None:
    known = {rule.__name__: rule for of_method in RULES.values() for rule in of_method}
    assert {name for name, *_ in CASES} == set(known)
    assert all((rule.__doc__ or "").startswith("Refuse ") for rule in known.values())
    assert {(name, method) for name, method, *_ in CASES} <= {
        (rule.__name__, method) for method in RULES for rule in RULES[method]
    }
