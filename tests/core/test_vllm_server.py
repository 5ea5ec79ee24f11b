"""The command of the vLLM server that a recipe trains with; vLLM itself is not needed to
derive it.
"""

from __future__ import annotations

import sys

import huggingface_hub.constants
import pytest

from r1_recipes import vllm_server
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow

RECIPE = str(REPOSITORY / "recipes" / "gsm8k_qwen05b.yaml")
SERVER = [RECIPE, "--vllm_mode", "server", "--vllm_server_host", "127.0.0.1"]


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that does not answer would be named; these tests are about the command."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def flags(command: list[str]) -> dict[str, str | None]:
    """The words of a command after the model, as flag and value."""
    words = command[command.index("serve") + 2 :]
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {
        word: None if value.startswith("--") else value
        for word, value in pairs
        if word.startswith("--")
    }


def test_everything_comes_from_the_recipe() -> None:
    command = vllm_server.server_command(SERVER)
    assert command[:2] == [sys.executable, "-m"]
    assert command[3:5] == ["serve", "Qwen/Qwen2.5-0.5B-Instruct"]
    expected = {
        "--host": "127.0.0.1",
        "--port": "8000",
        "--tensor-parallel-size": "1",
        "--seed": "42",
        # Of its own GPU, not the share of a colocated engine.
        "--gpu-memory-utilization": "0.9",
        "--max-model-len": "1024",
        "--dtype": "bfloat16",  # as the trainer computes, also where this machine has no GPU for it
        "--model-impl": "vllm",
        # What TRL's trainers need of a server.
        "--weight-transfer-config": '{"backend": "nccl"}',
        "--logprobs-mode": "processed_logprobs",
    }
    found = flags(command)
    assert {key: found.get(key) for key in expected} == expected
    assert "--trust-remote-code" not in found
    command = vllm_server.server_command([*SERVER, "--vllm_server_base_url", "http://node1:9000"])
    found = flags(command)
    assert (found["--host"], found["--port"]) == ("0.0.0.0", "9000")


def test_overrides_are_those_of_training_and_flags_after_dashes_go_to_vllm() -> None:
    typed = "--vllm_server_port 9001 --vllm_tensor_parallel_size 4 --model_revision abc "
    typed += "--max_steps 3 --trust_remote_code true -- --seed 7 --data-parallel-size 2"
    command = vllm_server.server_command([*SERVER, *typed.split()])
    found = flags(command)
    names = ("--port", "--tensor-parallel-size", "--revision", "--seed")
    assert [found[name] for name in names] == ["9001", "4", "abc", "7"]  # what is typed wins
    assert "--trust-remote-code" in found and command[-2:] == ["--data-parallel-size", "2"]
