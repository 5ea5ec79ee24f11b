"""The main job: a recipe is trained with GRPO, any key can be overridden, and the run leaves a model and its figures."""

import math
from pathlib import Path

import pytest
import yaml

from conftest import PYTHON, ROOT, TINY, metrics, recipe, resolved

FLAGSHIP = "recipes/gsm8k_qwen05b.yaml"
MOVED = """
from safetensors.torch import load_file
old, new = (load_file(folder + "/model.safetensors") for folder in data)
answer = {name: float((old[name] - new[name]).abs().max()) for name in new}
"""


def launcher(*options):
    """accelerate launch, from the environment that has the project."""
    beside = Path(PYTHON).parent / "accelerate"
    return [*([beside] if beside.exists() else [PYTHON, "-m", "accelerate.commands.accelerate_cli"]), "launch", "-q", *options, "-m", "r1_recipes.grpo"]


@pytest.fixture(scope="module")
def flagship(commands, tmp_path_factory):
    run = tmp_path_factory.mktemp("flagship") / "run"
    result = commands.process([*launcher("--config_file", "accelerate_configs/cpu.yaml"), FLAGSHIP, "--smoke", "--output_dir", run])
    result.ok()
    return run


@pytest.fixture(scope="module")
def trained(commands, lab):
    """Four steps of the tiny model, which the reward for letters changes."""
    path = recipe(lab, "trained", max_steps=4, log_completions=True, save_strategy="steps", save_steps=2, reward_weights=[2.0, 1.0])
    commands.python("grpo", path, cwd=lab).ok()
    return lab / "trained"


@pytest.mark.quick
def test_the_flagship_trains_by_accelerate(flagship):
    expected = {"model.safetensors", "config.json", "tokenizer.json", "metrics.jsonl", "recipe.yaml", "run.json", "report.html", "README.md", "completions"}
    assert expected <= {path.name for path in flagship.iterdir()}


@pytest.mark.quick
def test_its_resolved_recipe_has_the_keys_of_the_file(flagship):
    theirs, ours = yaml.safe_load((ROOT / FLAGSHIP).read_text()), resolved(flagship)
    for key in ("mapper", "response_format", "reward_funcs", "reward_weights", "beta", "learning_rate", "loss_type", "seed"):
        assert ours[key] == theirs[key], key


