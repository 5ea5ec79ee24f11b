"""The hubs' own clients against a hub on loopback: ``HF_ENDPOINT`` and ``MODELSCOPE_ENDPOINT``,
what is downloaded, and what is pushed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.support.commands import succeed
from tests.support.hub_server import hub_server

CARD = (
    "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: "
    "main/*.jsonl\n---\n"
)


@pytest.fixture
def hub(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """``hub(*words)``: Python, in a process that knows only the hub on loopback, where org/tiny and
    org/sums are.
    """
    root = tmp_path / "hub"
    shutil.copytree(tiny_model, root / "models" / "org" / "tiny")
    (root / "datasets" / "org" / "sums" / "main").mkdir(parents=True)
    shutil.copy(sums, root / "datasets" / "org" / "sums" / "main" / "train.jsonl")
    (root / "datasets" / "org" / "sums" / "README.md").write_text(CARD, encoding="utf-8")
    with hub_server(root) as (url, _):
        hubs = ("HF_", "MODELSCOPE_")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(hubs)}
        clean |= {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "invented"}
        clean |= {"MODELSCOPE_ENDPOINT": url, "MODELSCOPE_CACHE": str(tmp_path / "ms")}
        clean |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
        clean |= dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
        clean["NO_PROXY"] = "127.0.0.1"

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            return succeed([sys.executable, *words], clean)

        yield run


def training(write_recipe: Callable[..., str], **changes: Any) -> str:
    names = {"model_name_or_path": "org/tiny", "dataset_name": "org/sums", "dataset_config": "main"}
    prompts = {
        "system_prompt": "Think first.",
        "prefill": "<think>\n",
        "dataset_train_split": "train[:4]",
    }
    return write_recipe(
        "sft", **{**names, **prompts, "max_steps": 1, "save_strategy": "no", **changes}
    )


@pytest.mark.slow
def test_a_run_from_a_mirror_that_is_pushed(
    hub: Callable, write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    hub("-m", "r1_recipes.sft", training(write_recipe, push_to_hub=True, hub_model_id="me/mine"))
    pushed = tmp_path / "hub" / "models" / "me" / "mine"
    files = {
        "model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
        "config.json",
        "README.md",
    }
    assert files <= {path.name for path in pushed.iterdir()}
    text = AutoTokenizer.from_pretrained(pushed).apply_chat_template(
        [{"role": "user", "content": "2+2?"}], tokenize=False, add_generation_prompt=True
    )
    assert "Think first." in text and text.endswith("<think>\n")
    card = (pushed / "README.md").read_text(encoding="utf-8")
    assert 'model="me/mine"' in card and "datasets/org/sums" in card
    assert card == (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    # Whoever takes it from there gets the model and its prompts.
    ask = ["--model", "me/mine", "--ask", "2+2?", "--max_completion_length", "4"]
    judge = write_recipe("grpo", name="judge", system_prompt="Think first.")
    asked = hub("-m", "r1_recipes.evaluate", judge, *ask)
    assert "=== me/mine" in asked.stdout


@pytest.mark.slow
def test_a_run_from_modelscope(
    hub: Callable, write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    pytest.importorskip("modelscope")
    hub("-m", "r1_recipes.sft", training(write_recipe, hub="modelscope"))
    assert (tmp_path / "run" / "model.safetensors").exists() and not (
        tmp_path / "hf" / "hub"
    ).exists()
