"""What vLLM's engine is started with: length, precision, share, and on which GPU of several
processes; vLLM itself is a stand-in.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from r1_recipes.completions import get_backend, load_format
from r1_recipes.metrics import run
from r1_recipes.recipe import load_recipe

PROMPTS = [[{"role": "user", "content": text}] for text in ("short", "a longer one", "1")]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each engine that is started, with the environment of its process;
    ``capability`` of the GPU is 9.0.
    """
    started: list[dict[str, Any]] = []

    class LLM:
        def __init__(self, model: str, **options: Any) -> None:
            started.append(
                {"model": model, "environment": dict(os.environ), "open": True, **options}
            )
            core = SimpleNamespace(shutdown=lambda own=started[-1]: own.update(open=False))
            self.llm_engine = SimpleNamespace(engine_core=core)

    platform = SimpleNamespace(
        is_cpu=lambda: False,
        is_cuda=lambda: True,
        has_device_capability=lambda needed: needed <= 90,
    )
    module, platforms = ModuleType("vllm"), ModuleType("vllm.platforms")
    module.LLM, platforms.current_platform = LLM, platform  # type: ignore[attr-defined]
    find = importlib.util.find_spec
    spec = importlib.machinery.ModuleSpec("vllm", None)
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: spec if name == "vllm" else find(name, *rest),
    )
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    return started


@pytest.fixture
def evaluated(write_recipe: Callable[..., str]) -> Callable[..., Any]:
    """``evaluated(key=value)``: a GRPO recipe that trained with an engine of its own, as it is for
    an evaluation by vLLM.
    """

    def load(*overrides: str, **changes: Any) -> Any:
        settings = {
            "use_vllm": True,
            "vllm_gpu_memory_utilization": 0.3,
            "max_prompt_tokens": 100,
            **changes,
        }
        path = write_recipe("grpo", **settings)
        recipe = load_recipe([path, "--use_vllm", "true", *overrides], "grpo")
        sampling = run.Sampling(batch_size=4, backend="vllm")
        recipe = run._for_generation(recipe, recipe.model.model_name_or_path, sampling)
        return recipe, load_format(recipe, "vllm")[0]

    return load


def start(recipe: Any, tokenizer: Any) -> Any:
    return get_backend(recipe, tokenizer, "vllm", {"prompt": PROMPTS})


def test_an_evaluation_has_its_own_share_precision_and_length(
    engines: list, evaluated: Callable
) -> None:
    start(*evaluated(bf16=True))
    [engine] = engines
    recipe, tokenizer = evaluated()
    longest = max(
        len(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False))
        for prompt in PROMPTS
    )
    assert engine["gpu_memory_utilization"] == 0.9 and engine["dtype"] == "bfloat16"
    assert engine["max_model_len"] == longest + recipe.training.max_completion_length + 1
    assert (
        engine["environment"]["VLLM_LOGGING_LEVEL"] and engine["environment"]["VLLM_NO_USAGE_STATS"]
    )


@pytest.mark.parametrize(
    "rank, parallel, visible, own",
    [(0, 1, None, "0"), (3, 1, None, "3"), (1, 2, None, "2,3"), (1, 1, "4,6", "6")],
)
def test_each_process_has_an_engine_on_its_own_gpus(
    engines: list,
    evaluated: Callable,
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
    parallel: int,
    visible: str | None,
    own: str,
) -> None:
    recipe = evaluated("--vllm_tensor_parallel_size", str(parallel))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    names = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": 4,
        "LOCAL_WORLD_SIZE": 4,
        "MASTER_ADDR": "here",
        "MASTER_PORT": 1,
    }
    launched = {
        **names,
        "TORCHELASTIC_RUN_ID": "none",
        **({"CUDA_VISIBLE_DEVICES": visible} if visible else {}),
    }
    for name, value in launched.items():
        monkeypatch.setenv(name, str(value))
    start(*recipe)
    assert engines[0]["environment"]["CUDA_VISIBLE_DEVICES"] == own
    assert not [
        name for name in (*names, "TORCHELASTIC_RUN_ID") if name in engines[0]["environment"]
    ]
    assert {name: os.environ[name] for name in launched} == {
        name: str(value) for name, value in launched.items()
    }
