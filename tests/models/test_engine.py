"""What a model's configuration says of vLLM's engine: parameters, KV cache, window."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from transformers import modeling_utils

from r1_recipes.models.engine import dimensions
from r1_recipes.preflight.findings import Report
from r1_recipes.preflight.memory import model_shape
from r1_recipes.recipe import load_recipe


@pytest.fixture
def zero3(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeRO-3 is on, and its ``Init``, which would allocate the weights, must not be entered."""

    def entered(**options: Any) -> None:
        raise AssertionError("deepspeed.zero.Init")

    deepspeed = ModuleType("deepspeed")
    deepspeed.zero = SimpleNamespace(Init=entered)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed", deepspeed)
    monkeypatch.setattr(modeling_utils, "is_deepspeed_zero3_enabled", lambda: True)
    monkeypatch.setattr(modeling_utils, "deepspeed_config", dict)


def test_under_zero3_a_model_is_measured_without_its_weights(zero3: None, write_recipe: Callable[..., str]) -> None:
    recipe = load_recipe([write_recipe("grpo")], "grpo")
    size, shape = dimensions(recipe), model_shape(Report(), recipe)
    assert size is not None and size.parameters == shape.parameters > 0