@pytest.mark.quick
def test_a_saved_model_is_one_that_transformers_loads(flagship, ask):
    prompt, tokens = ask(
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer
        tokenizer, model = AutoTokenizer.from_pretrained(data), AutoModelForCausalLM.from_pretrained(data)
        messages = [{"role": "user", "content": "What is 6*7?"}]
        inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        made = model.generate(**inputs, max_new_tokens=3, min_new_tokens=3)
        answer = [tokenizer.decode(inputs["input_ids"][0]), made.shape[1] - inputs["input_ids"].shape[1]]""",
        str(flagship),
    )
    assert tokens == 3
    # A conversation without a system message gets the prompt of training, which asks for a box.
    assert "What is 6*7?" in prompt and r"\boxed{}" in prompt


@pytest.mark.quick
def test_metrics_of_a_step(flagship):
    (row,) = metrics(flagship)
    named = (
        "step",
        "loss",
        "learning_rate",
        "reward",
        "reward_std",
        "rewards/accuracy/mean",
        "kl",
        "entropy",
        "frac_reward_zero_std",
        "completions/mean_length",
        "completions/clipped_ratio",
        "num_tokens",
        "step_time",
    )
    assert not [name for name in named if name not in row]
    assert row["step"] == 1 and all(math.isfinite(row[name]) for name in named)


def test_a_run_trains(trained, ask):
    rows = metrics(trained)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert abs(rows[0]["kl"]) < 1e-6 < rows[-1]["kl"]
    assert {"checkpoint-2", "checkpoint-4"} <= {path.name for path in trained.iterdir()}
    assert 1e-4 < max(ask(MOVED, [str(TINY), str(trained)]).values()) < 0.1


def test_the_completions_table(trained, parquet):
    rows = parquet(*sorted((trained / "completions").glob("*.parquet")))
    assert len(rows) == 16 and {row["step"] for row in rows} == {1, 2, 3, 4}
    for row in rows:
        question = row["prompt"][-1]["content"]
        assert question.startswith("What is ") and row["solution"] == str(eval(question[8:-1]))
        assert row["completion"][-1]["role"] == "assistant" and 0 <= row["letters"] <= 1 and row["accuracy"] == 0 and row["refused"]
    first = [row for row in rows if row["step"] == 1]
    assert sum(row["advantage"] for row in first) == pytest.approx(0, abs=1e-3)
    figures, mean = metrics(trained)[0], sum(row["letters"] for row in first) / 4
    assert figures["rewards/letters/mean"] == pytest.approx(mean, abs=1e-4) and figures["reward"] == pytest.approx(2 * mean, abs=1e-4)  # by reward_weights
    assert figures["completions/max_length"] <= 16 and figures["num_tokens"] > 4 * 16


def test_grpo_learns_what_is_rewarded(commands, lab, doubter):
    keys = {"dataset_name": "sums.jsonl", "model_name_or_path": "doubter", "reward_funcs": ["accuracy"], "beta": 0.0, "learning_rate": 3e-4}
    sizes = {"num_generations": 8, "per_device_train_batch_size": 64, "max_completion_length": 60, "max_steps": 14}
    commands("grpo", recipe(lab, "learner", **keys, **sizes), cwd=lab).ok()
    rewards = [row["rewards/accuracy/mean"] for row in metrics(lab / "learner")]
    assert rewards[0] < 0.65 and sum(rewards[-5:]) / 5 > 0.8, rewards  # three seeds: 0.41 to 0.48, then 0.90 to 0.94


def test_any_key_is_overridden_and_written_down(commands, lab):
    path = recipe(lab, "overridden")
    changes = {
        "learning_rate": 2e-6,
        "reward_funcs": ["accuracy"],
        "reward_weights": [1.0],
        "num_generations": 2,
        "temperature": 0.7,
        "max_steps": 1,
        "response_format": "boxed",
        "beta": 0.0,
        "output_dir": str(lab / "elsewhere"),
    }
    typed = [part for key, value in changes.items() for part in (f"--{key}", *(map(str, value) if isinstance(value, list) else [value]))]
    commands("grpo", path, *typed, cwd=lab).ok()
    ours = resolved(lab / "elsewhere")
    assert {key: ours[key] for key in changes} == changes
    (row,) = metrics(lab / "elsewhere")
    assert row["learning_rate"] == pytest.approx(2e-6) and "rewards/accuracy/mean" in row and "kl" not in row


def test_three_spellings_of_a_list(commands, lab):
    path = recipe(lab, "lists")
    spellings = (["accuracy", "format"], ["accuracy,format"], ["[accuracy, format]"])
    calls = [("grpo", path, "--max_steps", 1, "--output_dir", lab / f"list{n}", "--reward_funcs", *words, {"cwd": lab}) for n, words in enumerate(spellings)]
    for n, result in enumerate(commands.each(calls)):
        result.ok()
        assert resolved(lab / f"list{n}")["reward_funcs"] == ["accuracy", "format"]


def test_the_recipe_of_a_run_repeats_it(commands, lab, trained):
    commands("grpo", trained / "recipe.yaml", "--output_dir", lab / "repeated", cwd=lab).ok()
    for one, other in zip(metrics(trained), metrics(lab / "repeated"), strict=True):
        assert [one[key] for key in ("reward", "kl", "loss")] == pytest.approx([other[key] for key in ("reward", "kl", "loss")], abs=1e-6)


def two_ranks(commands, lab, configuration, path):
    options = ["--config_file", ROOT / f"accelerate_configs/{configuration}.yaml", "--num_processes", "2", "--mixed_precision", "no"]
    commands.process([*launcher(*options), path], cwd=lab).ok()


def test_two_processes_under_ddp(commands, lab, parquet):
    two_ranks(commands, lab, "ddp", recipe(lab, "ddp", log_completions=True))
    rows = [row for row in parquet(*sorted((lab / "ddp/completions").glob("*.parquet"))) if row["step"] == 1]
    assert len(rows) == 8 and len({row["prompt"][-1]["content"] for row in rows}) == 2  # each rank has a group of four
    assert [row["step"] for row in metrics(lab / "ddp")] == [1, 2]


def test_fsdp2_at_rate_zero_has_no_kl(commands, lab):
    two_ranks(commands, lab, "fsdp2", recipe(lab, "fsdp2", learning_rate=0.0))
    rows = metrics(lab / "fsdp2")
    assert len(rows) == 2 and all(abs(row["kl"]) < 1e-4 for row in rows) and all(row["reward_std"] > 0 for row in rows)


@pytest.fixture(scope="module")
def keyed(commands, lab):
    """One short run for each key that changes how a run trains."""
    halves = {
        "dataset_train_split": "train[:-8]",
        "dataset_test_split": "train[-8:]",
        "eval_strategy": "steps",
        "eval_steps": 1,
        "per_device_eval_batch_size": 4,
    }
    by_level = {"dataset_name": "levels.jsonl", "task_column": "level"}
    keys = {
        "plain": {"gradient_accumulation_steps": 4, "max_completion_length": 96},
        "untrimmed": {"gradient_accumulation_steps": 4, "max_completion_length": 96, "trim_padding": False},
        "dynamic": {"dynamic_sampling": {"max_rounds": 2}},
        "frozen": {"unfrozen_parameters": ["model.layers.1.*"]},
        "routed": by_level | {"task_rewards": {"easy": ["accuracy"], "hard": ["own_code:letters"]}, "max_steps": 6},
        "evaluated": halves | {"log_completions": True},
        "cispo": {"loss_type": "cispo", "epsilon_high": 5.0, "num_iterations": 2},
    }
    levels = (lab / "rows.jsonl").read_text().splitlines()
    (lab / "levels.jsonl").write_text("\n".join(f'{{"level": "{("easy", "hard")[n % 2]}", {row[1:]}' for n, row in enumerate(levels)) + "\n")
    calls = [("grpo", recipe(lab, name, **changes), {"cwd": lab}) for name, changes in keys.items()]
    results = dict(zip(keys, commands.each(calls), strict=True))
    return lambda name: (results[name].ok(), lab / name)[1]


def test_padding_is_left_out_without_changing_the_loss(keyed):
    for one, other in zip(metrics(keyed("plain")), metrics(keyed("untrimmed")), strict=True):
        keys = ("reward", "loss", "grad_norm")
        assert [one[key] for key in keys] == pytest.approx([other[key] for key in keys], rel=1e-3, abs=1e-4)
        assert one["completions/min_length"] < one["completions/max_length"]


def test_dynamic_sampling_says_what_it_cost(keyed):
    assert all({"sampling/rounds", "sampling/filtered", "sampling/reward"} <= row.keys() for row in metrics(keyed("dynamic")))


def test_frozen_parameters_stay(keyed, ask):
    moved = [name for name, far in ask(MOVED, [str(TINY), str(keyed("frozen"))]).items() if far]
    assert moved and all("layers.1." in name for name in moved)


def test_rewards_by_task_have_a_curve_each(keyed):
    names = set().union(*metrics(keyed("routed")))
    assert {"rewards/accuracy/easy", "rewards/letters/hard"} <= names and "rewards/letters/easy" not in names


def test_evaluation_during_training(keyed, parquet):
    run = keyed("evaluated")
    assert "eval_rewards/letters/mean" in (run / "metrics.jsonl").read_text()
    assert {row["step"] for row in parquet(*sorted((run / "completions").glob("*.parquet")))} == {1, 2}  # those of training stay
    assert parquet(*sorted((run / "eval_completions").glob("*.parquet")))


def test_evaluations_are_written_whole(keyed, parquet):
    rows = parquet(*sorted((keyed("evaluated") / "eval_completions").glob("*.parquet")))
    assert len(rows) == 2 * 8 * 4  # evaluations, held-out questions, completions each


@pytest.mark.parametrize("name", ["cispo"])
def test_other_losses_train(keyed, name):
    assert len(metrics(keyed(name))) == 2
