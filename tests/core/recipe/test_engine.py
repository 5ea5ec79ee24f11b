"""The length that vLLM's engine is bounded to."""

from __future__ import annotations

from typing import Any

import pytest

from r1_recipes.recipe.engine import longest_sequence


@pytest.mark.parametrize(
    "keys, expected",
    [
        ({}, 612),
        ({"eval_max_completion_length": 2000}, 2100),
        ({"max_prompt_tokens": None}, None),
        ({"max_completion_length": None}, None),
        ({"tools": ["calculator"]}, 612),  # TRL counts what tools say
        ({"environment": "m:Game", "tool_output_chars": 300}, 912),  # and not what reset says
        ({"vllm_mode": "server"}, 612),
        (
            {"vllm_mode": "server", "tools": ["calculator"]},
            1124,
        ),  # the last turn is cut after it was generated
        ({"distill_with": "gold"}, None),
    ],
)
def test_the_longest_sequence(keys: dict[str, Any], expected: int | None) -> None:
    settings = {
        "max_prompt_tokens": 100,
        "max_completion_length": 512,
        "vllm_mode": "colocate",
        **keys,
    }
    assert longest_sequence(settings.get) == expected
