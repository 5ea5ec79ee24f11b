"""After training: the model of a run is served with the prompt of training."""

import json
import os
import sys
import urllib.request
from pathlib import Path

import pytest

from r1_recipes import sft
from tests.support.commands import succeed
from tests.support.loopback import serving

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent
QUESTION = [{"role": "user", "content": "What is 7 + 5 * 3?"}]


def test_served_and_chatted_with(write_recipe, tmp_path):
    pytest.importorskip("fastapi")
    from transformers import AutoTokenizer

    prompts = {"system_prompt": "Think first.", "prefill": "<think>\n"}
    sft.main([write_recipe("sft", max_steps=1, save_strategy="no", **prompts)])
    run = tmp_path / "run"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    words = [BIN / "transformers", "serve", run, "--device", "cpu", "--dtype", "float32", "--port"]
    log = tmp_path / "log"
    with serving(lambda port: [*map(str, words), str(port)], log, environment, tmp_path) as address:
        body = {"model": str(run), "messages": QUESTION, "max_tokens": 8}
        request = urllib.request.Request(
            f"http://{address}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            answer = json.load(reply)
        assert answer["choices"][0]["message"]["role"] == "assistant"
        # The system prompt and the prefill of training are in what the server counts.
        prompt = AutoTokenizer.from_pretrained(run).apply_chat_template(
            QUESTION, add_generation_prompt=True
        )
        assert answer["usage"]["prompt_tokens"] == len(prompt["input_ids"])
        # An untrained model's sample may be cut, and the first "!exit" then means not to go on.
        said = succeed(
            [words[0], "chat", run, f"http://{address}/v1", "max_new_tokens=8"],
            {**environment, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_UPDATE_CHECK": "1"},
            folder=tmp_path,
            stdin="What is 7 + 5 * 3?\n!exit\n!exit\n",
        )
        assert str(run) in said.stdout
