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

from r1_recipes.recipe.load import load_recipe
from tests.conftest import RECIPES, REPOSITORY, method_of, metrics
from tests.test_accelerate_configs import ON_CPU, environment

SLURM = {"SLURM_JOB_ID": "7003", "SLURM_SUBMIT_DIR": str(REPOSITORY), "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_GPUS_ON_NODE": "8"}
# 7003 % 7000 * 3 = 9
PORT = 10009
TRAIN, TRAIN_WITH_SERVER, HOSTS = "slurm/train.sbatch", "slurm/train_with_server.sbatch", "launch/hosts.sh"

SCONTROL = """[[ $1 == show && $2 == hostnames && $3 == "node[1-3]" ]] || exit 1
printf '%s\\n' $FAKE_NODES"""
# Runs the task here. Like srun, it hands its input and SIGUSR1 and SIGUSR2 on to the task, and makes SIGKILL, for all of the step, of
# SIGTERM and SIGHUP (SchedMD's src/srun/libsrun/srun_job.c, _srun_signal_mgr).
SRUN = """while [[ $1 == --* ]]; do
    [[ $1 == --nodelist=* ]] && export FAKE_HOST=${1#*=}
    shift
done
export FAKE_STEP=$$
force() {
    forced=137
    echo "forcing job termination" >&2
    for file in $(grep -lszxF "FAKE_STEP=$$" /proc/[0-9]*/environ); do
        file=${file#/proc/}
        kill -KILL "${file%/environ}"
    done
}
# Before the task, which may be quicker to say that it is up.
trap force TERM HUP
trap 'kill -USR1 $task' USR1
trap 'kill -USR2 $task' USR2
exec 3<&0
"$@" <&3 &
task=$!
until wait $task; status=$?; ! kill -0 $task 2>/dev/null; do :; done
exit ${forced:-$status}"""
# Hands the words to a shell, as sshd does. Of this side's environment only FAKE_SECRET is not there on the far side.
SSH = """while [[ $1 == -o ]]; do shift 2; done
export FAKE_HOST=$1
unset FAKE_SECRET
shift
exec sh -c "$*" """
# Stands for Python on a host: a trainer or a server that does as FAKE_TRAINER or FAKE_SERVER says, and writes down what happens to it.
PYTHON = """role=trainer
[[ $2 == r1_recipes.vllm_server ]] && role=server
say() { printf '%s %s %s\\n' "$role" "$FAKE_HOST" "$1" >>"$FAKE_LOG"; }
does=$([[ $role == server ]] && echo "$FAKE_SERVER" || echo "$FAKE_TRAINER")
[[ $does == first-host:* && $FAKE_HOST == *1 ]] && does=${does#*:}
[[ $does == other-hosts:* ]] && does=$([[ $FAKE_HOST == *1 ]] && echo ends:7 || echo "${does#*:}")
stopped() { say told; sleep 0.3; say stopped; exit 130; }
trap stopped TERM
if [[ $does == child ]]; then
    trap 'exit 143' TERM
    (trap 'say told; sleep 1; say stopped; exit 130' TERM; say began; while :; do sleep 0.1; done) &
    wait
fi
if [[ $does == hangs ]]; then
    trap '' TERM
    setsid bash -c 'for ((i = 0; i < 600; i++)); do sleep 0.1; done' &
    printf '%s\n' $! >>"$FAKE_LOG.hanging"
fi
say "began${FAKE_SECRET:+ with $FAKE_SECRET}"
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
    """A training host's command, for 8 GPUs a host and the tests' recipe."""
    where = f"--num_machines {machines} --num_processes {8 * machines} --machine_rank {rank} --main_process_ip {main}"
    return [
        *f"PET_SHUTDOWN_TIMEOUT=20 R1_RECIPES_PROCESSES={8 * machines} /venv/bin/python".split(),
        *f"-m accelerate.commands.launch --config_file accelerate_configs/zero2.yaml {where} --main_process_port {port}".split(),
        *["-m", "r1_recipes.grpo", "recipes/gsm8k_qwen05b.yaml"],
        *server,
        *overrides,
    ]


def server_words(host: str, port: int) -> list[str]:
    ports = f"--vllm_server_port {port + 1} --vllm_group_port {port + 2} --vllm_server_timeout 1200"
    return f"--use_vllm true --vllm_mode server --vllm_server_host {host} {ports}".split()


def proxies(host: str) -> list[str]:
    return [f"no_proxy={host}", f"NO_PROXY={host}"]


def connections(output: str) -> list[tuple[str, list[str]]]:
    """Host and words of each line of a dry run."""
    return [(line.partition(": ")[0], shlex.split(line.partition(": ")[2])) for line in output.splitlines()]


def commands(output: str) -> list[tuple[str, list[str]]]:
    """What each host of a dry run then runs, after ``env``."""
    found = []
    for host, words in connections(output):
        words = shlex.split(words[-1]) if words[0] == "ssh" else words
        where = words.index("launch/on_host.sh")
        assert words[where : where + 3] == ["launch/on_host.sh", "20", "env"]
        found.append((host, words[where + 3 :]))
    return found


def test_a_job_with_a_server_runs_one_command_a_node(cluster: Callable) -> None:
    overrides = ["--max_steps", "3", "--system_prompt", 'it\'s so: $HOME "and" * more']
    env = cluster(**SLURM, DRY_RUN="1", PYTHON="/venv/bin/python", SERVER_FLAGS="--gpu-memory-utilization 0.8")
    done = launch(TRAIN_WITH_SERVER, "gsm8k_qwen05b", "zero2", *overrides, env=env)
    assert done.returncode == 0, done.stderr
    shared = server_words("node3", PORT)
    serve = ["/venv/bin/python", "-m", "r1_recipes.vllm_server", "recipes/gsm8k_qwen05b.yaml", *shared, *overrides]
    assert commands(done.stdout) == [
        ("node3", [*proxies("node3"), *serve, "--", "--gpu-memory-utilization", "0.8"]),
        ("node1", [*proxies("node3"), *train_words(0, 2, "node1", PORT, shared, overrides)]),
        ("node2", [*proxies("node3"), *train_words(1, 2, "node1", PORT, shared, overrides)]),
    ]


@pytest.mark.parametrize(
    "recipe", [path for path in RECIPES if method_of(path) == "grpo"], ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_a_recipe_goes_from_one_machine_to_a_cluster_as_it_is(cluster: Callable, recipe: Path) -> None:
    """What the launcher adds says where completions come from, and nothing else."""
    done = launch(TRAIN_WITH_SERVER, str(recipe), "zero2", env=cluster(**SLURM, DRY_RUN="1", PYTHON="/venv/bin/python"))
    assert done.returncode == 0, done.stderr
    _, (_, words), _ = commands(done.stdout)
    path, *added = words[words.index("r1_recipes.grpo") + 1 :]
    assert path == str(recipe)
    with environment({}):
        here, there = (load_recipe([path, *ON_CPU, *more], "grpo").settings for more in ([], added))
    changed = {key for key in there if there[key] != here.get(key)}
    server = {"vllm_mode", "vllm_server_host", "vllm_server_port", "vllm_group_port", "vllm_server_timeout"}
    assert changed - {"use_vllm"} == server - {key for key in server if here.get(key) == there[key]}
    assert there["vllm_mode"] == "server" and changed <= server | {"use_vllm"}


def test_a_colocated_job_trains_on_every_node(cluster: Callable) -> None:
    env = cluster(**SLURM, DRY_RUN="1", PYTHON="/venv/bin/python")
    done = launch(TRAIN, "recipes/gsm8k_qwen05b.yaml", "accelerate_configs/zero2.yaml", env=env)
    assert done.returncode == 0, done.stderr
    assert commands(done.stdout) == [(f"node{rank + 1}", train_words(rank, 3, "node1", PORT, [], [])) for rank in range(3)]


def test_a_list_of_hosts_gets_the_same_commands(cluster: Callable) -> None:
    env = cluster(HOSTS="me@gpu1 gpu2", SERVER_HOST="me@gpu3", GPUS_PER_NODE="8", DRY_RUN="1", PYTHON="/venv/bin/python")
    done = launch(HOSTS, "gsm8k_qwen05b", "zero2", "--max_steps", "3", env=env)
    assert done.returncode == 0, done.stderr
    # The name to log in by is no part of an address.
    shared = server_words("gpu3", 29500)
    serve = ["/venv/bin/python", "-m", "r1_recipes.vllm_server", "recipes/gsm8k_qwen05b.yaml", *shared, "--max_steps", "3"]
    train = [train_words(rank, 2, "gpu1", 29500, shared, ["--max_steps", "3"]) for rank in (0, 1)]
    expected = [("me@gpu3", serve), ("me@gpu1", train[0]), ("gpu2", train[1])]
    assert commands(done.stdout) == [(host, [*proxies("gpu3"), *words]) for host, words in expected]


def test_a_dry_run_is_what_would_run(cluster: Callable) -> None:
    """The printed lines, given to a shell, do what the launcher does."""
    env = cluster(**variables_of(HOSTS), FAKE_TRAINER="ends:0", FAKE_SERVER="ends:0")
    done = launch(HOSTS, "gsm8k_qwen05b", "zero2", "--system_prompt", "it's $HOME", env={**env, "DRY_RUN": "1"})
    assert not happened(env)
    for host, words in connections(done.stdout):
        with subprocess.Popen(words, env=env, stdin=subprocess.PIPE) as process:
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.wait(20) == 0, host
    assert happened(env) == [
        line for name in ("server node3", "trainer node1", "trainer node2") for line in (f"{name} began", f"{name} ended")
    ]


def test_quotes_in_the_flags_of_the_server(cluster: Callable) -> None:
    env = cluster(**SLURM, DRY_RUN="1", SERVER_FLAGS="""--speculative-config '{"method": "ngram", "n": 4}' --served-model-name "a b" """)
    done = launch(TRAIN_WITH_SERVER, "gsm8k_qwen05b", "zero2", env=env)
    ((_, words), *_) = commands(done.stdout)
    assert words[words.index("--") + 1 :] == ["--speculative-config", '{"method": "ngram", "n": 4}', "--served-model-name", "a b"]


@pytest.mark.parametrize(
    ("overrides", "flags", "uses"),
    [
        ([], "", "1 (tensor parallel) x 1 (data parallel)"),
        (["--vllm_tensor_parallel_size", "2"], "--data-parallel-size=3", "2 (tensor parallel) x 3 (data parallel)"),
        (["--vllm-tensor-parallel-size=2"], "-tp 4 -dp 2", "4 (tensor parallel) x 2 (data parallel)"),
    ],
)
def test_gpus_that_the_server_leaves_idle_are_told(cluster: Callable, overrides: list[str], flags: str, uses: str) -> None:
    env = cluster(**SLURM, DRY_RUN="1", SERVER_FLAGS=flags)
    done = launch(TRAIN_WITH_SERVER, "gsm8k_qwen05b_server", "zero2", *overrides, env=env)
    assert f"the server on node3 uses {uses} of 8 GPUs\n" in done.stderr


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
        (
            TRAIN,
            ["gsm8k_qwen05b", "single_gpu"],
            {},
            "accelerate_configs/single_gpu.yaml: distributed_type: NO is for one process, and 3 host",
        ),
        (TRAIN, ["gsm8k_qwen05b", "cpu"], {"FAKE_NODES": "node1"}, "1 host(s) with GPUS_PER_NODE=8 are 8; use ddp"),
        (TRAIN, ["gsm8k_qwen05b_server", "ddp"], {}, "no server is started here; use slurm/train_with_server.sbatch"),
        (TRAIN, ["gsm8k_qwen05b_server", "ddp", "--vllm_server_timeout", "900"], {}, "no server is started here"),
        (TRAIN, [*GSM8K, "--vllm_mode", "server"], {}, "no server is started here"),
        (TRAIN, [*GSM8K, "--vllm-mode=colocate", "--vllm_mode=server"], {}, "no server is started here"),
        (TRAIN_WITH_SERVER, GSM8K, {"SERVER_FLAGS": "--x 'a"}, "error: SERVER_FLAGS: the quotes in it do not match: --x 'a"),
        (TRAIN, GSM8K, {"PASS_ENV": "HOME NO_SUCH"}, "error: PASS_ENV: found 'NO_SUCH'; names of variables that are set here"),
        (TRAIN_WITH_SERVER, GSM8K, {"FAKE_NODES": "node1"}, "the job has 1 node(s), one for the server and one or more for training"),
        (TRAIN_WITH_SERVER, GSM8K, {"METHOD": "sft"}, "error: METHOD: sft generates nothing and needs no server"),
        (HOSTS, GSM8K, {"GPUS_PER_NODE": "8"}, "error: HOSTS is not set: "),
        (HOSTS, GSM8K, {"HOSTS": "a b"}, "error: GPUS_PER_NODE: found ''"),
        (HOSTS, GSM8K, {"HOSTS": "a b", "SERVER_HOST": "b", "GPUS_PER_NODE": "8"}, "error: SERVER_HOST b is one of HOSTS"),
        (HOSTS, GSM8K, {"HOSTS": "a", "SERVER_HOST": "b", "GPUS_PER_NODE": "8", "METHOD": "sft"}, "error: METHOD: sft generates nothing"),
        (HOSTS, ["gsm8k_qwen05b", "single_gpu"], {"HOSTS": "a b", "GPUS_PER_NODE": "1"}, "distributed_type: NO is for one process, and 2"),
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


def test_one_process_needs_no_config_for_several(cluster: Callable) -> None:
    done = launch(HOSTS, "gsm8k_qwen05b", "single_gpu", env=cluster(HOSTS="a", GPUS_PER_NODE="1", DRY_RUN="1"))
    assert (done.returncode, len(commands(done.stdout))) == (0, 1), done.stderr


@pytest.mark.parametrize(
    "overrides",
    [
        ["--vllm_mode", "colocate"],
        ["--vllm_mode", "server", "--vllm_mode", "colocate"],
        ["--use_vllm", "false"],
        ["--vllm_server_host", "elsewhere"],
        ["--vllm-server-base-url=http://elsewhere:8000"],
    ],
)
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
    assert {"server node3 stopped", "trainer node2 stopped"} <= set(happened(env)) and "trainer node1 told" not in happened(env)


def stop_after(env: dict[str, str], script: str, ready: Callable[[], bool]) -> None:
    """Launches, sends SIGTERM when ``ready`` says so, and waits for the end."""
    command = ["bash", str(REPOSITORY / script), "gsm8k_qwen05b", "zero2"]
    process = subprocess.Popen(command, env=env, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(ready)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.communicate()


@BOTH
def test_a_stop_lets_training_finish_its_step_before_the_server_goes(cluster: Callable, script: str) -> None:
    env = cluster(**variables_of(script))
    stop_after(env, script, lambda: len(happened(env)) == 3)
    log = happened(env)
    stopped = [log.index(f"trainer {host} stopped") for host in ("node1", "node2")]
    assert max(stopped) < log.index("server node3 told") and log[-1] == "server node3 stopped"


@BOTH
def test_hosts_learn_of_the_end_of_a_launcher_that_was_killed(cluster: Callable, script: str) -> None:
    env = cluster(**variables_of(script))
    process = subprocess.Popen(["bash", str(REPOSITORY / script), "gsm8k_qwen05b", "zero2"], env=env, cwd=REPOSITORY)
    try:
        wait_for(lambda: len(happened(env)) == 3)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: sum(line.endswith(" stopped") for line in happened(env)) == 3)


def test_srun_makes_a_kill_of_sigterm(cluster: Callable) -> None:
    """The stand-in does as the real one: a launcher that sends it SIGTERM leaves no checkpoint."""
    command = ["srun", "bash", "-c", "trap 'echo told' TERM; echo up; while :; do sleep 0.1; done"]
    with subprocess.Popen(command, env=cluster(), stdout=subprocess.PIPE) as task:
        assert task.stdout.readline() == b"up\n"
        task.terminate()
        assert (task.wait(20), task.stdout.read()) == (128 + signal.SIGKILL, b"")


@BOTH
def test_a_process_that_outlives_its_launcher_is_waited_for(cluster: Callable, script: str) -> None:
    """As accelerate leaves a single one behind when it gets SIGTERM."""
    env = cluster(**variables_of(script), FAKE_TRAINER="child")
    stop_after(env, script, lambda: len(happened(env)) == 3)
    log = happened(env)
    assert log.count("trainer node1 stopped") == log.count("trainer node2 stopped") == 1 and log[-1] == "server node3 stopped"


def test_a_hanging_run_ends_soon_after_a_host_failed(cluster: Callable) -> None:
    env = cluster(**variables_of(HOSTS), FAKE_TRAINER="other-hosts:hangs", STOP_SECONDS="240")
    began = time.monotonic()
    done = launch(HOSTS, "gsm8k_qwen05b", "zero2", env=env)
    assert done.returncode == 7 and time.monotonic() - began < 30
    (hanging,) = Path(env["FAKE_LOG"] + ".hanging").read_text().split()
    wait_for(lambda: not Path(f"/proc/{hanging}").exists() or "(bash) Z" in Path(f"/proc/{hanging}/stat").read_text())


@BOTH
def test_variables_are_passed_on_but_not_shown(cluster: Callable, script: str) -> None:
    secret = "it's a $secret"
    env = cluster(**variables_of(script), FAKE_TRAINER="ends:0", FAKE_SERVER="ends:0", PASS_ENV="FAKE_SECRET", FAKE_SECRET=secret)
    shown = launch(script, "gsm8k_qwen05b", "zero2", env={**env, "DRY_RUN": "1"})
    assert shown.returncode == 0 and "secret" not in shown.stdout
    launch(script, "gsm8k_qwen05b", "zero2", env=env)
    assert f"trainer node2 began with {secret}" in happened(env)


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


def test_shellcheck_finds_nothing() -> None:
    scripts = sorted(str(path.relative_to(REPOSITORY)) for folder in ("launch", "slurm") for path in (REPOSITORY / folder).iterdir())
    done = subprocess.run([Path(sys.executable).with_name("shellcheck"), "-x", *scripts], cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


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
