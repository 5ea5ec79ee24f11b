"""The length that vLLM's engine is bounded to, and that every recipe's KV cache fits the GPU that
its header names.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.recipe.engine import GIB, Shortage, engine_problem, longest_sequence
from r1_recipes.recipe.load import Recipe, load_recipe
from tests.conftest import RECIPES, REPOSITORY, method_of

# The models' config.json: parameters in millions, layers, key-value heads, width of a head, window.
MODELS = {
    "Qwen/Qwen2.5-0.5B": (494, 24, 2, 64, 32768),
    "Qwen/Qwen2.5-1.5B": (1544, 28, 2, 128, 32768),
    "Qwen/Qwen2.5-3B": (3086, 36, 2, 128, 32768),
    "Qwen/Qwen2.5-7B": (7616, 28, 4, 128, 131072),
    "Qwen/Qwen2.5-32B": (32764, 64, 8, 128, 131072),
    "Qwen/Qwen2.5-Coder-7B": (7616, 28, 4, 128, 32768),
    "Qwen/Qwen2.5-Math-7B": (7616, 28, 4, 128, 4096),
    "Qwen/Qwen2-7B": (7616, 28, 4, 128, 32768),
    "Qwen/Qwen2-VL-2B": (2209, 28, 2, 128, 32768),
    "Qwen/Qwen3-0.6B": (596, 28, 8, 128, 32768),
    "PrimeIntellect/Qwen3-0.6B-Reverse-Text-SFT": (596, 28, 8, 128, 32768),
    "Qwen/Qwen3-1.7B": (1721, 28, 8, 128, 40960),
    "Qwen/Qwen3-4B": (4022, 36, 8, 128, 40960),
    "Qwen/Qwen3-4B-Instruct-2507": (4022, 36, 8, 128, 262144),
    "Qwen/Qwen3-8B": (8191, 36, 8, 128, 40960),
    "Qwen/Qwen3.5-0.8B": (873, 24, 2, 256, 262144),
    "HuggingFaceTB/SmolLM3-3B": (3075, 36, 4, 128, 65536),
    "HuggingFaceTB/SmolLM2-1.7B": (1711, 24, 32, 64, 8192),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (1777, 28, 2, 128, 131072),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": (8030, 32, 8, 128, 131072),
    "deepseek-ai/deepseek-math-7b-instruct": (6910, 30, 32, 128, 4096),
    "meta-llama/Llama-3.1-8B": (8030, 32, 8, 128, 131072),
}
# GiB that CUDA reports for a GPU of so many GB: a T4, an RTX 3090, an A100, an L40S, an H100, a GH200.
CARDS = {16: 14.6, 24: 23.5, 40: 39.4, 48: 44.4, 80: 79.1, 96: 94.0}
MADE_BY = {read_yaml(path).get("output_dir"): path for path in RECIPES}


def engines() -> list[tuple[str, int, list[str]]]:
    """Recipes that train with vLLM, the GB of the card in their header, and the overrides."""
    own = [path for path in RECIPES if read_yaml(path).get("use_vllm")]
    found = [
        (
            path,
            re.search(r"^# Hardware:.*?(\d+) GB", path.read_text(encoding="utf-8"), re.MULTILINE),
        )
        for path in own
    ]
    return [
        (path.relative_to(REPOSITORY).as_posix(), int(card[1]), []) for path, card in found if card
    ]


def guide(name: str) -> list[tuple[str, int, list[str]]]:
    """The rows of a guide's table of models for one GPU with 24 GB; "that file" is the
    one above.
    """
    rows, recipe = [], ""
    for line in (REPOSITORY / "docs" / name).read_text(encoding="utf-8").splitlines():
        if re.match(r"\| [\d.]+( (to|到) [\d.]+)?B \|", line):
            named = re.search(r"\(\.\./(recipes/\S+\.yaml)\)", line)
            recipe = named[1] if named else recipe
            options = re.search(r"`(--[^`]+)`", line)
            rows.append((recipe, 24, shlex.split(options[1]) if options else []))
    return rows


def resolved(path: str, overrides: list[str]) -> Recipe:
    own = read_yaml(REPOSITORY / path)
    typed = [f"--{key}={own[key]}" for key in ("use_vllm", "bf16") if key in own]
    return load_recipe([path, *typed, "--use_cpu=true", *overrides], method_of(REPOSITORY / path))


def model_of(name: str) -> tuple[int, int, int, int, int]:
    while name in MADE_BY:
        name = str(read_yaml(MADE_BY[name])["model_name_or_path"])
    return next(
        shape
        for model, shape in MODELS.items()
        if name in (model, f"{model}-Instruct", f"{model}-Base")
    )


def refused(recipe: Recipe, card: int) -> Shortage | None:
    training = recipe.training
    parameters, layers, heads, width, window = model_of(recipe.model.model_name_or_path)
    # GOLD's engine takes max_length; a server has its GPU alone.
    length = training.vllm_max_model_length or getattr(training, "max_length", None)
    assert length is not None and length <= window
    return engine_problem(
        length=length, share=0.9 if training.vllm_mode == "server" else training.vllm_gpu_memory_utilization,
        total=int(CARDS[card] * GIB), parameters=parameters * 10**6, cache=2 * layers * heads * width,
        parallel=training.vllm_tensor_parallel_size,
    )  # fmt: skip


@pytest.mark.parametrize("path, card, overrides", engines(), ids=lambda value: str(value))
def test_a_recipes_engine_fits_the_gpu_in_its_header(
    monkeypatch: pytest.MonkeyPatch, path: str, card: int, overrides: list[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert refused(resolved(path, overrides), card) is None


@pytest.mark.parametrize("name", ["one_gpu.md", "one_gpu.zh.md"])
def test_so_does_each_row_of_the_guide_to_one_gpu(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(REPOSITORY)
    rows = guide(name)
    recipes = [(resolved(path, overrides), card) for path, card, overrides in rows]
    assert len(rows) == 6
    assert [
        recipe.path
        for recipe, card in recipes
        if recipe.training.use_vllm and refused(recipe, card)
    ] == []


def test_all_recipes_with_vllm_are_among_them() -> None:
    assert (
        len(engines()) == len([path for path in RECIPES if read_yaml(path).get("use_vllm")]) >= 43
    )


@pytest.mark.parametrize(
    "keys, expected",
    [
        ({}, 612),
        ({"eval_max_completion_length": 2000}, 2100),
        ({"max_prompt_tokens": None}, None),
        ({"max_completion_length": None}, None),
        ({"tools": ["calculator"]}, 612),  # TRL counts what tools say
        ({"environment": "guess_number", "tool_output_chars": 300}, 912),  # and not what reset says
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


# 0.3 of 80 GiB, weights of 8 GiB and 2 of overhead leave 14 GiB, of 1 MiB a token.
ROOM = {"share": 0.3, "total": 80 * GIB, "parameters": 4 * GIB, "cache": 2**19}


def test_what_has_no_room_is_refused_with_what_has() -> None:
    assert engine_problem(length=14 * 1024, **ROOM) is None
    problem = engine_problem(length=14 * 1024 + 1, **ROOM)
    assert problem and all(
        word in problem.message
        for word in ("--vllm_max_model_length 14336", "--vllm_gpu_memory_utilization 0.35")
    )
    # Two GPUs share weights and cache.
    assert engine_problem(length=36 * 1024, parallel=2, **ROOM) is None
    without = engine_problem(length=10**6, **ROOM | {"parameters": 20 * GIB})
    assert without and without.certain and "--vllm" not in without.message


def test_a_shortage_is_certain_only_with_the_least_overhead() -> None:
    """1.25 GiB of the overhead are in doubt, 1,280 tokens."""
    for length, certain in (
        (14 * 1024 + 1, False),
        (14 * 1024 + 1280, False),
        (14 * 1024 + 1281, True),
    ):
        problem = engine_problem(length=length, **ROOM)
        assert problem and problem.certain is certain


def test_a_model_that_caches_nothing_must_hold_its_weights() -> None:
    assert engine_problem(length=10**9, **ROOM | {"cache": 0}) is None
    assert engine_problem(length=1, **ROOM | {"cache": 0, "parameters": 20 * GIB})


WITH_VLLM = "model_name_or_path: a\ndataset_name: b\nreward_funcs: [format]\nuse_vllm: true\n"


def test_the_loader_bounds_the_engine_and_says_when_it_cannot(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(WITH_VLLM + "max_prompt_tokens: 100\n", encoding="utf-8")
    words = [str(path), "--use_cpu", "true", "--bf16", "false"]
    for use_vllm in ("true", "false"):
        recipe = load_recipe([*words, "--use_vllm", use_vllm], "grpo")
        assert recipe.settings.get("vllm_max_model_length") == (612 if use_vllm == "true" else None)
    assert (
        load_recipe(words, "grpo").settings["vllm_max_model_length"] == 612
    )  # where the machine turns vLLM off, too
    assert (
        load_recipe(
            [*words, "--vllm_max_model_length", "99"], "grpo"
        ).training.vllm_max_model_length
        == 99
    )
    path.write_text(WITH_VLLM, encoding="utf-8")
    recipe = load_recipe([*words, "--use_vllm", "true"], "grpo")
    assert (
        recipe.training.vllm_max_model_length is None and "max_prompt_tokens" in recipe.warnings[-1]
    )
