"""Memory under ddp, ZeRO and FSDP: what a launch exports, what it shares out, and that docs/scaling.md's tables are that arithmetic."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pandas import Series
from transformers import Qwen2Config
from trl import ModelConfig

from r1_recipes.extras.preflight import memory
from r1_recipes.extras.preflight.findings import Report
from r1_recipes.extras.preflight.memory import Parallelism, Shape, model_shape
from tests.conftest import REPOSITORY
from tests.core.training.test_accelerate_configs import environment, launched  # noqa: F401  a fixture
from tests.extras.preflight.test_preflight import check, found, recipe  # noqa: F401  a fixture

# Qwen2.5's config.json files: hidden width, MLP, layers, heads, key-value heads, vocabulary, tied embeddings.
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
# What the first table's columns say, and the prompt and completion above it.
SPREADS = {
    "1 GPU or ddp": Parallelism(),
    "zero2, 8": Parallelism(8, stage=2),
    **{f"zero3, {count}": Parallelism(count, stage=3) for count in (8, 16, 32, 64)},
}
PROMPT, COMPLETION = 512, 1024
SHAPE = Shape(
    parameters=1000, trainable=1000, weight_bytes=4000, trained_bytes=4000, width=4, vocabulary=100, cache=8, window=4096
)  # fmt: skip
# Parts of the estimate that the computer's memory has, by what is offloaded.
OPTIMIZER = ("gradients", "optimizer")
ALL = ("weights", "reference", *OPTIMIZER)


def settings(**changes: Any) -> SimpleNamespace:
    training = {
        "optim": "adamw_torch", "bf16": True, "fp16": False, "beta": 0.04, "max_completion_length": 512, "per_device_train_batch_size": 4,
        "steps_per_generation": 16, "use_vllm": False, "use_cpu": False, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.5,
    }  # fmt: skip
    training |= {key: value for key, value in changes.items() if key in training}
    model = SimpleNamespace(use_peft=changes.get("use_peft", False))
    return SimpleNamespace(method="grpo", training=SimpleNamespace(**training), model=model)


def sizes(report: Report) -> Series:
    """Bytes, by what they hold."""
    return report.details["fit"][0][1]["GB"] * 1e9


@pytest.mark.parametrize(
    "name, expected",
    [
        ("single_gpu", Parallelism()),
        ("ddp", Parallelism(16)),
        ("zero2", Parallelism(16, stage=2)),
        ("zero2_offload", Parallelism(16, stage=2, offloaded=OPTIMIZER)),
        ("zero3", Parallelism(16, stage=3)),
        ("fsdp2", Parallelism(16, stage=3)),
    ],
)
def test_what_a_launch_exports_is_read(launched: Callable, name: str, expected: Parallelism) -> None:  # noqa: F811
    _, variables = launched(REPOSITORY / "accelerate_configs" / f"{name}.yaml")
    values = {key: value for key, value in variables.items() if key.startswith(("ACCELERATE_", "FSDP_"))}
    with environment({**values, "WORLD_SIZE": str(expected.processes)}):
        assert memory.parallelism() == expected


@pytest.mark.parametrize(
    "flags, expected",
    [
        (["zero3", "--offload_param_device", "cpu"], Parallelism(2, stage=3, offloaded=ALL)),
        (["fsdp2", "--fsdp_offload_params", "true"], Parallelism(2, stage=3, offloaded=ALL)),
    ],
)
def test_so_are_its_flags(launched: Callable, flags: list[str], expected: Parallelism) -> None:  # noqa: F811
    _, variables = launched(REPOSITORY / "accelerate_configs" / f"{flags[0]}.yaml", *flags[1:])
    values = {key: value for key, value in variables.items() if key.startswith(("ACCELERATE_", "FSDP_"))}
    with environment({**values, "WORLD_SIZE": "2"}):
        assert memory.parallelism() == expected


def test_memory_is_what_its_formula_says() -> None:
    assert memory.memory(settings(), SHAPE, 88, Parallelism()) == {
        "weights": 4000,
        "reference": 4000,
        "gradients": 4000,
        "optimizer": 8000,
        "logits": 409_600,  # 4 completions x 512 tokens x 100 x 2
        "kv_cache": 614_400,  # 4 x 16 completions x 600 tokens x 8 x 2
    }


@pytest.mark.parametrize(
    "spread, changes, expected",
    [
        (Parallelism(), {"optim": "adamw_bnb_8bit"}, {"optimizer": 2000}),
        (Parallelism(), {"optim": "sgd"}, {"optimizer": 0}),
        (Parallelism(), {"optim": "paged_adamw_32bit"}, {"optimizer": 0}),
        (Parallelism(), {"beta": 0.0}, {"reference": 0}),
        (Parallelism(), {"use_peft": True}, {"reference": 0}),
        (Parallelism(), {"use_vllm": True}, {"kv_cache": 0}),
        (Parallelism(), {"bf16": False}, {"logits": 819_200, "kv_cache": 1_228_800}),
        (Parallelism(4), {}, {"weights": 4000, "gradients": 4000, "optimizer": 8000}),
        # bf16 weights, and of the trained ones an fp32 copy beside Adam's two: 12 bytes; the reference has no optimizer and stays whole
        (Parallelism(4, stage=1), {}, {"weights": 2000, "reference": 2000, "gradients": 2000, "optimizer": 3000}),
        (Parallelism(4, stage=2), {}, {"weights": 2000, "reference": 2000, "gradients": 500, "optimizer": 3000}),
        (Parallelism(4, stage=2), {"optim": "adamw_bnb_8bit"}, {"optimizer": 1500}),  # 4 + 2 x 1
        (Parallelism(4, stage=2), {"bf16": False}, {"weights": 4000, "gradients": 1000, "optimizer": 2000}),
        (Parallelism(4, stage=2, offloaded=OPTIMIZER), {}, {"weights": 2000, "gradients": 0, "optimizer": 0}),
        (Parallelism(4, stage=3), {}, {"weights": 500, "reference": 500, "gradients": 500, "optimizer": 3000}),
        (Parallelism(4, stage=3, offloaded=ALL), {}, dict.fromkeys(ALL, 0)),
    ],
)
def test_each_setting_counts_where_it_should(spread: Parallelism, changes: dict, expected: dict) -> None:
    parts = memory.memory(settings(**changes), SHAPE, 88, spread)
    assert {name: parts[name] for name in expected} == expected


def test_every_part_is_explained() -> None:
    text = (REPOSITORY / "docs" / "preflight.md").read_text(encoding="utf-8").lower()
    parts = set(memory.memory(settings(), SHAPE, 88, Parallelism()))
    assert {part for part in parts if f"| {part.replace('_', ' ')} |" not in text} == set()


@pytest.mark.parametrize(
    "available, here, level", [(1_000_000, True, "ok"), (700_000, True, "warning"), (19_000, True, "error"), (19_000, False, "warning")]
)
def test_memory_is_compared_with_the_device(monkeypatch: pytest.MonkeyPatch, available: int, here: bool, level: str) -> None:
    """20,000 bytes stay for the whole run, and the KV cache comes on top: only without room for the first is it an error."""
    monkeypatch.setattr(memory, "device", lambda _: ("a device" if here else memory.ELSEWHERE, available))
    report = Report()
    memory.check_memory(report, settings(), SHAPE, 88, Parallelism())
    message = found(report, level)["fit.memory"]
    assert "at least 0.00 GB a process" in message and ("use_peft: true" in message) == (level != "ok")
    assert sizes(report)["total"] == pytest.approx(20_000 + 614_400)


def test_vllm_has_its_share_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes on top of what stays, or the logits do, whichever is more: an engine may sleep while the model trains."""
    monkeypatch.setattr(memory, "device", lambda _: ("a device", 1_000_000))
    report = Report()
    memory.check_memory(report, settings(use_vllm=True), SHAPE, 88, Parallelism())
    assert "fit.memory" in found(report, "ok") and sizes(report)[["vllm", "total"]].to_list() == pytest.approx([500_000, 520_000])


