"""What a run's weights, gradients and optimizer states take on each device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from r1_recipes.extras.preflight import memory
from r1_recipes.extras.preflight.findings import Report
from r1_recipes.extras.preflight.memory import Shape, training_state
from tests.extras.preflight.test_preflight import check, found, recipe  # noqa: F401  a fixture

SHAPE = Shape(parameters=1000, trainable=1000, weight_bytes=4000, trained_bytes=4000, window=4096)


def settings(**changes: Any) -> SimpleNamespace:
    training = {
        "optim": "adamw_torch", "bf16": True, "fp16": False, "beta": 0.0, "use_vllm": False, "use_cpu": False, "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.3,
    }  # fmt: skip
    training |= {key: value for key, value in changes.items() if key in training}
    model = SimpleNamespace(use_peft=changes.get("use_peft", False))
    return SimpleNamespace(method="grpo", training=SimpleNamespace(**training), model=model)


@pytest.mark.parametrize(
    "shards, changes, expected",
    [
        (1, {}, (4000, 4000, 8000)),
        (1, {"optim": "adamw_bnb_8bit"}, (4000, 4000, 2000)),
        (1, {"optim": "sgd"}, (4000, 4000, 0)),
        # 16-bit weights and gradients, an fp32 copy and Adam's two moments
        (4, {}, (2000, 2000, 12000)),
        (4, {"optim": "adamw_bnb_8bit"}, (2000, 2000, 6000)),
        (4, {"bf16": False}, (4000, 4000, 8000)),
    ],
)
def test_what_training_keeps(shards: int, changes: dict, expected: tuple[int, int, int]) -> None:
    assert tuple(training_state(settings(**changes), SHAPE, shards).values()) == expected


@pytest.mark.parametrize(
    "available, shards, changes, level",
    [
        (19_000, 1, {}, "ok"),
        (16_000, 1, {}, "warning"),  # activations have no room
        (15_999, 1, {}, "error"),
        (19_999, 1, {"beta": 0.1}, "error"),  # the reference model
        (19_000, 1, {"beta": 0.1, "use_peft": True}, "ok"),
        (9_500, 1, {"optim": "paged_adamw_32bit"}, "ok"),
        (4_800, 4, {}, "ok"),
        (3_999, 4, {}, "warning"),  # shards may be offloaded
        (20_000, 1, {"use_vllm": True}, "warning"),  # vLLM leaves 14,000, and may sleep
        (20_000, 1, {"use_vllm": True, "vllm_mode": "server"}, "ok"),
        (None, 1, {}, "ok"),
    ],
)
def test_it_is_compared_with_the_device(
    monkeypatch: pytest.MonkeyPatch, available: int | None, shards: int, changes: dict, level: str
) -> None:
    monkeypatch.setattr(memory, "device_memory", lambda _: available)
    report = Report()
    memory.check_memory(report, settings(**changes), SHAPE, shards)
    assert ("Fix: use_peft: true" in found(report, level)["fit.memory"]) == (level != "ok")
