"""Self-distillation: TRL's trainer on a recipe's rewards, what it refuses, and a teacher that resumes."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from typing import Any

import pandas
import pytest

pytest.importorskip("trl")

from datasets import Dataset
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

from r1_recipes import grpo
from r1_recipes.common.errors import RecipeError
from r1_recipes.data.load import load_dataset
from r1_recipes.extras.sdpo.trainer import TEACHER_FILE, RecipeSDPOTrainer
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe import load_recipe
from tests.conftest import letters, log_lines, metrics
from tests.core.training.test_faults import assert_same_run, unfinished

# Half of the tiny model's completions have so many letters.
SDPO: dict[str, Any] = {
    "train_with": "sdpo",
    "success_reward_threshold": 3.0,
    "num_generations": 4,
    "learning_rate": 1e-3,
}
RULED = {"train_with": "sdpo", "reward_funcs": ["accuracy", "format"], "num_generations": 4}
OVERRIDDEN = {
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_prepare_training_batch": ["self", "inputs"],
    "_record_reward_diagnostics": [
        "self",
        "mode",
        "rewards",
        "rewards_per_func",
        "group_std_rewards",
    ],
    "_save_checkpoint": ["self", "model", "trial"],
    "_compute_self_distillation_loss": ["self", "model", "inputs", "distillation_logits"],
}
# Given to TRL as they come.
PASSED_ON = {
    "_forward_logits": ["self", "model", "input_ids", "attention_mask", "logits_to_keep"],
    "_compute_rollout_logps": [
        "self",
        "prompt_ids",
        "prompt_mask",
        "completion_ids",
        "completion_mask",
    ],
}


def test_what_is_passed_on_is_what_trl_takes() -> None:
    for name, parameters in PASSED_ON.items():
        assert list(inspect.signature(getattr(SDPOTrainer, name)).parameters) == parameters


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_an_overridden_method_has_the_parameters_of_trl(name: str) -> None:
    for trainer in (SDPOTrainer, RecipeSDPOTrainer):
        assert list(inspect.signature(getattr(trainer, name)).parameters) == OVERRIDDEN[name]


async def letters_later(completions: list, **columns: Any) -> list[float]:
    return letters(completions, **columns)


def fails_in_step_two(completions: list, trainer_state: Any, **columns: Any) -> list[float]:
    if trainer_state.global_step == 1:
        raise ValueError("no more letters")
    return letters(completions, **columns)


@pytest.mark.parametrize("keys", [{}, {"steps_per_generation": 2, "num_iterations": 2}])
def test_a_run_is_that_of_trl_alone(write_recipe, tmp_path: Path, keys: dict[str, int]) -> None:
    recipe = write_recipe("grpo", **SDPO, **keys, save_strategy="no")
    grpo.main([recipe])
    loaded = load_recipe([recipe], "grpo")
    fmt = get_response_format("think_answer", system_prompt="")
    rows, _ = load_dataset(loaded.script, fmt, "grpo")
    plain = [{"prompt": row["prompt"], "solution": row["solution"]} for row in rows]
    same = """
        per_device_train_batch_size learning_rate lr_scheduler_type max_steps logging_steps
        use_cpu bf16 gradient_checkpointing disable_tqdm seed num_generations max_completion_length
        success_reward_threshold save_strategy
    """
    config = SDPOConfig(
        output_dir=str(tmp_path / "plain"),
        report_to=[],
        **{key: getattr(loaded.training, key) for key in same.split()},
        **keys,
    )
    trainer = SDPOTrainer(
        model=loaded.model.model_name_or_path,
        args=config,
        reward_funcs=[letters],
        train_dataset=Dataset.from_list(plain),
    )
    trainer.train()
    here = metrics(tmp_path / "run")
    theirs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(here) == 6 and any(entry["loss"] for entry in here)
    assert "self_distillation/reward_mean" in here[0].keys() & theirs[0].keys()
    for ours, other in zip(here, theirs, strict=True):
        shared = ours.keys() & other.keys()
        assert {"loss", "grad_norm"} <= shared
        shared -= {"step_time"}
        assert {key: ours[key] for key in shared} == {key: other[key] for key in shared}


def test_metrics_and_completions_are_those_that_pages_read(write_recipe, tmp_path: Path) -> None:
    grpo.main([write_recipe("grpo", **SDPO, max_steps=2, max_logged_completions=3)])
    run = tmp_path / "run"
    for entry in metrics(run):
        assert entry["reward"] == entry["rewards/letters/mean"]
        assert entry["reward"] == entry["self_distillation/rewards/letters"]
        assert 0 <= entry["frac_reward_zero_std"] <= 1
    tables = sorted((run / "completions").glob("*.parquet"))
    assert [table.stem for table in tables] == ["completions_00001", "completions_00002"]
    table = pandas.read_parquet(tables[0])
    assert list(table.columns) == [
        "step",
        "prompt",
        "completion",
        "letters",
        "advantage",
        "distilled",
    ]
    assert len(table) == 3 and set(table["distilled"]) <= {0.0, 1.0}


def test_a_stopped_run_goes_on_with_its_teacher(write_recipe, tmp_path: Path) -> None:
    changes = {**SDPO, "teacher_update_rate": 0.5}
    recipe = write_recipe("grpo", **changes)
    grpo.main([recipe])
    run, whole = tmp_path / "run", tmp_path / "whole"
    shutil.copytree(run, whole)
    assert (run / "checkpoint-4" / TEACHER_FILE).is_file()
    shutil.rmtree(run / "checkpoint-6")
    (run / "model.safetensors").unlink()
    unfinished(run)
    grpo.main([recipe])
    assert_same_run(run, whole)
    assert not any("the average starts again" in line for line in log_lines(run))


def test_a_reward_may_be_async_and_its_error_stops_the_run(
    write_recipe, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    grpo.main(
        [write_recipe("grpo", **SDPO, max_steps=1, reward_funcs=[f"{__name__}:letters_later"])]
    )
    [entry] = metrics(tmp_path / "run")
    assert entry["reward"] > 0
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(SystemExit):
        grpo.main([write_recipe("grpo", **SDPO, reward_funcs=[f"{__name__}:fails_in_step_two"])])
    assert "no more letters" in capsys.readouterr().err
    assert len(metrics(tmp_path / "run")) == 1


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"beta": 0.04}, "beta"),
        ({"trim_padding": True}, "trim_padding"),
        ({"dynamic_sampling": {"max_rounds": 2}}, "dynamic_sampling"),
        ({"eval_temperature": 0.5}, "eval_temperature"),
        ({"load_in_4bit": True}, "load_in_4bit"),
        ({"epsilon": 0.1}, "epsilon"),
        ({"loss_type": "cispo", "distillation_weight": 0.5}, "loss_type"),
        ({"distillation_mode": "top"}, "distillation_mode"),
        ({"distillation_alpha": 0.5}, "requires `distillation_alpha=1.0`"),
        ({"distillation_topk": 100}, "distillation_topk"),
        ({"distillation_mode": "topk_logits"}, "distillation_topk"),
        ({"use_peft": True}, "teacher_model_kind"),
        ({"teacher_model_kind": "frozen"}, "teacher_model_kind"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"teacher_update_rate": 0.5, "teacher_model_kind": "live"}, "teacher_update_rate"),
        ({"teacher_sync_steps": 0}, "teacher_sync_steps"),
        ({"use_teacher_server": True}, "use_teacher_server"),
        ({"use_successful_as_teacher": False}, "use_successful_as_teacher"),
        ({"max_completion_length": 16384}, "max_reprompt_len"),
        ({"solution_template": "The answer is \\boxed{}."}, "solution_template"),
        ({"reprompt_template": "{question}{solution}"}, "reprompt_template"),
        (
            {"remove_thinking_from_demonstration": True, "response_format": "boxed"},
            "remove_thinking_from_demonstration",
        ),
        ({"log_completions": True}, "unknown key 'log_completions' for grpo, .* train_with: grpo"),
        ({"train_with": "ppo"}, "train_with"),
        # A wrong answer in the format reaches 1.0.
        ({"reward_weights": [1.0, 1.0]}, "success_reward_threshold"),
        ({"success_reward_threshold": 0.2}, "success_reward_threshold"),
        # No answer reaches 1.0.
        ({"reward_weights": [0.5, 0.2]}, "success_reward_threshold"),
        # A text that is nearly right does.
        ({"reward_funcs": ["text_similarity", "format"]}, "success_reward_threshold"),
        # No row of one task has both rewards.
        (
            {
                "reward_funcs": ["accuracy", "exact_match"],
                "reward_weights": [0.5, 0.5],
                "task_rewards": {"a": ["accuracy"], "b": ["exact_match"]},
            },
            "success_reward_threshold",
        ),
    ],
)
def test_what_sdpo_would_ignore_or_misread_is_refused(write_recipe, changes, key: str) -> None:
    keys = {**RULED, "reward_weights": [1.0, 0.2], **changes}
    with pytest.raises(RecipeError, match=f"{key}: " if " " not in key else key):
        load_recipe([write_recipe("grpo", **keys)], "grpo")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"beta": 0.0, "trim_padding": False},
        {"distillation_weight": 0.9, "loss_type": "dr_grpo", "epsilon": 0.1},
        {"distillation_mode": "topk_logits", "distillation_topk": 20, "distillation_alpha": 0.5},
        {"use_peft": True, "teacher_model_kind": "live"},
        {"reward_weights": [0.5, 0.2], "success_reward_threshold": 0.5},
        {"reward_funcs": ["accuracy"], "reward_weights": None},
        {"prefill": "<think>", "teacher_model_kind": "base", "dtype": "bfloat16"},
        # Other rewards have no full marks that are known.
        {"reward_funcs": ["accuracy", "tests.conftest:letters"]},
    ],
)
def test_what_sdpo_can_do_is_taken(write_recipe, changes) -> None:
    keys = {**RULED, "reward_weights": [1.0, 0.2], **changes}
    recipe = load_recipe([write_recipe("grpo", **keys)], "grpo")
    assert recipe.training.max_prompt_length is None  # TRL's default cuts prompts


def test_the_rate_is_grpo_s_where_a_recipe_has_none(write_recipe) -> None:
    keys = {**RULED, "reward_weights": [1.0, 0.2], "learning_rate": None}
    recipe = load_recipe([write_recipe("grpo", **keys)], "grpo")
    assert recipe.training.learning_rate == 1e-6  # SDPOConfig's own is 5e-5


def unsure(completions: list, log_metric: Any, **columns: Any) -> list[float | None]:
    log_metric("unsure/rows", 1.0)
    return [None, *letters(completions[1:])]


def test_a_completion_without_a_verdict_is_not_learned_from(write_recipe, tmp_path: Path) -> None:
    keys = {"reward_funcs": [f"{__name__}:unsure"], "max_steps": 1}
    grpo.main([write_recipe("grpo", **{**SDPO, **keys})])
    table = pandas.read_parquet(tmp_path / "run" / "completions" / "completions_00001.parquet")
    assert table["unsure"].isna().tolist() == [True, False, False, False]
    assert (table["advantage"][0], table["distilled"][0]) == (0, 0)
    [entry] = metrics(tmp_path / "run")
    assert entry["reward"] == pytest.approx(table["unsure"][1:].mean())
    assert entry["unsure/rows"] == 1.0