def test_preflight_divides_by_what_it_is_launched_with(recipe, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    for name, value in {"USE_DEEPSPEED": "true", "DEEPSPEED_ZERO_STAGE": "3", "DEEPSPEED_ZERO3_INIT": "true"}.items():
        monkeypatch.setenv(f"ACCELERATE_{name}", value)
    monkeypatch.setenv("WORLD_SIZE", "16")
    report = check(recipe(num_generations=4, per_device_train_batch_size=1), use_model=True)  # the model is loaded as without DeepSpeed
    assert "a process, ZeRO-3 or FSDP over 16 processes (" in found(report, "ok")["fit.memory"] and "signal" in report.details
    whole = check(recipe(num_generations=4, per_device_train_batch_size=1), num_processes=4)
    assert "ZeRO-3 or FSDP over 4 processes" in found(whole, "ok")["fit.memory"]
    assert sizes(whole)["weights"] == pytest.approx(4 * sizes(report)["weights"])


# The tables of docs/scaling.md


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Shape, Shape]]:
    """Each model's shape, and in 16 bits with LoRA of rank 32 on all linear layers."""
    folder = tmp_path_factory.mktemp("qwen")

    def shape(name: str, **keys: object) -> Shape:
        model = ModelConfig(model_name_or_path=str(folder / name), **keys)
        training, script = SimpleNamespace(trust_remote_code=False), SimpleNamespace(unfrozen_parameters=None)
        return model_shape(Report(), SimpleNamespace(path=Path(name), model=model, training=training, script=script))

    for name, (hidden, mlp, layers, heads, groups, words, tied) in QWEN.items():
        config = Qwen2Config(
            hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=groups,
            vocab_size=words, tie_word_embeddings=tied, dtype="bfloat16",
        )  # fmt: skip
        config.save_pretrained(folder / name)
    lora = {"use_peft": True, "lora_r": 32, "lora_target_modules": ["all-linear"], "dtype": "bfloat16"}
    return {name: (shape(name), shape(name, **lora)) for name in QWEN}


