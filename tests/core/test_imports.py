"""What importing costs: the rewards and mappers work where there is no torch, and every module can
be imported.
"""

import pkgutil
import subprocess
import sys

import pytest

import r1_recipes

HEAVY = ("torch", "transformers", "trl", "accelerate", "peft", "vllm", "datasets")
MODULES = sorted(
    module.name for module in pkgutil.walk_packages(r1_recipes.__path__, "r1_recipes.")
)


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "r1_recipes",
        "r1_recipes.rewards",
        "r1_recipes.data",
        "r1_recipes.prompts.formats",
        "r1_recipes.recipe",
    ],
)
def test_light_modules_load_no_heavy_library(name):
    found = run(f"import sys, {name}; print(*(m for m in {HEAVY!r} if m in sys.modules))")
    assert found.split() == []


@pytest.mark.parametrize("method", ["grpo", "sft", "distill", "reward", "generate"])
def test_help_loads_no_heavy_library(method):
    code = f"""
import sys
from r1_recipes import {method}
try:
    {method}.main(["--help"])
except SystemExit as end:
    print(end.code, *(m for m in {HEAVY!r} if m in sys.modules))
"""
    *keys, end = run(code).splitlines()
    assert any("--response_format" in line for line in keys) and "trl.ModelConfig" in "".join(keys)
    assert end == "0"


def test_rewards_and_mappers_work_where_torch_is_absent():
    hidden = {name: None for name in ("torch", "transformers", "trl")}
    code = f"""
import sys
sys.modules.update({hidden!r})
from r1_recipes.data import get_mapper
from r1_recipes.rewards import REWARDS, get_reward_funcs
row = get_mapper("gsm8k")({{"question": "1+1?", "answer": "#### 2"}})
assert row["solution"] == "2"
funcs = get_reward_funcs(["accuracy", "format", "tag_count"])
completion = "<think>\\n1+1=2\\n</think>\\n<answer>\\n2\\n</answer>"
print(*(func(prompts=["1+1?"], completions=[completion], completion_ids=[[1]], solution=["2"])[0] for func in funcs))
"""
    assert run(code).split() == ["1.0", "1.0", "1.0"]


def test_every_module_imports():
    assert {
        "r1_recipes.grpo",
        "r1_recipes.sft",
        "r1_recipes.recipe",
        "r1_recipes.data.load",
    } <= set(MODULES)
    # One interpreter for all: a module alone costs seconds, its libraries are shared.
    assert run(
        f"import importlib\nfor name in {MODULES!r}:\n    "
        f"importlib.import_module(name)\nprint('all')"
    ).split() == ["all"]


def test_public_names_exist():
    import r1_recipes.data
    import r1_recipes.rewards

    for package in (r1_recipes.data, r1_recipes.rewards):
        assert [name for name in package.__all__ if not hasattr(package, name)] == []
    assert r1_recipes.__version__
