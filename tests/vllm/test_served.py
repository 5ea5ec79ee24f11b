"""``vllm serve`` on a saved folder, for real: the tokens of its prompts are those of ``generate``
and of training.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from r1_recipes.data.load import build_prompt
from r1_recipes.models.tokenizer import load_tokenizer
from r1_recipes.recipe import load_recipe
from tests.core.prompts.test_served_template import CASES, SWITCHED, TALK, USER, served_folder
from tests.vllm.conftest import serving

DEFAULT = (
    "worked turns"  # the case whose folder is served; the others' templates go with the request
)


@pytest.fixture
def folders(
    write_recipe: Callable[..., str], small_model: Path, tmp_path: Path
) -> dict[str, tuple[Path, Any, list]]:
    """By case: the saved folder, the tokenizer that training and ``generate`` use, and what they
    put before a question.
    """
    (small_model / "chat_template.jinja").write_text(SWITCHED, encoding="utf-8")
    found = {}
    for case, settings in CASES.items():
        recipe = load_recipe(
            [write_recipe("grpo", model_name_or_path=str(small_model), **settings)], "grpo"
        )
        tokenizer, fmt = load_tokenizer(recipe)
        opening = build_prompt("?", fmt, recipe.script.few_shot)[:-1]
        found[case] = (
            served_folder(recipe, tokenizer, fmt, tmp_path / case.replace(" ", "_")),
            tokenizer,
            opening,
        )
    return found


@pytest.fixture
def server(folders: dict, tmp_path: Path) -> Iterator[str]:
    flags = [
        "--served-model-name",
        "mine",
        "--host",
        "127.0.0.1",
        "--dtype",
        "float32",
        "--enforce-eager",
        "--trust-request-chat-template",
    ]
    serve = ["vllm.entrypoints.cli.main", "serve", str(folders[DEFAULT][0]), *flags, "--port"]
    with serving(lambda port: [*serve, str(port)], tmp_path) as url:
        yield url


def test_a_served_checkpoint_is_asked_as_in_training(server: str, folders: dict) -> None:
    for case, (folder, tokenizer, opening) in folders.items():
        for messages in (USER, TALK):
            body = {
                "model": "mine",
                "messages": messages,
                "max_tokens": 4,
                "temperature": 0,
                "return_token_ids": True,
            }
            if case != DEFAULT:
                body["chat_template"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(
                f"{server}/chat/completions", json.dumps(body).encode(), headers
            )
            answer = json.load(urllib.request.urlopen(request, timeout=120))
            asked = tokenizer.apply_chat_template(
                [*opening, *messages], add_generation_prompt=True, return_dict=True
            )["input_ids"]
            assert answer["prompt_token_ids"] == asked, (
                case,
                tokenizer.decode(answer["prompt_token_ids"]),
            )
