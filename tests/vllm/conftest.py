"""What the tests with vLLM share: a model that its CPU kernels take, and a recipe of GSM8K's kind
on invented rows.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support import loopback

RECIPE = str(REPOSITORY / "recipes" / "gsm8k_qwen05b.yaml")
# The recipe without a GPU, and with prompts that are short for a tokenizer of single bytes.
ON_CPU = ["--dataset_config", "none", "--system_prompt", "", "--use_cpu", "true", "--bf16", "false"]
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "2",
}


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke run's tiny Qwen2, but with heads of 32: vLLM's attention on CPUs takes no smaller
    ones.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from r1_recipes.models.smoke import build_tiny_model

    folder = build_tiny_model(tmp_path_factory.mktemp("small") / "model", {})
    config = AutoConfig.from_pretrained(folder)
    config.update(
        {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        }
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            # Five times as large as Transformers draws them: at 0.02 every token is about as likely
            # as any other, and greedy decoding would follow the rounding.
            if parameter.ndim == 2:
                parameter.mul_(5)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_python("-m", "r1_recipes.generate", …)``: a process of its own, since an engine and its
    process groups end only with it.
    """

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=REPOSITORY,
            env={**environment(), **variables},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stderr[-6000:]
        return done

    return run


def environment() -> dict[str, str]:
    """Of a process that is started beside the test."""
    return {**os.environ, **_ENVIRONMENT}


@contextlib.contextmanager
def serving(words: Callable[[int], list[str]], folder: Path) -> Iterator[str]:
    """``python -m`` and ``words(port)``, a server on a free port of loopback, until the block ends;
    yields the address of its API.

    Args:
        words: of the command, by the port.
        folder: for its log.
    """
    # `vllm serve` asks for the version of a package named vllm; the build for CPUs is named
    # vllm-cpu, and by +cpu vLLM takes its kernels.
    alias = folder / "vllm-0.dist-info" / "METADATA"
    alias.parent.mkdir()
    alias.write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: "
        f"{importlib.metadata.version('vllm-cpu')}+cpu\n",
        encoding="utf-8",
    )
    variables = {**environment(), "PYTHONPATH": str(folder)}
    with loopback.serving(
        lambda port: [sys.executable, "-m", *words(port)], folder / "log", variables, REPOSITORY
    ) as address:
        yield f"http://{address}/v1"
