"""What the tests of training runs share: a tiny random model, a handful of sums, a recipe to vary,
and no network.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

# Read when huggingface_hub is imported: TRL reports each trainer that is built, from a thread.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_UPDATE_DOWNLOAD_COUNTS"] = "0"  # datasets, for each local file that is read
# Under nohup, or in a script's background, these are ignored, and so they would be by every process
# that a test starts.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
REPOSITORY = Path(__file__).parents[1]
RECIPES = sorted((REPOSITORY / "recipes").rglob("*.yaml"))
SUMS = [(2, 2), (2, 3), (2, 5), (9, 5), (9, 6), (9, 7), (9, 8), (3, 8)]
_calls = 0


def method_of(path: Path) -> str:
    """The entry point that a recipe's header says it is run with."""
    return re.search(r"-m r1_recipes\.(\w+) recipes/", path.read_text(encoding="utf-8"))[1]


def letters(completions: list, **columns: Any) -> list[float]:
    """A reward that varies even for a random model: the lower-case letters and digits of the
    completion.

    ``R1_TEST_SLEEP`` (seconds) makes each call slow enough to be interrupted; ``R1_TEST_SIGINT``
    ("2,3") sends SIGINT in those calls.
    """
    global _calls
    state = columns.get("trainer_state")
    _calls += state is None or state.train_batch_size is not None  # not the try before training
    time.sleep(float(os.environ.get("R1_TEST_SLEEP", 0)))
    for call in filter(None, os.environ.get("R1_TEST_SIGINT", "").split(",")):
        if int(call) == _calls:
            os.kill(os.getpid(), signal.SIGINT)
    return [
        float(sum("a" <= char <= "z" or char.isdigit() for char in completion[0]["content"]))
        for completion in completions
    ]


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``interrupted("3")``: Ctrl-C in the third training step from now; ``"3,3"``: twice in it."""

    def at(calls: str) -> None:
        global _calls
        _calls = 0
        monkeypatch.setenv("R1_TEST_SIGINT", calls)

    return at


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the tests' processes leave (launchers' logs, sockets) goes when pytest's folder goes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("t")))
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer checkpoint with a byte-level tokenizer and ChatML."""
    import torch

    from r1_recipes.models.smoke import build_tiny_model

    torch.set_num_threads(1)
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model", {})


@pytest.fixture(scope="session")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint that calls ``guess``, the tool of ``tests.support.callers:Game``."""
    from tests.support.callers import build_caller

    return build_caller(tmp_path_factory.mktemp("caller") / "model")


@pytest.fixture(scope="session")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight rows in GSM8K's schema."""
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    rows = [
        {"question": f"{a}+{b}?", "answer": f"{a}+{b}=<<{a}+{b}={a + b}>>{a + b}\n#### {a + b}"}
        for a, b in SUMS
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def write_recipe(tmp_path: Path, tiny_model: Path, sums: Path) -> Callable[..., str]:
    """``write_recipe("grpo", key=value, …)`` writes a recipe of a few fast steps and gives its
    path; ``None`` leaves a key out.
    """

    def write(method: str, name: str = "tiny", **changes: Any) -> str:
        settings = {
            "model_name_or_path": str(tiny_model),
            "dataset_name": str(sums),
            "mapper": "gsm8k",
            "response_format": "think_answer",
            "system_prompt": "",
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-2,
            "lr_scheduler_type": "constant",
            "max_steps": 6,
            "logging_steps": 1,
            "save_strategy": "steps",
            "save_steps": 2,
            "use_cpu": True,
            "bf16": False,
            "dtype": "float32",
            "gradient_checkpointing": False,
            "disable_tqdm": True,
            "report_to": "none",
            "seed": 1,
            "output_dir": str(tmp_path / "run"),
        }
        if method == "grpo":
            settings |= {
                "reward_funcs": ["tests.conftest:letters"],
                "num_generations": 2,
                "max_completion_length": 8,
            }
        settings = {
            key: value for key, value in {**settings, **changes}.items() if value is not None
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[list]:
    """Any attempt to reach another machine fails, and fails the test, also where a library swallows
    the error.
    """
    attempts: list = []
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            attempts.append(address)
            raise OSError(f"the tests have no network, and {address} was asked for")
        connect(self, address)

    def lookup(host: Any, *args: Any, **options: Any) -> Any:
        if host not in (None, "localhost", "127.0.0.1", "::1", socket.gethostname()):
            attempts.append(host)
            raise socket.gaierror(f"the tests have no network, and {host} was asked for")
        return getaddrinfo(host, *args, **options)

    getaddrinfo = socket.getaddrinfo
    monkeypatch.setattr(socket.socket, "connect", guarded)
    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    yield attempts
    assert not attempts


def metrics(run: Path) -> list[dict[str, Any]]:
    """The training entries of a run's ``metrics.jsonl``, without the summary at its end."""
    text = (run / "metrics.jsonl").read_text(encoding="utf-8")
    # A line without its end is still being written.
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [entry for entry in lines if "loss" in entry]


def log_lines(run: Path) -> list[str]:
    """The messages of a run's ``run.log``."""
    entries = re.split(
        r"^\S+ [A-Z]+ ", (run / "run.log").read_text(encoding="utf-8"), flags=re.MULTILINE
    )[1:]
    return [entry.rstrip("\n").partition(": ")[2] for entry in entries]


def weights(folder: Path) -> dict[str, Any]:
    """The saved parameters by name."""
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")
