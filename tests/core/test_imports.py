"""What importing costs: the rewards and mappers work where there is no torch."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


HEAVY = ("torch", "transformers", "trl", "accelerate", "peft", "vllm", "datasets")


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
