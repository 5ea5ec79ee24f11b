"""``vllm serve`` on a saved folder, for real: the tokens of its prompts are those of training."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path

from r1_recipes.data.prompt import build_prompt
from r1_recipes.models.load import load_tokenizer
from r1_recipes.recipe import load_recipe
from tests.core.prompts.test_served_template import USER, saved
from tests.vllm.conftest import serving

TALK = [*USER, {"role": "assistant", "content": "4"}, {"role": "user", "content": "3+3?"}]


def test_a_served_checkpoint_is_asked_as_in_training(
    write_recipe: Callable[..., str], small_model: Path, tmp_path: Path
) -> None:
    keys = {"model_name_or_path": str(small_model), "system_prompt": None, "prefill": "<think>"}
    tokenizer, fmt = load_tokenizer(load_recipe([write_recipe("grpo", **keys)], "grpo"))
    folder = shutil.copytree(small_model, tmp_path / "saved")
    saved(tokenizer, folder, fmt.system_prompt)
    opening = build_prompt(USER, fmt)[:-1]
    serve = ["vllm.entrypoints.cli.main", "serve", str(folder), "--served-model-name", "mine"]
    serve += ["--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--port"]
    with serving(lambda port: [*serve, str(port)], tmp_path) as url:
        for messages in (USER, TALK):
            body = {"model": "mine", "messages": messages, "max_tokens": 4, "temperature": 0}
            body |= {"return_token_ids": True}
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(
                f"{url}/chat/completions", json.dumps(body).encode(), headers
            )
            answer = json.load(urllib.request.urlopen(request, timeout=120))
            asked = tokenizer.apply_chat_template(
                [*opening, *messages], add_generation_prompt=True, return_dict=True
            )["input_ids"]
            assert answer["prompt_token_ids"] == asked, tokenizer.decode(answer["prompt_token_ids"])
