"""Memory under ddp, ZeRO and FSDP: what a launch exports, what it shares out, and that docs/scaling.md's tables are that arithmetic."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import Qwen2Config
from transformers.trainer_pt_utils import AcceleratorConfig
from trl import ModelConfig

from r1_recipes.preflight_checks import fit
from r1_recipes.preflight_checks.findings import Report
from r1_recipes.preflight_checks.fit import Parallelism
from tests.conftest import REPOSITORY
from tests.test_accelerate_configs import environment, launched  # noqa: F401  a fixture
from tests.test_preflight import SHAPE, check, found, recipe, settings_for_memory  # noqa: F401  a fixture

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
    "1 GPU": Parallelism(),
    "ddp": Parallelism(2),
    "zero2, 8": Parallelism(8, zero=2),
    **{f"zero3, {count}": Parallelism(count, zero=3) for count in (8, 16, 32, 64)},
    **{f"fsdp2, {count}": Parallelism(count, fsdp=True) for count in (8, 64)},
}
PROMPT, COMPLETION = 512, 1024


@pytest.mark.parametrize(
    "name, expected",
    [
        ("single_gpu", Parallelism()),
        ("ddp", Parallelism(16)),
        ("zero2", Parallelism(16, zero=2)),
        ("zero2_offload", Parallelism(16, zero=2, optimizer_on_host=True)),
        ("zero3", Parallelism(16, zero=3)),
        ("fsdp2", Parallelism(16, fsdp=True)),
    ],
)
def test_what_a_launch_exports_is_read(launched: Callable, name: str, expected: Parallelism) -> None:  # noqa: F811
    _, variables = launched(REPOSITORY / "accelerate_configs" / f"{name}.yaml")
    values = {key: value for key, value in variables.items() if key.startswith(("ACCELERATE_", "FSDP_"))}
    with environment({**values, "WORLD_SIZE": str(expected.processes)}):
        assert fit.parallelism() == expected


@pytest.mark.parametrize(
    "flags, expected",
    [
        (["zero3", "--offload_param_device", "cpu"], Parallelism(2, zero=3, weights_on_host=True)),
        (["fsdp2", "--fsdp_reshard_after_forward", "false"], Parallelism(2, fsdp=True, resharded=False)),
        (["fsdp2", "--fsdp_offload_params", "true"], Parallelism(2, fsdp=True, weights_on_host=True)),
    ],
)
def test_so_are_its_flags(launched: Callable, flags: list[str], expected: Parallelism) -> None:  # noqa: F811
    _, variables = launched(REPOSITORY / "accelerate_configs" / f"{flags[0]}.yaml", *flags[1:])
    values = {key: value for key, value in variables.items() if key.startswith(("ACCELERATE_", "FSDP_"))}
    with environment({**values, "WORLD_SIZE": "2"}):
        assert fit.parallelism() == expected


FSDP = Parallelism(4, fsdp=True)
LORA = {"use_peft": True, "dtype": "bfloat16"}
EACH = AcceleratorConfig(gradient_accumulation_kwargs={"sync_each_batch": True})


@pytest.mark.parametrize(
    "spread, changes, expected",
    [
        # fp32 weights, bf16 autocast; DDP sends the gradients from buckets of their size
        (Parallelism(4), {}, {"weights": 4000, "gradients": 4000, "optimizer": 8000, "autocast": 2000, "buckets": 4000, "step": 0}),
        (Parallelism(4), {"dtype": "bfloat16"}, {"buckets": 2000}),
        # bf16 weights, and of the trained ones an fp32 copy beside Adam's two: 12 bytes; the reference has no optimizer and stays whole
        (Parallelism(4, zero=1), {}, {"weights": 2000, "reference": 2000, "gradients": 2000, "optimizer": 3000, "autocast": 0}),
        (Parallelism(4, zero=1), {}, {"buckets": 1_000_000_000, "step": 1000, "gathered": 0}),
        (Parallelism(4, zero=2), {}, {"weights": 2000, "reference": 2000, "gradients": 500, "optimizer": 3000, "whole_model": 0}),
        (Parallelism(4, zero=2), {"optim": "adamw_bnb_8bit"}, {"optimizer": 1500}),  # 4 + 2 x 1
        (Parallelism(4, zero=2), {"bf16": False}, {"weights": 4000, "gradients": 1000, "optimizer": 3000}),
        (Parallelism(4, zero=2, optimizer_on_host=True), {}, {"weights": 2000, "gradients": 0, "optimizer": 0, "step": 0}),
        (Parallelism(4, zero=1, optimizer_on_host=True), {}, {"gradients": 2000, "optimizer": 0}),
        (Parallelism(4, zero=3), {}, {"weights": 500, "reference": 500, "gradients": 500, "optimizer": 3000, "gathered": 2000}),
        (Parallelism(4, zero=3), {}, {"whole_model": 2000}),  # Transformers generates
        (Parallelism(4, zero=3), {"ds3_gather_for_generation": False}, {"whole_model": 0}),
        (Parallelism(4, zero=3), {"use_vllm": True}, {"whole_model": 0}),
        (Parallelism(4, zero=3, weights_on_host=True), {}, {"weights": 0, "reference": 0, "gradients": 500}),
        (Parallelism(4, zero=3), {}, {"activations": 787_200}),  # as with 16-bit weights
        # all fp32 and a quarter; 16-bit gradients of 15 micro-batches whole; two layers of 100 and the output layer of 800 gathered
        (FSDP, {}, {"weights": 1000, "reference": 1000, "gradients": 1000, "optimizer": 2000, "autocast": 0, "buckets": 0}),
        (FSDP, {}, {"unreduced": 1000, "gathered": 2000, "whole_model": 2000, "activations": 787_200, "step": 0}),
        (FSDP, {"dtype": "bfloat16"}, {"weights": 1000, "reference": 500, "optimizer": 2000}),
        (FSDP, {"beta": 0.0}, {"reference": 0, "whole_model": 0}),
        (FSDP, {"gradient_accumulation_steps": 1}, {"gradients": 1000, "unreduced": 0}),
        (FSDP, {"accelerator_config": EACH}, {"gradients": 1000, "unreduced": 0}),
        (replace(FSDP, resharded=False), {}, {"gathered": 2000, "reference": 3000, "whole_model": 0}),
        (replace(FSDP, weights_on_host=True), {}, {"weights": 0, "reference": 0, "gradients": 0, "optimizer": 0, "unreduced": 2000}),
        # an adapter as large as its base
        (Parallelism(4), LORA, {"weights": 6000, "gradients": 4000, "buckets": 4000}),
        (Parallelism(4, zero=3), LORA, {"weights": 1000, "gradients": 500, "optimizer": 3000}),
        (FSDP, LORA, {"weights": 1500, "gradients": 1000, "optimizer": 2000, "whole_model": 0}),
        # packed bytes are not shared out: 800 x 2 + 200 x 0.5625, and a quarter of the adapter
        (FSDP, {**LORA, "load_in_4bit": True}, {"weights": 2712.5, "gathered": 0}),
        (FSDP, {**LORA, "load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"}, {"weights": 1428.125}),
    ],
)
def test_what_is_shared_out(spread: Parallelism, changes: dict, expected: dict) -> None:
    parts = fit.memory(settings_for_memory(**changes), SHAPE, 88, spread)
    assert {name: parts[name] for name in expected} == expected


def test_the_largest_phase_comes_on_top_of_what_stays() -> None:
    small = {"use_vllm": True, "max_completion_length": 1, "per_device_train_batch_size": 1, "beta": 0.0}
    shape = replace(SHAPE, parameters=10**9, trainable=10**9, head_trained=False)
    parts = fit.memory(settings_for_memory(**small), shape, 1, Parallelism(8, zero=2))
    # 16-bit weights, an eighth of 2 + 12 bytes, a bucket; the step has an eighth of 4 bytes, more than activations
    assert parts["total"] == 2e9 + 14e9 / 8 + 1e9 + 4e9 / 8


def test_every_part_is_explained() -> None:
    text = (REPOSITORY / "docs" / "preflight.md").read_text(encoding="utf-8").lower()
    parts = set(fit.memory(settings_for_memory(), SHAPE, 88)) - {"total"}
    assert {part for part in parts if f"| {part.replace('_', ' ')} |" not in text} == set()


def test_preflight_divides_by_what_it_is_launched_with(recipe, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    for name, value in {"USE_DEEPSPEED": "true", "DEEPSPEED_ZERO_STAGE": "3", "DEEPSPEED_ZERO3_INIT": "true"}.items():
        monkeypatch.setenv(f"ACCELERATE_{name}", value)
    monkeypatch.setenv("WORLD_SIZE", "16")
    report = check(recipe(num_generations=4), use_model=True)  # the model is loaded as without DeepSpeed
    facts = report.facts["memory"]
    assert facts["parallelism"] == "ZeRO-3 over 16 processes" and "signal" in report.facts
    assert "a process, ZeRO-3 over 16 processes (weights" in found(report, "ok")["fit.memory"]
    whole = check(recipe(num_generations=4), processes=4).facts["memory"]
    assert whole["parallelism"] == "ZeRO-3 over 4 processes"
    assert whole["estimate_bytes"]["weights"] == pytest.approx(4 * facts["estimate_bytes"]["weights"], abs=4)


@pytest.mark.parametrize(
    "spread, changes, remedy",
    [
        (Parallelism(64, fsdp=True), {"beta": 0.0}, "unreduced: try accelerator_config: {gradient_accumulation_kwargs: {sync_each_batch:"),
        (Parallelism(64, fsdp=True), {"accelerator_config": EACH}, "whole model: try beta: 0, or use_peft: true"),
        (Parallelism(64, zero=3), {}, "whole model: try use_vllm: true, or ds3_gather_for_generation: false"),
        (Parallelism(64, zero=2), {}, "ZeRO-3 or FSDP over more devices"),
    ],
)
def test_what_helps_under_zero_and_fsdp(monkeypatch: pytest.MonkeyPatch, spread: Parallelism, changes: dict, remedy: str) -> None:
    monkeypatch.setattr(fit, "_device", lambda _: ("a device", 1, True))
    shape = replace(SHAPE, parameters=10**11, trainable=10**11, layers=100, head_trained=False)
    report = Report()
    fit.check_memory(report, settings_for_memory(**changes), shape, 88, spread)
    assert remedy in found(report, "error")["fit.memory"]


# The tables of docs/scaling.md


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[fit.Shape, fit.Shape]]:
    """Each model's shape, and with LoRA of rank 32 on all linear layers."""
    folder = tmp_path_factory.mktemp("qwen")

    def shape(name: str, **keys: object) -> fit.Shape:
        model = ModelConfig(model_name_or_path=str(folder / name), **keys)
        training, script = SimpleNamespace(trust_remote_code=False), SimpleNamespace(unfrozen_parameters=None)
        return fit.model_shape(Report(), SimpleNamespace(path=Path(name), model=model, training=training, script=script))

    for name, (hidden, mlp, layers, heads, groups, words, tied) in QWEN.items():
        config = Qwen2Config(
            hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=groups,
            vocab_size=words, tie_word_embeddings=tied, dtype="bfloat16",
        )  # fmt: skip
        config.save_pretrained(folder / name)
    return {name: (shape(name), shape(name, use_peft=True, lora_r=32, lora_target_modules=["all-linear"])) for name in QWEN}


