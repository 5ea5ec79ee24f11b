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
from r1_recipes.errors import RecipeError
from r1_recipes.migration import Migration, flatten, from_verl, is_verl, main, migrate, read_file, translate_shapes
from r1_recipes.recipe import OBSOLETE, REFUSED, RENAMED, load, read_yaml

FIXTURES = Path(__file__).parent / "fixtures"
ON_CPU = ["--use_cpu", "true", "--bf16", "false"]


def test_a_handbook_recipe_is_read_as_it_is():
    path = FIXTURES / "alignment_handbook_sft.yaml"
    recipe = load([str(path)], "sft")
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
        "use_peft": True,
        "lora_r": 16,
        "lora_alpha": 64,
        "lora_target_modules": ["q_proj", "v_proj"],
        "lora_dropout": 0.05,
        "reward_funcs": ["xml_count", "xml_soft_format", "xml_strict_format", "integer_answer", "exact_match"],
        "reward_weights": [0.5, 0.5, 0.5, 0.5, 2.0],
    }
    # What would have to be run is said to be missing; so is that a batch is counted otherwise today.
    assert "run_name: an expression, which is not run" in found.left
    assert "per_device_train_batch_size: 1 prompts are 16 completions, which today's TRL counts" in found.notes


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
        "dataset_name": "$DATA_DIR/gsm8k/train.parquet",
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
        "warmup_steps": 10,
        "lr_scheduler_type": "constant_with_warmup",
        "save_strategy": "no",
        "report_to": ["wandb"],
        "output_dir": "outputs/tiny",
        "bf16": True,
    }
    left = {entry.partition("=")[0] for entry in found.left}
    assert left == {"data.val_files", "algorithm.kl_ctrl.kl_coef", "algorithm.filter_groups.enable", "critic.optim.lr", "trainer.test_freq"}


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
    recipe = load([str(path), *ON_CPU], "grpo")
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
    ],
)
def test_what_has_no_counterpart_is_listed(changes, said):
    assert [entry for entry in from_verl(verl(**changes), "f").left if said in entry]


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
        ("grpo_demo.py", "grpo"),
        ("alignment_handbook_sft.yaml", "sft"),
        ("open_r1_grpo.yaml", "grpo"),
    ):
        main([str(demo if name == demo.name else FIXTURES / name), "--method", method])
        path = tmp_path / f"{Path(name).stem}.yaml"
        path.write_text(capsys.readouterr().out, encoding="utf-8")
        extra = ["--response_format", "reasoning_answer"] if name == "grpo_demo.py" else []
        recipe = load([str(path), *ON_CPU, "--report_to", "none", *extra], method)
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
    assert isinstance(migration._from_shell(text), dict)


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
            for entry in from_verl(verl(**{key.replace(".", "__"): "x" if "freq" not in key else 5}), "f").left
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
