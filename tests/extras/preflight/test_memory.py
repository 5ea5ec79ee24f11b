"""What a run's weights, gradients and optimizer states take on each device, and that
docs/scaling.md's tables are arithmetic.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import Qwen2Config
from trl import ModelConfig

from r1_recipes.extras.preflight import memory
from r1_recipes.extras.preflight.findings import Report
from r1_recipes.extras.preflight.memory import Shape, model_shape, training_state
from tests.conftest import REPOSITORY
from tests.extras.preflight.test_preflight import check, found, recipe  # noqa: F401  a fixture

# Qwen2.5's config.json files: hidden width, MLP, layers, heads, key-value heads, vocabulary, tied
# embeddings.
QWEN = {
    "Qwen2.5-0.5B": (896, 4864, 24, 14, 2, 151936, True),
    "Qwen2.5-1.5B": (1536, 8960, 28, 12, 2, 151936, True),
    "Qwen2.5-3B": (2048, 11008, 36, 16, 2, 151936, True),
    "Qwen2.5-7B": (3584, 18944, 28, 28, 4, 152064, False),
    "Qwen2.5-14B": (5120, 13824, 48, 40, 8, 152064, False),
    "Qwen2.5-32B": (5120, 27648, 64, 40, 8, 152064, False),
    "Qwen2.5-72B": (8192, 29568, 80, 64, 8, 152064, False),
}
GPU = 80e9
# What the memory table's columns say, and the bytes of a trained parameter there.
SPREADS = {
    "1 GPU or ddp": 16,
    "zero2, 8": 2 + 14 / 8,
    **{f"zero3, {count}": 16 / count for count in (8, 16, 32, 64)},
}
SHAPE = Shape(
    parameters=1000, trainable=1000, weight_bytes=4000, trained_bytes=4000, cache=8, window=4096
)


def settings(**changes: Any) -> SimpleNamespace:
    training = {
        "optim": "adamw_torch", "bf16": True, "fp16": False, "beta": 0.0, "use_vllm": False, "use_cpu": False, "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.3, "teacher_model_kind": "live",
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
        (19_999, 1, {"teacher_model_kind": "ema"}, "error"),  # SDPO's teacher
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


@pytest.mark.parametrize("launcher", ["DEEPSPEED", "FSDP"])
def test_preflight_divides_by_what_it_is_launched_with(
    recipe,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    launcher: str,
) -> None:
    shards = []
    monkeypatch.setattr(
        memory, "check_memory", lambda report, recipe, shape, count: shards.append(count)
    )
    check(recipe(), num_processes=4)
    monkeypatch.setenv(f"ACCELERATE_USE_{launcher}", "true")
    monkeypatch.setenv("WORLD_SIZE", "2")
    check(recipe())
    check(recipe(), num_processes=4)
    assert shards == [1, 2, 4]


def test_a_model_is_loaded_as_without_a_launcher(recipe, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    for name, value in {
        "USE_DEEPSPEED": "true",
        "DEEPSPEED_ZERO_STAGE": "3",
        "DEEPSPEED_ZERO3_INIT": "true",
    }.items():
        monkeypatch.setenv(f"ACCELERATE_{name}", value)
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert (
        "signal"
        in check(recipe(num_generations=4, per_device_train_batch_size=1), use_model=True).details
    )


def test_packed_weights_have_less(recipe, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    shapes = []
    monkeypatch.setattr(
        memory, "check_memory", lambda report, recipe, shape, shards: shapes.append(shape)
    )
    for keys in ({}, {"load_in_8bit": True}, {"load_in_4bit": True}):
        check(recipe(**keys, use_peft=False))
    assert [shape.weight_bytes / shape.parameters for shape in shapes] == [4, 1, 0.5]


# The tables of docs/scaling.md


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shape]:
    folder = tmp_path_factory.mktemp("qwen")

    def shape(name: str) -> Shape:
        model = ModelConfig(model_name_or_path=str(folder / name))
        training, script = (
            SimpleNamespace(trust_remote_code=False),
            SimpleNamespace(unfrozen_parameters=None),
        )
        return model_shape(
            Report(),
            SimpleNamespace(path=Path(name), model=model, training=training, script=script),
        )

    for name, (hidden, mlp, layers, heads, groups, words, tied) in QWEN.items():
        config = Qwen2Config(
            hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=groups,
            vocab_size=words, tie_word_embeddings=tied, dtype="bfloat16",
        )  # fmt: skip
        config.save_pretrained(folder / name)
    return {name: shape(name) for name in QWEN}


def tables(section: str) -> list[list[list[str]]]:
    """The cells of a section's tables, without the line below the head."""
    text = (REPOSITORY / "docs" / "scaling.md").read_text(encoding="utf-8")
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    return [
        [line.strip("|\n").strip().split(" | ") for line in block.splitlines() if "---" not in line]
        for block in blocks
    ]


def test_the_table_of_memory_is_arithmetic(shapes: dict[str, Shape]) -> None:
    rows = [["model", "parameters", *SPREADS]]
    for name, shape in shapes.items():
        sizes = [f"{shape.parameters * size / 1e9:,.1f}" for size in SPREADS.values()]
        rows.append([name, f"{shape.parameters / 1e9:.2f} B", *sizes])
    assert tables("Which parallelism")[0] == rows


def test_the_table_of_generation_is_arithmetic_too(shapes: dict[str, Shape]) -> None:
    rows = [
        ["model", "weights, bf16", "KV cache", "at most, tokens/s a copy", "its GPUs, of 80 GB"]
    ]
    for name, shape in shapes.items():
        weights, cache = 2 * shape.parameters, 256 * 1024 * shape.cache * 2
        gpus = next(2**power for power in range(9) if weights + cache <= 2**power * GPU)
        speed = 256 * gpus * 3.35e12 / (weights + cache)
        rows.append(
            [
                name,
                f"{weights / 1e9:.0f} GB",
                f"{cache / 1e9:.1f} GB",
                f"{round(speed, -3):,.0f}",
                str(gpus),
            ]
        )
    assert tables("Where the time goes") == [rows]