def tables(section: str) -> list[list[list[str]]]:
    """The cells of a section's tables, without the line below the head."""
    text = (REPOSITORY / "docs" / "scaling.md").read_text(encoding="utf-8")
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    return [[line.strip("|\n").strip().split(" | ") for line in block.splitlines() if "---" not in line] for block in blocks]


def estimate(shape: fit.Shape, spread: Parallelism, **changes: object) -> float:
    settings = settings_for_memory(use_vllm=True, max_completion_length=COMPLETION, **changes)
    return fit.memory(settings, shape, PROMPT, spread)["total"]


def first_that_fits(sizes: dict[str, float]) -> str:
    fits = [name for name, size in sizes.items() if size <= fit._TIGHT * GPU and not name.startswith("fsdp2")]
    if "ddp" in fits:
        return "ddp, 1 GPU or more"
    sharded = next(name for name in fits if name != "1 GPU")
    return f"{'1 GPU; ' * ('1 GPU' in fits)}{sharded} GPUs or more"


@pytest.mark.parametrize("number, beta", [(0, 0.0), (1, 0.04)])
def test_the_table_of_memory_is_preflights_arithmetic(shapes: dict, number: int, beta: float) -> None:
    table = tables("Which parallelism")[number]
    rows = [["model", "parameters", *(["LoRA, 1 GPU"] if not beta else []), *SPREADS, "full training fits 80 GB with"]]
    for name, (full, adapted) in shapes.items():
        sizes = {column: estimate(full, spread, beta=beta) for column, spread in SPREADS.items()}
        lora = [] if beta else [estimate(adapted, Parallelism(), **LORA)]
        cells = [f"{size / 1e9:,.0f}" for size in (*lora, *sizes.values())]
        rows.append([name, f"{full.parameters / 1e9:.2f} B", *cells, first_that_fits(sizes)])
    assert table == rows


def test_the_table_of_generation_is_arithmetic_too(shapes: dict) -> None:
    rows = [["model", "weights, bf16", "KV cache", "at most, tokens/s", "GPUs of 80 GB a copy"]]
    for name, (shape, _) in shapes.items():
        weights, cache = 2 * shape.parameters, 256 * 1024 * shape.layers * shape.key_value_width * 2
        gpus = next(2**power for power in range(9) if weights + cache <= 2**power * GPU)
        speed = 256 * gpus * 3.35e12 / (weights + cache)
        rows.append([name, f"{weights / 1e9:.0f} GB", f"{cache / 1e9:.1f} GB", f"{round(speed, -3):,.0f}", str(gpus)])
    assert tables("Where the time goes") == [rows]