def test_packed_weights_are_the_linear_layers_but_for_the_output(recipe) -> None:  # noqa: F811
    whole, packed = (sizes(check(recipe(**keys)))["weights"] for keys in ({}, {"load_in_4bit": True, "use_peft": False}))
    # two layers of q, k, v, o and three of the MLP, of 3.5 bytes less each
    assert whole - packed == pytest.approx(3.5 * 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64))


def tables(section: str) -> list[list[list[str]]]:
    """The cells of a section's tables, without the line below the head."""
    text = (REPOSITORY / "docs" / "scaling.md").read_text(encoding="utf-8")
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    return [[line.strip("|\n").strip().split(" | ") for line in block.splitlines() if "---" not in line] for block in blocks]


def estimate(shape: Shape, spread: Parallelism, **changes: object) -> float:
    parts = memory.memory(settings(use_vllm=True, max_completion_length=COMPLETION, **changes), shape, PROMPT, spread)
    return sum(parts.values())


@pytest.mark.parametrize("number, beta", [(0, 0.0), (1, 0.04)])
def test_the_table_of_memory_is_preflights_arithmetic(shapes: dict, number: int, beta: float) -> None:
    rows = [["model", "parameters", *(["LoRA, 1 GPU"] if not beta else []), *SPREADS]]
    for name, (full, adapted) in shapes.items():
        sizes = [estimate(full, spread, beta=beta) for spread in SPREADS.values()]
        if not beta:
            sizes.insert(0, estimate(adapted, Parallelism(), use_peft=True))
        rows.append([name, f"{full.parameters / 1e9:.2f} B", *(f"{size / 1e9:,.0f}" for size in sizes)])
    assert tables("Which parallelism")[number] == rows


def test_the_table_of_generation_is_arithmetic_too(shapes: dict) -> None:
    rows = [["model", "weights, bf16", "KV cache", "at most, tokens/s a copy", "its GPUs, of 80 GB"]]
    for name, (shape, _) in shapes.items():
        weights, cache = 2 * shape.parameters, 256 * 1024 * shape.cache * 2
        gpus = next(2**power for power in range(9) if weights + cache <= 2**power * GPU)
        speed = 256 * gpus * 3.35e12 / (weights + cache)
        rows.append([name, f"{weights / 1e9:.0f} GB", f"{cache / 1e9:.1f} GB", f"{round(speed, -3):,.0f}", str(gpus)])
    assert tables("Where the time goes") == [rows]
