"""The command of the vLLM server that a recipe trains with; vLLM itself is not needed to
derive it.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import huggingface_hub
import pytest

from r1_recipes import vllm_server
from r1_recipes.common.errors import RecipeError
from tests.conftest import REPOSITORY

SERVER = str(REPOSITORY / "recipes" / "gsm8k_qwen05b_server.yaml")
COLOCATED = str(REPOSITORY / "recipes" / "reproduce/open_r1_qwen15b.yaml")


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
    command = vllm_server.server_command([SERVER])
    assert command[:5] == [
        sys.executable,
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        "Qwen/Qwen2.5-0.5B-Instruct",
    ]
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
    assert "--trust-remote-code" not in found and "--revision" not in found


def test_overrides_are_those_of_training_and_flags_after_dashes_go_to_vllm() -> None:
    overrides = (
        "--vllm_server_port 9001 --vllm_tensor_parallel_size 4 --model_revision abc --max_steps "
        "3 --trust_remote_code true"
    )
    command = vllm_server.server_command(
        [SERVER, *overrides.split(), "--", "--seed", "7", "--data-parallel-size", "2"]
    )
    found = flags(command)
    assert (found["--port"], found["--tensor-parallel-size"], found["--revision"]) == (
        "9001",
        "4",
        "abc",
    )
    assert found["--seed"] == "7"  # what is typed wins
    assert "--trust-remote-code" in found and command[-2:] == ["--data-parallel-size", "2"]


def test_a_server_counts_the_processes_that_will_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launchers hand it training's overrides: 16 ranks need no accumulation."""
    overrides = ["--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "1"]
    with pytest.raises(RecipeError, match="processes"):
        vllm_server.server_command([SERVER, *overrides])
    monkeypatch.setenv("R1_RECIPES_PROCESSES", "16")
    assert "serve" in vllm_server.server_command([SERVER, *overrides])


@pytest.mark.parametrize(
    ("overrides", "dtype"),
    [
        ([], "bfloat16"),
        (["--bf16", "false"], "float32"),
        (["--bf16", "false", "--fp16", "true"], "float16"),
    ],
)
def test_it_computes_in_what_the_trainer_computes_in(overrides: list[str], dtype: str) -> None:
    assert flags(vllm_server.server_command([SERVER, *overrides]))["--dtype"] == dtype


@pytest.mark.parametrize(
    ("overrides", "host", "port"),
    [
        ([], "0.0.0.0", "8000"),  # TRL's own default
        (["--vllm_server_host", "localhost"], "localhost", "8000"),
        (["--vllm_server_host", "127.1.2.3"], "127.1.2.3", "8000"),
        # On the node itself its name may mean 127.0.1.1, where no other could reach it.
        (["--vllm_server_host", "node7"], "0.0.0.0", "8000"),
        (["--vllm_server_host", "::1", "--vllm_server_port", "8123"], "::1", "8123"),
    ],
)
def test_it_listens_where_the_trainer_looks(overrides: list[str], host: str, port: str) -> None:
    found = flags(vllm_server.server_command([COLOCATED, *overrides]))
    assert (found["--host"], found["--port"]) == (host, port)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--vllm_server_base_url", "http://node7:8123"],
            "vllm_server_base_url: does not say where the server should listen",
        ),
        (["--load_in_4bit", "true"], "TRL cannot send quantized weights to a server"),
        (["--vllm_port", "1"], "unknown key 'vllm_port' for grpo. Did you mean vllm_group_port"),
    ],
)
def test_what_cannot_be_served_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(RecipeError) as refused:
        vllm_server.server_command([SERVER, *words])
    assert message in str(refused.value)


def test_a_distillation_recipe_can_be_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(REPOSITORY / "recipes" / "r1" / "6_distill_on_policy.yaml")
    with pytest.raises(RecipeError, match="no such folder"):  # its student is trained before
        vllm_server.server_command([path])
    Path("outputs/r1/6_distill").mkdir(parents=True)
    assert "serve" in vllm_server.server_command([path])


def test_print_shows_what_would_run(capsys: pytest.CaptureFixture) -> None:
    vllm_server.main([SERVER, "--print"])
    words = shlex.split(capsys.readouterr().out)
    assert words[0] == "VLLM_SERVER_DEV_MODE=1"
    assert words[1:] == vllm_server.server_command([SERVER])


def test_the_process_becomes_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_server, "find_spec", lambda name: object())
    ran: list[tuple] = []
    monkeypatch.setattr(os, "execve", lambda *call: ran.append(call))
    vllm_server.main([SERVER])
    ((program, command, environment),) = ran
    assert (program, command) == (sys.executable, vllm_server.server_command([SERVER]))
    assert environment["VLLM_SERVER_DEV_MODE"] == "1" and environment["PATH"] == os.environ["PATH"]


def test_without_vllm_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(vllm_server, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        vllm_server.main([SERVER])
    assert ended.value.code == 2
    assert "vLLM is not installed. Fix: pip install" in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "code"), [([], 2), (["--help"], 0)])
def test_usage(argv: list[str], code: int, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        vllm_server.main(argv)
    assert ended.value.code == code and "[--print]" in capsys.readouterr().out
