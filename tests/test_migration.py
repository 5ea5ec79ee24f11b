"""Other projects' files: their real keys with invented values, what becomes of each, and that none is lost without a word."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from r1_recipes import migration
from r1_recipes.common.errors import RecipeError
from r1_recipes.migration import Migration, flatten, from_verl, is_verl, main, migrate, read_file, translate_shapes
from r1_recipes.recipe.compat import OBSOLETE, REFUSED, RENAMED, translate
from r1_recipes.recipe.load import load_recipe
from r1_recipes.recipe.text import read_yaml

FIXTURES = Path(__file__).parent / "fixtures"
ON_CPU = ["--use_cpu", "true", "--bf16", "false"]


def test_a_handbook_recipe_is_read_as_it_is():
    path = FIXTURES / "alignment_handbook_sft.yaml"
    recipe = load_recipe([str(path)], "sft")
    assert recipe.script.dataset_name == "nobody/talks"
    assert (recipe.script.dataset_train_split, recipe.script.dataset_test_split) == ("train_sft", "test_sft")
    assert recipe.model.attn_implementation == "flash_attention_2"
    assert (recipe.training.max_length, recipe.training.warmup_steps) == (2048, 0.1)
    assert recipe.training.eval_strategy.value == "epoch"
    # Each key that is not carried over as it is has its sentence.
    said = "\n".join(recipe.warnings)
    written = read_yaml(path)
    for key in written:
        changed = key in RENAMED or key in OBSOLETE or key in ("dataset_mixer", "use_flash_attention_2")
        assert (f"{path}: {key} is " in said) == changed, key
    kept = set(recipe.settings) | {key for key in written if key in OBSOLETE}
    assert {RENAMED.get(key, key) for key in written} - kept == {"dataset_mixer", "dataset_splits", "use_flash_attention_2"}


def test_a_mixer_of_several_sets_is_a_mixture():
    warnings = []
    values = {
        "dataset_mixer": {"nobody/a": 0.5, "nobody/b": 1},
        "dataset_configs": ["x", "y"],
        "dataset_splits": ["train_sft", "train_more", "test_sft"],
        "learning_rate": 1,
    }
    assert translate_shapes(values, "f", warnings) == {
        "learning_rate": 1,
        "dataset_mixture": {
            "datasets": [
                {"id": "nobody/a", "split": "train_sft", "weight": 0.5, "config": "x"},
                {"id": "nobody/a", "split": "train_more", "weight": 0.5, "config": "x"},
                {"id": "nobody/b", "split": "train_sft", "weight": 1.0, "config": "y"},
                {"id": "nobody/b", "split": "train_more", "weight": 1.0, "config": "y"},
            ]
        },
    }
    assert "dataset_mixer is read as dataset_mixture" in warnings[0]
    assert "test_sft: a mixture is evaluated on rows of its own" in warnings[1]
    assert "dataset_mixer" in values, "the caller's mapping stays as it is"
    # One set, but not all of it.
    half = translate_shapes({"dataset_mixer": {"nobody/a": 0.5}}, "f", [])
    assert half == {"dataset_mixture": {"datasets": [{"id": "nobody/a", "split": "train", "weight": 0.5}]}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset_mixer": "nobody/a"}, "f: dataset_mixer: found 'nobody/a'; expected {id: share of its rows}"),
        ({"dataset_mixer": {}}, "f: dataset_mixer: found {}"),
        ({"dataset_mixer": {"a": 1.0}, "dataset_splits": ["validation"]}, "needs a split with 'train' in its name"),
        ({"dataset_mixer": {"a": 1.0}, "dataset_configs": ["x", "y"]}, "one of dataset_configs a set"),
        (
            {"dataset_mixer": {"a": 1.0}, "dataset_name": "b"},
            "f: dataset_mixer is today's dataset_name, and both are set; keep dataset_name",
        ),
        ({"dataset_configs": ["x", "y"]}, "f: dataset_configs: found ['x', 'y']; one for dataset_name"),
        ({"use_flash_attention_2": True, "attn_implementation": "sdpa"}, "both are set; keep attn_implementation"),
    ],
)
def test_shapes_that_cannot_be_translated_are_named(values, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        translate_shapes(values, "f", [])


def test_open_r1_s_list_of_one_configuration():
    warnings = []
    assert translate_shapes({"dataset_configs": ["all"], "use_flash_attention_2": False}, "f", warnings) == {"dataset_config": "all"}
    assert warnings == ["f: dataset_configs is read as dataset_config: all"]


@pytest.fixture
def demo(tmp_path):
    """Under another ending in the repository, since it is no module of ours."""
    return shutil.copy(FIXTURES / "grpo_demo.txt", tmp_path / "grpo_demo.py")


def test_grpo_demo_s_script_is_read_and_never_run(demo):
    found = migrate(demo, "grpo")
    assert found.settings == {
        "model_name_or_path": "nobody/tiny-instruct",
        "dataset_name": "nobody/sums",
        "dataset_config": "main",
        "output_dir": "outputs/tiny",
        "learning_rate": 4e-6,
        "adam_beta1": 0.9,
        "adam_beta2": 0.99,
        "weight_decay": 0.1,
        "warmup_steps": 0.1,
        "lr_scheduler_type": "cosine",
        "logging_steps": 1,
        "bf16": True,
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 4,
        "num_generations": 16,
        "max_prompt_tokens": 256,
        "max_completion_length": 786,
        "num_train_epochs": 1,
        "save_steps": 100,
        "max_grad_norm": 0.1,
        "report_to": "wandb",
        "log_on_each_node": False,
        "dtype": "bfloat16",
        "attn_implementation": "sdpa",
        # Its LoraConfig is not passed to the trainer.
        "reward_funcs": ["xml_count", "xml_soft_format", "xml_strict_format", "integer_answer", "exact_match"],
        "reward_weights": [0.5, 0.5, 0.5, 0.5, 2.0],
        "system_prompt": "Think, then answer.",
        "mapper": "gsm8k",
        "response_format": "reasoning_answer",
        # TRL's defaults of its day.
        "beta": 0.04,
        "loss_type": "grpo",
        "temperature": 0.9,
    }
    # What would have to be run is said to be missing; so is that a batch is counted otherwise today.
    assert "run_name: an expression, which is not run" in found.left
    assert "per_device_train_batch_size: 1 prompts are 16 completions, which today's TRL counts" in found.notes
    assert any(note.startswith("added: mapper: gsm8k, response_format: reasoning_answer, beta: 0.04") for note in found.notes)


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        ("config = LoraConfig(r=4, task_type='X')\nGRPOTrainer(model='m', peft_config=config)", {"use_peft": True, "lora_r": 4}),
        (
            "SFTTrainer(model='m', peft_config=peft.LoraConfig(target_modules='all-linear'))",
            {"use_peft": True, "lora_target_modules": "all-linear"},
        ),
        ("model = get_peft_model('m', LoraConfig(lora_alpha=8))", {"use_peft": True, "lora_alpha": 8}),
        ("config = LoraConfig(r=4)\nGRPOTrainer(model='m')", {}),
        ("GRPOTrainer(model='m', peft_config=None)", {}),
    ],
)
def test_lora_is_what_the_trainer_is_given(tmp_path, code, kept):
    path = tmp_path / "a.py"
    path.write_text(code, encoding="utf-8")
    values = read_file(path)
    values.pop("model_name_or_path", None)
    assert values == kept


@pytest.mark.parametrize("config", ["get_peft_config(arguments)", "an_argument"])
def test_a_peft_config_that_would_have_to_be_run_is_listed(tmp_path, config):
    path = tmp_path / "a.py"
    path.write_text(f"GRPOTrainer(model='m', peft_config={config})", encoding="utf-8")
    found = migrate(path, "grpo")
    assert (found.settings, found.left) == ({"model_name_or_path": "m"}, ["peft_config: an expression, which is not run"])


def test_settings_of_a_demo_s_script_stay_its_own(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("GRPOConfig(beta=0.1)\nGRPOTrainer(model='m', reward_funcs=[int_reward_func])", encoding="utf-8")
    settings = migrate(path, "grpo").settings
    assert (settings["beta"], settings["temperature"], settings["response_format"]) == (0.1, 0.9, "reasoning_answer")
    path.write_text("GRPOTrainer(model='m', reward_funcs=[mine])", encoding="utf-8")
    assert "beta" not in migrate(path, "grpo").settings, "another script may be of any day"


def test_weights_multiply_what_the_demo_s_functions_pay():
    values = {"reward_funcs": ["accuracy", "int_reward_func"], "reward_weights": [1.0, 3.0]}
    assert translate_shapes(values, "f", []) == {"reward_funcs": ["accuracy", "integer_answer"], "reward_weights": [1.0, 1.5]}


def test_verl_s_script_becomes_a_recipe_and_a_list():
    found = migrate(FIXTURES / "verl_grpo.sh", "grpo")
    # 64 prompts x 4 = 256 completions a step; an update of 16 x 4 = 64 = 2 a device x 16 accumulated x 2 GPUs.
    assert found.settings == {
        "max_prompt_tokens": 256,
        "max_completion_length": 512,
        "model_name_or_path": "nobody/tiny-instruct",
        "gradient_checkpointing": True,
        "learning_rate": 2e-6,
        "weight_decay": 0.1,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "entropy_coef": 0.001,
        "num_generations": 4,
        "vllm_gpu_memory_utilization": 0.6,
        "vllm_tensor_parallel_size": 2,
        "num_train_epochs": 15,
        "wandb_project": "sums",
        "run_name": "tiny",
        "mapper": "verl",
        "system_prompt": "",
        "response_format": "boxed",
        "reward_funcs": ["accuracy", "soft_overlong_punishment"],
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 16,
        "generation_batch_size": 256,
        "beta": 0.002,
        "loss_type": "dapo",
        "reward_weights": [1.0, 1.0],
        "soft_punish_cache": 128,
        "max_completion_len": 512,
        "use_vllm": True,
        "top_k": 0,
        "warmup_steps": 40,  # 10 rollouts of 64 / 16 = 4 updates
        "lr_scheduler_type": "constant_with_warmup",
        "save_strategy": "no",
        "report_to": ["wandb"],
        "output_dir": "outputs/tiny",
        "bf16": True,
    }
    left = {entry.partition("=")[0] for entry in found.left}
    assert left == {
        "data.train_files",
        "data.val_files",
        "actor_rollout_ref.model.override_config.attention_dropout",
        "algorithm.kl_ctrl.kl_coef",
        "algorithm.filter_groups.enable",
        "critic.optim.lr",
        "trainer.test_freq",
    }


def test_verl_behind_another_program_s_command_line():
    found = migrate(FIXTURES / "verl_submitted.sh", "grpo")
    # 64 prompts x 8 = 512 completions a step in 64 / 16 = 4 updates; 16 x 8 = 128 = 1 a device x 16 accumulated x 4 x 2 GPUs.
    assert found.settings == {
        "max_completion_length": 256,
        "model_name_or_path": "nobody/tiny-base",
        "learning_rate": 1e-6,
        "num_generations": 8,
        "mapper": "verl",
        "system_prompt": "",
        "response_format": "boxed",
        "reward_funcs": ["accuracy", "soft_overlong_punishment"],
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 16,
        "generation_batch_size": 512,
        "beta": 0.0,
        "loss_type": "dapo",
        "reward_weights": [2.0, 0.5],  # 1 and -1 are as far apart as 2 x 1 and 2 x 0
        "soft_punish_cache": 64,
        "max_completion_len": 256,
        "max_steps": 200,
        "save_steps": 20,
        "warmup_steps": 40,
        "save_strategy": "steps",
        "use_vllm": True,
        "lr_scheduler_type": "constant_with_warmup",
        "report_to": "none",
        "output_dir": "outputs/verl",
        "bf16": True,
    }
    assert any(
        "4 updates, which are TRL's steps: max_steps 50 x 4 = 200, save_steps 5 x 4 = 20, warmup_steps" in note for note in found.notes
    )
    assert any("accuracy has 2.0: veRL's scorer of math_dapo pays 1 and -1" in note for note in found.notes)
    assert sorted(found.left) == [
        "actor_rollout_ref.model.override_config.attention_dropout=0.0: the model's own configuration is read; model_init_kwargs: "
        "{NAME: value} changes it",
        "data.train_files=$HOME/tiny/dapo-math-tiny.parquet: set HOME in the file, or its key here",
        "environment=$PWD/environment.yaml: no counterpart here",
        "folder=$PWD: no counterpart here",
        "no_wait=True: no counterpart here",
        "trainer.test_freq=5: eval_strategy: steps and eval_steps: 20, once there is a dataset_test_split",
        "trainer.val_before_train=True: eval_on_start: true, once there is a dataset_test_split",
    ]


def test_verl_s_ppo_becomes_grpo_with_a_group(tmp_path):
    script = FIXTURES / "verl_ppo.sh"
    message = "trainer.n_gpus_per_node: found '$N_GPUS'; a number from 1 up is needed; set N_GPUS in the file"
    with pytest.raises(RecipeError, match=re.escape(message)):
        migrate(script, "grpo")
    filled = tmp_path / "filled.sh"
    filled.write_text("export N_GPUS=2\n" + script.read_text(encoding="utf-8"), encoding="utf-8")
    found = migrate(filled, "grpo")
    # 32 prompts x 8, TRL's default group; 16 x 8 = 128 an update = 4 a device x 16 accumulated x 2 GPUs.
    batches = ("num_generations", "per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size")
    assert [found.settings[key] for key in batches] == [8, 4, 16, 256]
    assert found.settings["output_dir"] == "outputs/verl"
    assert not any("$" in str(value) for value in found.settings.values())
    assert "eval_on_start" not in found.settings
    left = "\n".join(found.left)
    for said in (
        "actor_rollout_ref.model.path=$BASE_MODEL: set BASE_MODEL in the file, or model_name_or_path here",
        "vllm_tensor_parallel_size here",
        "set EXPERIMENT_NAME in the file, or run_name here",
        "actor_rollout_ref.rollout.n=1: GRPO compares completions of one prompt; num_generations: 8, TRL's default, is written",
        "algorithm.adv_estimator=gae: this is GRPO, which has no critic",
    ):
        assert said in left


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("run --a 1 2>&1 | tee log", {"a": 1}),
        ("run --a x > log &", {"a": "x"}),
        ("run --a x>'the log' --b 2", {"a": "x", "b": 2}),
        ("run --a 1 2>/dev/null; run --b 2 && run --c 3 || exit", {"a": 1, "b": 2, "c": 3}),
        ("run --a 'x > y | z; &' # --b 2 | --c 3", {"a": "x > y | z; &"}),
        ("run --a \"it's\" --b '\"' | less", {"a": "it's", "b": '"'}),
        ("submit --flag one -- run --a 1", {"flag": "one", "a": 1}),
        ("submit --flag one a.b=2", {"flag": "one", "a.b": 2}),
        ('run --flag "$@"', {"flag": True}),
        ("N=3\nrun --a $((N * (2 + 4) / 5)) --b $((${N} - 10 % 4))", {"a": 3, "b": 1}),
        ("run --a $((UNKNOWN*2)) --b $((1/0))", {"a": "$((UNKNOWN*2))", "b": "$((1/0))"}),
        ("run --a 2025-02-30", {"a": "2025-02-30"}),
    ],
)
def test_what_a_shell_takes_for_itself_is_no_value(line, values):
    assert migration._from_shell(line, Path("x.sh")) == values


def test_a_script_s_empty_recipe_is_an_error(tmp_path):
    path = tmp_path / "a.sh"
    path.write_text("ray job submit --no-wait --folder $HOME\n", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"a\.sh: no key of grpo in it; found no_wait, folder"):
        migrate(path, "grpo")
    path.write_text("train --learning_rate 1 --output_dir $HOME/x --num_train_epochs $(epochs)\n", encoding="utf-8")
    found = migrate(path, "grpo")
    assert found.settings == {"learning_rate": 1}
    assert found.left == [
        "output_dir=$HOME/x: set HOME in the file, or the key here",
        "num_train_epochs=$(epochs): only a shell knows it; write its value, or the key here",
    ]


def test_every_verl_key_is_translated_ignored_or_listed():
    """Nothing that a file says vanishes: a key of another release is listed, too."""
    found = from_verl({"data": {"train_files": "x", "shuffel": True}, "trainer": {"new_thing": 1}}, "f")
    assert "data.shuffel=True: no counterpart here" in found.left
    assert "trainer.new_thing=1: no counterpart here" in found.left


def verl(**changes):
    base = {
        "data.train_files": "gsm8k.parquet",
        "data.train_batch_size": 8,
        "actor_rollout_ref.rollout.n": 2,
        "trainer.n_gpus_per_node": 1,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
    }
    return {**base, **{key.replace("__", "."): value for key, value in changes.items()}}


def test_verl_yaml_is_a_recipe_too(tmp_path):
    path = tmp_path / "verl.yaml"
    nested: dict = {}
    values = {**verl(), "actor_rollout_ref.model.path": "nobody/model", "algorithm.gamma": 1.0}
    for key, value in values.items():
        *parents, last = key.split(".")
        inner = nested
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    path.write_text(yaml.safe_dump(nested), encoding="utf-8")
    recipe = load_recipe([str(path), *ON_CPU], "grpo")
    assert (recipe.training.num_generations, recipe.training.gradient_accumulation_steps) == (2, 4)  # 8 x 2 = 16 = 4 x 4 x 1
    assert (recipe.script.mapper, recipe.script.system_prompt, recipe.training.loss_type) == ("verl", "", "dapo")
    assert any("not carried over: algorithm.gamma=1.0: of PPO's advantages" in warning for warning in recipe.warnings)


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({}, "beta", 0.0),
        ({"actor_rollout_ref__actor__use_kl_loss": "True"}, "beta", 0.001),
        ({"actor_rollout_ref__actor__loss_agg_mode": "seq-mean-token-sum-norm"}, "loss_type", "dr_grpo"),
        ({"actor_rollout_ref__actor__use_token_level_loss": "False"}, "loss_type", "grpo"),
        ({"algorithm__norm_adv_by_std_in_grpo": False}, "scale_rewards", "none"),
        ({"actor_rollout_ref__rollout__top_k": 50}, "top_k", 50),
        ({"actor_rollout_ref__rollout__name": "hf"}, "use_vllm", False),
        ({"actor_rollout_ref__model__lora_rank": 32}, "lora_r", 32),
        ({"actor_rollout_ref__actor__optim__lr_warmup_steps_ratio": 0.1}, "warmup_steps", 0.1),
        ({"trainer__save_freq": 20}, "save_steps", 20),
        ({"trainer__save_freq": 20, "actor_rollout_ref__actor__ppo_mini_batch_size": 4}, "save_steps", 40),
        ({"trainer__save_freq": 20, "actor_rollout_ref__actor__ppo_epochs": 3}, "save_steps", 60),
        ({"trainer__total_training_steps": 7, "actor_rollout_ref__actor__ppo_mini_batch_size": 3}, "max_steps", 21),  # 3 + 3 + 2 prompts
        ({"actor_rollout_ref__actor__optim__lr_warmup_steps": 5, "actor_rollout_ref__actor__ppo_epochs": 2}, "warmup_steps", 10),
        ({"data__train_batch_size": None}, "generation_batch_size", 2048),  # veRL's defaults: 1,024 prompts, 256 an update
        ({"data__train_batch_size": None}, "gradient_accumulation_steps", 128),
        ({"actor_rollout_ref__rollout__n": None}, "num_generations", 8),
        ({"reward_model__reward_manager": "dapo"}, "reward_weights", [2.0]),
        ({"data__train_files": "data/DAPO-Math-17k/train.parquet"}, "reward_weights", [2.0]),
        ({"trainer__logger": ["console"]}, "report_to", "none"),
        (
            {"data__train_files": ["a.parquet", "b.parquet"]},
            "dataset_mixture",
            {"datasets": [{"id": "a.parquet", "mapper": "verl"}, {"id": "b.parquet", "mapper": "verl"}]},
        ),
        ({"data__train_files": "countdown/train.parquet"}, "reward_funcs", ["countdown"]),
        ({"data__train_files": "countdown/train.parquet"}, "prefill", "<think>"),
        (
            {"actor_rollout_ref__actor__ppo_micro_batch_size": 8, "actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": None},
            "per_device_train_batch_size",
            8,
        ),
    ],
)
def test_verl_settings(changes, key, value):
    assert from_verl(verl(**changes), "f").settings[key] == value


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algorithm__adv_estimator": "gae"}, "algorithm.adv_estimator=gae: this is GRPO, which has no critic"),
        ({"actor_rollout_ref__actor__use_kl_loss": True, "actor_rollout_ref__actor__kl_loss_type": "mse"}, "kl_loss_type=mse"),
        ({"actor_rollout_ref__actor__loss_agg_mode": "other"}, "loss_agg_mode=other: no loss_type of TRL's is that"),
        ({"trainer__n_gpus_per_node": 3}, "16 completions a step and 16 an update do not divide into 4 a device on 3 GPUs"),
        ({"custom_reward_function__path": "x.py"}, "custom_reward_function.path=x.py: name the function in reward_funcs"),
        ({}, "algorithm.adv_estimator=gae: this is GRPO, which has no critic"),
        ({"actor_rollout_ref__model__override_config": {"x": 1}}, "actor_rollout_ref.model.override_config.x=1: the model's own"),
        ({"trainer__val_only": True}, "trainer.val_only=True: this trains; python -m r1_recipes.evaluate judges a model"),
        ({"trainer__val_before_train": True}, "trainer.val_before_train=True: eval_on_start: true, once there is"),
        ({"data__prompt_key": "chat"}, "data.prompt_key=chat: mapper verl reads 'prompt'"),
        ({"data__reward_fn_key": "kind"}, "data.reward_fn_key=kind: mapper verl reads 'data_source'"),
        ({"data__image_key": "images"}, "data.image_key=images: mapper verl reads no pictures; image_question does"),
        ({"trainer__experiment_name": "${NAME}-1"}, "trainer.experiment_name=${NAME}-1: set NAME in the file, or run_name here"),
    ],
)
def test_what_has_no_counterpart_is_listed(changes, said):
    assert [entry for entry in from_verl(verl(**changes), "f").left if said in entry]


@pytest.mark.parametrize("key", ["data.prompt_key", "data.reward_fn_key", "trainer.val_only", "trainer.val_before_train"])
def test_what_verl_does_anyway_is_not_listed(key):
    value = {"data.prompt_key": "prompt", "data.reward_fn_key": "data_source"}.get(key, False)
    found = from_verl({**verl(), key: value}, "f")
    assert not [entry for entry in found.left if key in entry]
    assert "eval_on_start" not in found.settings


def test_countdown_s_own_scorer_pays_what_it_pays():
    changes = {"data__train_files": "countdown.parquet", "reward_model__reward_manager": "dapo"}
    assert "reward_weights" not in from_verl(verl(**changes), "f").settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"trainer__nnodes": "${oc.env:N}"},
            "f: trainer.nnodes: found '${oc.env:N}'; a number from 1 up is needed; set oc.env in the file",
        ),
        ({"actor_rollout_ref__rollout__n": "many"}, "f: actor_rollout_ref.rollout.n: found 'many'; a number from 1 up is needed"),
        ({"actor_rollout_ref__actor__ppo_mini_batch_size": 0}, "ppo_mini_batch_size: found 0; a number from 1 up"),
        ({"trainer__save_freq": float("inf")}, "trainer.save_freq: found inf; a number from -1 up"),
        ({"reward_model__overlong_buffer": {"enable": True, "len": 4, "penalty_factor": "$P"}}, "found '$P'; a number from -1 up"),
    ],
)
def test_numbers_that_a_recipe_is_counted_with_are_refused_by_key(changes, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        from_verl(verl(**changes), "f")


@given(prompts=st.integers(1, 64), mini=st.integers(1, 64), group=st.integers(1, 16), micro=st.integers(1, 16), gpus=st.integers(1, 16))
def test_batches_that_are_translated_mean_the_same(prompts, mini, group, micro, gpus):
    changes = {
        "data__train_batch_size": prompts,
        "actor_rollout_ref__rollout__n": group,
        "actor_rollout_ref__actor__ppo_mini_batch_size": mini,
        "actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": micro,
        "trainer__n_gpus_per_node": gpus,
    }
    found = from_verl(verl(**changes), "f")
    group = found.settings["num_generations"]  # of one there is nothing to learn
    if "per_device_train_batch_size" not in found.settings:
        assert (mini * group) % (micro * gpus) or prompts % mini
        return
    per_update = found.settings["per_device_train_batch_size"] * found.settings["gradient_accumulation_steps"] * gpus
    assert per_update == mini * group
    assert found.settings.get("generation_batch_size", per_update) == prompts * group


def test_a_trainer_s_command_line_is_read(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "OUT=runs\ntorchrun --nproc_per_node=2 src/grpo.py \\\n  --output_dir $OUT/tiny --model_name_or_path nobody/model \\\n"
        "  --dataset_name nobody/data --bf16 --max_prompt_length 64 --learning_rate 1e-6 --unheard_of 3 --reward_funcs accuracy format\n",
        encoding="utf-8",
    )
    found = migrate(script, "grpo")
    assert found.settings == {
        "output_dir": "runs/tiny",
        "model_name_or_path": "nobody/model",
        "dataset_name": "nobody/data",
        "bf16": True,
        "max_prompt_tokens": 64,
        "learning_rate": 1e-6,
        "reward_funcs": ["accuracy", "format"],
    }
    assert sorted(found.left) == ["nproc_per_node=2: no key of grpo here", "unheard_of=3: no key of grpo here"]


def test_what_is_written_can_be_loaded(tmp_path, demo, capsys):
    for name, method in (
        ("verl_grpo.sh", "grpo"),
        ("verl_submitted.sh", "grpo"),
        ("grpo_demo.py", "grpo"),
        ("alignment_handbook_sft.yaml", "sft"),
        ("open_r1_grpo.yaml", "grpo"),
    ):
        main([str(demo if name == demo.name else FIXTURES / name), "--method", method])
        path = tmp_path / f"{Path(name).stem}.yaml"
        path.write_text(capsys.readouterr().out, encoding="utf-8")
        extra = ["--dataset_name", "nobody/sums"] if name.startswith("verl") else []  # its script leaves that to the environment
        extra += ["--model_name_or_path", "nobody/tiny"] if name.startswith("verl") else []
        extra += ["--use_vllm", "false"] if method == "grpo" else []
        recipe = load_recipe([str(path), *ON_CPU, "--report_to", "none", *extra], method)
        assert recipe.warnings == [], "what was translated once needs no translating again"
        assert recipe.training.output_dir


def test_the_list_stands_in_the_recipe_as_comments(capsys):
    main([str(FIXTURES / "verl_grpo.sh")])
    header = capsys.readouterr().out.split("\n\n")[0]
    assert all(line.startswith("#") for line in header.splitlines())
    assert "#   critic.optim.lr=1e-05: there is no critic here" in header


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "usage: python -m r1_recipes.migration"),
        (["x.yaml", "--method", "dpo"], "usage:"),
        (["no.yaml"], "no.yaml: no such recipe file"),
        (["no.txt"], "no.txt: .txt is not one of"),
        (["no.py"], "no.py: cannot be read"),
    ],
)
def test_a_call_that_cannot_be_followed(argv, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(("name", "text"), [("a.sh", "echo hello\n"), ("a.py", "x = 1\n"), ("b.py", "def (:")])
def test_files_without_settings(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"no settings found|not Python: line 1"):
        read_file(path)


@given(text=st.text(alphabet="ab$\\{}()'\"=-+. \n#*12", max_size=80))
def test_any_shell_text_is_read(text):
    assert isinstance(migration._from_shell(text, Path("x.sh")), dict)


@given(
    values=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.dictionaries(st.sampled_from(["data", "a", "b.c"]), inner, max_size=3),
        max_leaves=6,
    )
)
def test_flatten_keeps_every_leaf(values):
    if not isinstance(values, dict):
        return
    flat = flatten(values)
    assert not any(isinstance(value, dict) for value in flat.values())
    assert is_verl(values) == any(
        key.partition(".")[0] == "data" and ("." in key or isinstance(value, dict)) for key, value in values.items()
    )


def test_a_migration_is_plain_data():
    assert json.dumps(vars(Migration())) == '{"settings": {}, "notes": [], "left": []}'


def document_rows():
    """``(section, theirs, here)`` of the tables in docs/migration.md."""
    section = ""
    for line in (FIXTURES.parents[1] / "docs" / "migration.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif section and line.startswith("| ") and not line.startswith("| theirs"):
            yield section, *(cell.strip() for cell in line.strip("|").split("|"))


def keys(cell):
    """The bare keys that a cell names."""
    return [name for name in re.findall(r"`([a-z_.…]+)(?:[:=][^`]*)?`", cell) if "_" in name or "." in name or name == "benchmarks"]


@pytest.mark.parametrize(("section", "theirs", "here"), list(document_rows()))
def test_the_migration_guide_says_what_the_code_does(section, theirs, here):
    found = keys(theirs)
    if here.startswith("ignored"):
        assert found and set(found) <= set(OBSOLETE)
    elif here.startswith("refused"):
        assert found and set(found) <= set(REFUSED)
    elif here.startswith("listed"):
        assert [
            entry
            for key in found
            for entry in from_verl(verl(**{key.replace(".", "__"): 5 if "freq" in key else "val_" in key or "x"}), "f").left
            if key in entry
        ]
    elif section == "veRL and TinyZero":
        for key in found:
            if key in migration._VERL_KEYS:
                assert f"`{migration._VERL_KEYS[key]}`" in here
    else:
        for key in found:
            if key in RENAMED:
                assert f"`{RENAMED[key]}`" in here
            if key in migration._DEMO_REWARDS:
                name, paid = migration._DEMO_REWARDS[key]
                assert here.startswith(f"`{name}`, weight {paid}")


def test_open_r1_s_characters_are_said_to_be_tokens(tmp_path):
    path = tmp_path / "theirs.yaml"
    path.write_text((FIXTURES / "open_r1_grpo.yaml").read_text(encoding="utf-8") + "cosine_max_len: 120\n", encoding="utf-8")
    warnings = load_recipe([str(path)], "grpo").warnings
    assert any("cosine_max_len: 120 is read as tokens; open-r1 counts characters" in warning for warning in warnings)
    said: list[str] = []
    assert translate({"cosine_max_len": 120, "learning_rate": 1}, "f", said) == {"cosine_max_len": 120, "learning_rate": 1}
    assert said == [], "a recipe of ours counts tokens"


def test_two_older_names_of_one_key_are_refused():
    message = "f: use_liger and use_liger_loss are both today's use_liger_kernel, and both are set; keep one of them"
    with pytest.raises(RecipeError, match=re.escape(message)):
        translate({"use_liger": True, "use_liger_loss": False}, "f", [])
