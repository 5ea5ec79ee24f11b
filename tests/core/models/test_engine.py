"""What a model's configuration says of vLLM's engine: parameters, KV cache, window."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from transformers import (
    DeepseekV3Config,
    Gemma3TextConfig,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3NextConfig,
    modeling_utils,
)

from r1_recipes.extras.preflight.findings import Report
from r1_recipes.extras.preflight.memory import model_shape
from r1_recipes.models.engine import cache_of, dimensions
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


def test_under_zero3_a_model_is_measured_without_its_weights(
    zero3: None, write_recipe: Callable[..., str]
) -> None:
    recipe = load_recipe([write_recipe("grpo")], "grpo")
    size, shape = dimensions(recipe), model_shape(Report(), recipe)
    assert size is not None and size.parameters == shape.parameters > 0


@pytest.mark.parametrize(
    "config, values",
    [
        (
            LlamaConfig(
                num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, hidden_size=64
            ),
            4 * 2 * 2 * 8,
        ),
        # One layer of four, or of six, attends to all tokens.
        (
            Qwen3NextConfig(
                num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2, head_dim=16
            ),
            2 * 2 * 2 * 16,
        ),
        (
            Gemma3TextConfig(
                num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=2, head_dim=16
            ),
            2 * 2 * 2 * 16,
        ),
        (DeepseekV3Config(num_hidden_layers=4, kv_lora_rank=32, qk_rope_head_dim=8), 4 * (32 + 8)),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_the_cache_has_what_the_layers_keep_of_every_token(
    config: PreTrainedConfig, values: int
) -> None:
    assert cache_of(config) == values
