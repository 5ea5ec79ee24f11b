"""What a start refuses before anything is loaded, and what it sets."""

import os

import pytest
import torch

from r1_recipes.common import processes
from r1_recipes.common.console import reported_errors
from r1_recipes.common.errors import RecipeError
from r1_recipes.recipe import load_recipe
from r1_recipes.training.train import check_machine, check_rewards, start, usage

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("keys", [{"bf16": True}, {"dtype": "bfloat16"}])
def test_bf16_on_a_gpu_without_it(write_recipe, monkeypatch, keys):
    recipe = load_recipe([write_recipe("grpo", **keys)], "grpo")
    recipe.training.use_cpu = False
    check_machine(recipe)
    monkeypatch.setattr(processes, "lacks_bf16", lambda: True)
    with pytest.raises(RecipeError, match=r"bf16: .*--fp16 true --bf16 false --dtype float32"):
        check_machine(recipe)
    recipe.training.use_cpu = True
    check_machine(recipe)


def test_what_would_go_wrong_in_silence(write_recipe, monkeypatch):
    def checked(**keys):
        check_machine(load_recipe([write_recipe("grpo", **keys)], "grpo"))

    with pytest.raises(
        RecipeError, match=r"temperature: must be above 0, .*Fix: temperature: 1\.0"
    ):
        checked(temperature=0.0)
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    checked(beta=0.0)
    checked(beta=0.04, use_peft=True)
    with pytest.raises(RecipeError, match=r"fsdp_cpu_ram_efficient_loading: .*Fix: false"):
        checked(beta=0.04)
    recipe = load_recipe([write_recipe("grpo", use_peft=True, use_dora=True)], "grpo")
    recipe.training.use_vllm = True
    with pytest.raises(RecipeError, match="use_dora: must be false with use_vllm"):
        check_machine(recipe)


def test_tools_on_processes_that_generate_together(write_recipe, monkeypatch):
    recipe = load_recipe([write_recipe("grpo", tools=["calculator"])], "grpo")
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_machine(recipe)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(RecipeError, match=r"tools, environment: .*vllm_mode: colocate"):
        check_machine(recipe)


def test_one_process_takes_one_gpu_and_says_so(write_recipe, monkeypatch, caplog):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    start([write_recipe("grpo")], "grpo")  # a recipe for the CPU
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"
    assert not any("CUDA_VISIBLE_DEVICES" in line for line in caplog.messages)


def test_a_reward_may_refuse_to_start(write_recipe, monkeypatch):
    recipe = load_recipe([write_recipe("grpo")], "grpo")

    def reward(**columns):
        return []

    def refuse():
        raise RecipeError("no server")

    reward.check_start = refuse
    monkeypatch.setattr("r1_recipes.training.train.get_reward_funcs", lambda *_, **__: [reward])
    with pytest.raises(RecipeError, match="no server"):
        check_rewards(recipe)
    recipe.script.smoke = True
    check_rewards(recipe)


@pytest.mark.parametrize("method", ["grpo", "sft", "distill", "reward", "generate"])
def test_help_names_every_key_of_ours(method):
    text = usage(method)
    assert f"python -m r1_recipes.{method} recipes/NAME.yaml" in text
    assert "--dataset_name" in text and "--response_format" in text


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (RecipeError("x.yaml: lr: no"), 2, "error: x.yaml: lr: no\n"),
        (KeyboardInterrupt(), 130, "same command"),
        (SystemExit(7), 7, ""),
    ],
)
def test_exit_status(error, status, said, capsys):
    with pytest.raises(SystemExit) as ended, reported_errors():
        raise error
    assert ended.value.code == status and said in capsys.readouterr().err
