"""The launchers for several nodes: the commands they run, how they end, and a run over two hosts that are loopback addresses."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, metrics

SLURM = {"SLURM_JOB_ID": "7003", "SLURM_SUBMIT_DIR": str(REPOSITORY), "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_GPUS_ON_NODE": "8"}
# 7003 % 7000 * 3 = 9
PORT = 10009
TRAIN, TRAIN_WITH_SERVER, HOSTS = "slurm/train.sbatch", "slurm/train_with_server.sbatch", "launch/hosts.sh"

SCONTROL = """[[ $1 == show && $2 == hostnames && $3 == "node[1-3]" ]] || exit 1
printf '%s\\n' $FAKE_NODES"""
# Runs the task here; like srun, it hands SIGTERM on, since it becomes the task.
SRUN = """host=
while [[ $1 == --* ]]; do [[ $1 == --nodelist=* ]] && host=${1#*=}; shift; done
FAKE_HOST=$host exec "$@" """
# Hands the words to a shell, as sshd does; what is not there on the far side is this side's environment.
SSH = """while [[ $1 == -o ]]; do shift 2; done
export FAKE_HOST=$1
shift
exec sh -c "$*" """
# Stands for Python on a host: a trainer or a server that does as FAKE_TRAINER or FAKE_SERVER says, and writes down what happens to it.
PYTHON = """role=trainer
[[ $2 == r1_recipes.vllm_server ]] && role=server
say() { printf '%s %s %s\\n' "$role" "$FAKE_HOST" "$1" >>"$FAKE_LOG"; }
does=$([[ $role == server ]] && echo "$FAKE_SERVER" || echo "$FAKE_TRAINER")
[[ $does == first-host:* && $FAKE_HOST == *1 ]] && does=${does#*:}
stopped() { say told; sleep 0.3; say stopped; exit 130; }
trap stopped TERM
say began
for ((i = 0; i < 300; i++)); do
    [[ $does == ends:* && $i -ge 5 ]] && { say ended; exit "${does#*:}"; }
    sleep 0.1
done"""


@pytest.fixture
def cluster(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """``cluster(KEY=value, …)`` gives the environment of a launcher among commands that only pretend; ``None`` leaves a variable out."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"scontrol": SCONTROL, "srun": SRUN, "ssh": SSH, "fake-python": PYTHON}.items():
        path = folder / name
        path.write_text(f"#!/usr/bin/env bash\n{text}\n", encoding="utf-8")
        path.chmod(0o755)

    def environment(**changes: str | None) -> dict[str, str]:
        values = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "PYTHON": str(folder / "fake-python"),
            "FAKE_NODES": "node1 node2 node3",
            "FAKE_LOG": str(tmp_path / "log"),
            "FAKE_TRAINER": "runs",
            "FAKE_SERVER": "runs",
            "STOP_SECONDS": "20",
            **changes,
        }
        return {key: value for key, value in values.items() if value is not None}

    return environment


def launch(script: str, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(REPOSITORY / script), *arguments]
    return subprocess.run(command, env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)


def happened(env: dict[str, str]) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return Path(env["FAKE_LOG"]).read_text(encoding="utf-8").splitlines()
    return []


def wait_for(condition: Callable[[], Any], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def train_words(rank: int, machines: int, main: str, port: int, server: list[str], overrides: list[str]) -> list[str]:
    """A training host's command after Python, for 8 GPUs a host and the tests' recipe."""
    where = f"--num_machines {machines} --num_processes {8 * machines} --machine_rank {rank} --main_process_ip {main}"
    return [
        *f"-m accelerate.commands.launch --config_file accelerate_configs/zero2.yaml {where} --main_process_port {port}".split(),
        *["-m", "r1_recipes.grpo", "recipes/gsm8k_qwen05b.yaml"],
        *server,
        *overrides,
    ]


def server_words(host: str, port: int) -> list[str]:
    ports = f"--vllm_server_port {port + 1} --vllm_group_port {port + 2} --vllm_server_timeout 1200"
    return f"--use_vllm true --vllm_mode server --vllm_server_host {host} {ports}".split()


def commands(output: str) -> list[tuple[str, list[str]]]:
    """Host and words of each line of a dry run."""
    return [(line.partition(": ")[0], shlex.split(line.partition(": ")[2])) for line in output.splitlines()]


def test_a_job_with_a_server_runs_one_command_a_node(cluster: Callable) -> None:
    overrides = ["--max_steps", "3", "--system_prompt", 'it\'s so: $HOME "and" * more']
    env = cluster(**SLURM, DRY_RUN="1", PYTHON="/venv/bin/python", SERVER_FLAGS="--gpu-memory-utilization 0.8")
    done = launch(TRAIN_WITH_SERVER, "gsm8k_qwen05b", "zero2", *overrides, env=env)
    assert done.returncode == 0, done.stderr
    shared = server_words("node3", PORT)
    serve = ["/venv/bin/python", "-m", "r1_recipes.vllm_server", "recipes/gsm8k_qwen05b.yaml", *shared, *overrides]
    trainer = ["env", "PET_SHUTDOWN_TIMEOUT=20", "/venv/bin/python"]
    assert commands(done.stdout) == [
        ("node3", [*serve, "--", "--gpu-memory-utilization", "0.8"]),
        ("node1", [*trainer, *train_words(0, 2, "node1", PORT, shared, overrides)]),
        ("node2", [*trainer, *train_words(1, 2, "node1", PORT, shared, overrides)]),
    ]


def test_a_colocated_job_trains_on_every_node(cluster: Callable) -> None:
    done = launch(TRAIN, "recipes/gsm8k_qwen05b.yaml", "accelerate_configs/zero2.yaml", env=cluster(**SLURM, DRY_RUN="1"))
    assert done.returncode == 0, done.stderr
    found = commands(done.stdout)
    assert [host for host, _ in found] == ["node1", "node2", "node3"]
    assert [words[3:] for _, words in found] == [train_words(rank, 3, "node1", PORT, [], []) for rank in range(3)]


def test_a_list_of_hosts_gets_the_same_commands(cluster: Callable) -> None:
    env = cluster(HOSTS="me@gpu1 gpu2", SERVER_HOST="me@gpu3", GPUS_PER_NODE="8", DRY_RUN="1")
    done = launch(HOSTS, "gsm8k_qwen05b", "zero2", "--max_steps", "3", env=env)
    assert done.returncode == 0, done.stderr
    found = commands(done.stdout)
    assert [host for host, _ in found] == ["me@gpu3", "me@gpu1", "gpu2"]
    # The name to log in by is no part of an address.
    shared = server_words("gpu3", 29500)
    assert found[0][1][3:] == ["recipes/gsm8k_qwen05b.yaml", *shared, "--max_steps", "3"]
    assert [words[3:] for _, words in found[1:]] == [train_words(rank, 2, "gpu1", 29500, shared, ["--max_steps", "3"]) for rank in (0, 1)]


GSM8K = ["gsm8k_qwen05b", "ddp"]


@pytest.mark.parametrize(
    ("script", "arguments", "changes", "message"),
    [
        (TRAIN, GSM8K, {"SLURM_JOB_ID": None}, "error: SLURM_JOB_ID is not set: submit this script with sbatch"),
        (TRAIN, GSM8K, {"SLURM_JOB_NODELIST": None}, "SLURM_JOB_NODELIST: is not set; sbatch sets it"),
        (TRAIN, GSM8K, {"SLURM_JOB_NODELIST": "other"}, "error: scontrol show hostnames other failed"),
        (TRAIN, GSM8K, {"SLURM_GPUS_ON_NODE": None}, "error: SLURM_GPUS_ON_NODE is not set: ask for GPUs"),
        (TRAIN, GSM8K, {"GPUS_PER_NODE": "many"}, "error: GPUS_PER_NODE: found 'many'"),
        (TRAIN, GSM8K, {"METHOD": "ppo"}, "error: METHOD: found 'ppo'; grpo, sft or distill"),
        (TRAIN, GSM8K, {"DRY_RUN": None, "PYTHON": "/no/python"}, "error: PYTHON: /no/python is not there; run make install"),
        (TRAIN, ["gsm8k_qwen05b"], {}, "error: usage: train.sbatch RECIPE CONFIG [--key value ...]"),
        (TRAIN, ["gsm8k_qwen", "ddp"], {}, "error: recipe 'gsm8k_qwen' is no file, nor is recipes/gsm8k_qwen.yaml; there are: "),
        (TRAIN, ["gsm8k_qwen05b", "zero4"], {}, "error: accelerate config 'zero4' is no file, nor is accelerate_configs/zero4.yaml; "),
        (TRAIN, ["gsm8k_qwen05b_server", "ddp"], {}, "no server is started here; use slurm/train_with_server.sbatch"),
        (TRAIN_WITH_SERVER, GSM8K, {"FAKE_NODES": "node1"}, "the job has 1 node(s), one for the server and one or more for training"),
        (TRAIN_WITH_SERVER, GSM8K, {"METHOD": "sft"}, "error: METHOD: sft generates nothing and needs no server"),
        (HOSTS, GSM8K, {"GPUS_PER_NODE": "8"}, "error: HOSTS is not set: "),
        (HOSTS, GSM8K, {"HOSTS": "a b"}, "error: GPUS_PER_NODE: found ''"),
        (HOSTS, GSM8K, {"HOSTS": "a b", "SERVER_HOST": "b", "GPUS_PER_NODE": "8"}, "error: SERVER_HOST b is one of HOSTS"),
        (HOSTS, ["gsm8k_qwen05b_server", "ddp"], {"HOSTS": "a", "GPUS_PER_NODE": "8"}, "no server is started here; use SERVER_HOST=node3"),
    ],
)
def test_what_cannot_be_launched_is_refused_by_name(
    cluster: Callable, script: str, arguments: list[str], changes: dict[str, str | None], message: str
) -> None:
    variables = {**(SLURM if script != HOSTS else {}), "DRY_RUN": "1", **changes}
    done = launch(script, *arguments, env=cluster(**variables))
    assert message in done.stderr
    assert done.returncode not in (0, 130) and done.stdout == ""


@pytest.mark.parametrize("overrides", [["--vllm_mode", "colocate"], ["--use_vllm", "false"], ["--vllm_server_host", "elsewhere"]])
def test_a_recipe_with_a_server_runs_without_ours_where_it_is_told_to(cluster: Callable, overrides: list[str]) -> None:
    done = launch(TRAIN, "gsm8k_qwen05b_server", "ddp", *overrides, env=cluster(**SLURM, DRY_RUN="1"))
    assert (done.returncode, len(commands(done.stdout))) == (0, 3), done.stderr


def variables_of(script: str) -> dict[str, str]:
    """Two training hosts and a server, by SLURM or by name."""
    return SLURM if script != HOSTS else {"HOSTS": "node1 node2", "SERVER_HOST": "node3", "GPUS_PER_NODE": "8"}


BOTH = pytest.mark.parametrize("script", [TRAIN_WITH_SERVER, HOSTS])


@BOTH
def test_the_server_ends_when_training_has_ended(cluster: Callable, script: str) -> None:
    env = cluster(**variables_of(script), FAKE_TRAINER="ends:0")
    done = launch(script, "gsm8k_qwen05b", "zero2", env=env)
    assert done.returncode == 0, done.stderr
    log = happened(env)
    ends = [log.index(f"trainer {host} ended") for host in ("node1", "node2")]
    assert max(ends) < log.index("server node3 told") < log.index("server node3 stopped")


@BOTH
def test_training_ends_when_the_server_has_ended(cluster: Callable, script: str) -> None:
    env = cluster(**variables_of(script), FAKE_SERVER="ends:0")
    done = launch(script, "gsm8k_qwen05b", "zero2", env=env)
    # However well it ended: training was not done yet.
    assert done.returncode == 1
    assert "the server on node3 ended with status 0 before training did" in done.stderr
    assert {"trainer node1 stopped", "trainer node2 stopped"} <= set(happened(env))


@BOTH
def test_one_host_that_fails_ends_the_others(cluster: Callable, script: str) -> None:
    env = cluster(**variables_of(script), FAKE_TRAINER="first-host:ends:7")
    done = launch(script, "gsm8k_qwen05b", "zero2", env=env)
    assert done.returncode == 7
    assert "training on node1 ended with status 7; the others are stopped" in done.stderr
    assert happened(env)[-1] == "server node3 stopped"
    assert "trainer node2 stopped" in happened(env) and "trainer node1 told" not in happened(env)


@BOTH
def test_a_stop_lets_training_finish_its_step_before_the_server_goes(cluster: Callable, script: str) -> None:
    env = cluster(**variables_of(script))
    command = ["bash", str(REPOSITORY / script), "gsm8k_qwen05b", "zero2"]
    process = subprocess.Popen(command, env=env, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: len(happened(env)) == 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.communicate()
    log = happened(env)
    stopped = [log.index(f"trainer {host} stopped") for host in ("node1", "node2")]
    assert max(stopped) < log.index("server node3 told") and log[-1] == "server node3 stopped"


def test_hosts_learn_of_the_end_of_a_launcher_that_was_killed(cluster: Callable) -> None:
    env = cluster(**variables_of(HOSTS))
    process = subprocess.Popen(["bash", str(REPOSITORY / HOSTS), "gsm8k_qwen05b", "zero2"], env=env, cwd=REPOSITORY)
    try:
        wait_for(lambda: len(happened(env)) == 3)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: sum(line.endswith(" stopped") for line in happened(env)) == 3)


def free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that nothing listens on."""
    for _ in range(100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            first = stack.enter_context(socket.socket())
            first.bind(("", 0))
            port = first.getsockname()[1]
            for offset in range(1, count):
                stack.enter_context(socket.socket()).bind(("", port + offset))
            return port
    raise AssertionError("no free ports")


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("method", "recipe", "config", "logged"),
    [
        ("grpo", "gsm8k_qwen05b", "ddp", "rewards/accuracy/mean"),
        ("grpo", "gsm8k_qwen05b", "fsdp2", "rewards/accuracy/mean"),
        ("sft", "r1/1_cold_start_sft", "fsdp2", "mean_token_accuracy"),
    ],
)
def test_two_hosts_train_together(cluster: Callable, tmp_path: Path, method: str, recipe: str, config: str, logged: str) -> None:
    """The launcher's own command on 127.0.0.1 and 127.0.0.2: one process each, gloo, on the CPU."""
    run = tmp_path / "run"
    env = cluster(
        HOSTS="127.0.0.1 127.0.0.2", GPUS_PER_NODE="1", PYTHON=sys.executable, PORT=str(free_ports(3)), FAKE_LOG=None, METHOD=method
    )
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = ["bash", str(REPOSITORY / HOSTS), recipe, config, "--smoke", "--output_dir", str(run)]
    done = subprocess.run(command, env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    # What the run itself saw; a launcher that falls back to one process says nothing.
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["hardware"]["processes"] == 2
    (entry,) = metrics(run)
    assert entry["step"] == 1 and logged in entry
    assert (run / "model.safetensors").is_file()
