"""What a start does about GPUs: one of several, and one without bf16."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch

from r1_recipes.common import gpu
from r1_recipes.common.errors import RecipeError
from r1_recipes.recipe import load_recipe
from r1_recipes.training.start import check_precision, start

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "keys, refused",
    [
        ({"bf16": True}, "bf16"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({}, ""),
        ({"bf16": True, "use_cpu": True}, ""),
    ],
)
def test_bf16_on_a_gpu_without_it(
    write_recipe: Callable[..., str], monkeypatch: pytest.MonkeyPatch, keys: dict, refused: str
) -> None:
    recipe = load_recipe([write_recipe("grpo", **keys)], "grpo")
    recipe.training.use_cpu = keys.get("use_cpu", False)
    check_precision(recipe)
    monkeypatch.setattr(gpu, "lacks_bf16", lambda: True)
    if not refused:
        check_precision(recipe)
        return
    with pytest.raises(
        RecipeError, match=rf"tiny\.yaml: {refused}: .*--fp16 true --bf16 false --dtype float32"
    ):
        check_precision(recipe)


def test_a_start_without_a_launcher_uses_one_gpu_with_a_message(
    write_recipe: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    # The recipe is one for the CPU: that the GPU has been chosen before it was read is what matters
    # here.
    run = start([write_recipe("grpo")], "grpo")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2" and not any(
        "CUDA_VISIBLE_DEVICES" in line for line in caplog.messages
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *arguments: True)
    monkeypatch.setattr(
        "r1_recipes.training.start.load_recipe",
        lambda argv, method, check, smoke: check(run.recipe.path, {}) or run.recipe,
    )
    run.recipe.training.use_cpu = False
    start([str(run.recipe.path)], "grpo")
    assert sum("CUDA_VISIBLE_DEVICES=2" in line for line in caplog.messages) == 1
