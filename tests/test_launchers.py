"""The launchers for several nodes: the commands they run, how they end, and a run over two hosts
that are loopback addresses.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from r1_recipes.common.errors import RecipeError
from r1_recipes.recipe.load import load_recipe
from tests.conftest import RECIPES, REPOSITORY, method_of, metrics
from tests.core.training.test_accelerate_configs import ON_CPU, environment

SLURM = {"SLURM_JOB_ID": "7003", "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_GPUS_ON_NODE": "8"}
TRAIN, TRAIN_WITH_SERVER, HOSTS = (
    "slurm/train.sbatch",
    "slurm/train_with_server.sbatch",
    "launch/hosts.sh",
)
RECIPE, CONFIG = "recipes/gsm8k_qwen05b.yaml", "accelerate_configs/zero2.yaml"

SCONTROL = """[[ "$1 $2 $3" == "show hostnames node[1-3]" ]] || exit 1
printf '%s\\n' $FAKE_NODES"""
# Runs one task for each node, and kills all of them when one fails, as --kill-on-bad-exit does, or
# on SIGTERM (SchedMD's src/srun/libsrun/srun_job.c, _srun_signal_mgr). Slurm itself sends a job's
# signal to the tasks, so their numbers are written down.
SRUN = """relative=0
while [[ $1 == --* ]]; do
    [[ $1 == --relative=* ]] && relative=${1#*=}
    shift
done
nodes=($FAKE_NODES) tasks=()
end() { kill -KILL "${tasks[@]}" $(grep -lszxF "FAKE_STEP=$$" /proc/[0-9]*/environ | cut -d/ -f3) 2>/dev/null; exit "$1"; }
trap 'end 137' TERM
for host in "${nodes[@]:relative}"; do
    FAKE_STEP=$$ FAKE_HOST=$host SLURM_PROCID=${#tasks[@]} "$@" &
    tasks+=($!)
done
printf '%s\\n' "${tasks[@]}" >"$FAKE_LOG.tasks"
for task in "${tasks[@]}"; do
    wait -n; status=$?
    ((status == 0)) || end "$status"
done"""
# Hands the words to a shell, as sshd does. Of this side's environment only FAKE_SECRET is not there
# on the far side.
SSH = """while [[ $1 == -o ]]; do shift 2; done
export FAKE_HOST=$1
unset FAKE_SECRET
shift
printf '%s\\n' "$*" >>"$FAKE_LOG.ssh"
exec sh -c "$*" """
# Stands for Python on a host: a trainer or a server that does as FAKE_TRAINER or FAKE_SERVER says,
# and writes down what happens to it.
PYTHON = """role=trainer
[[ $2 == r1_recipes.vllm_server ]] && role=server
host=${FAKE_HOST:-node1}
say() { printf '%s %s %s\\n' "$role" "$host" "$1" >>"$FAKE_LOG"; }
printf '%s\\0' "$R1_RECIPES_PROCESSES" "$no_proxy" "$@" >"$FAKE_LOG.$host"
does=$([[ $role == server ]] && echo "$FAKE_SERVER" || echo "$FAKE_TRAINER")
[[ $does == first-host:* && $host == *1 ]] && does=${does#*:}
[[ $does == other-hosts:* ]] && does=$([[ $host == *1 ]] && echo ends:7 || echo "${does#*:}")
stopped() { say told; sleep 0.3; say stopped; exit 130; }
trap stopped TERM
if [[ $does == child ]]; then
    trap 'exit 143' TERM
    (trap 'say told; sleep 1; say stopped; exit 130' TERM; say began; while :; do sleep 0.1; done) &
    wait
fi
[[ $does == hangs ]] && trap '' TERM
say "began${FAKE_SECRET:+ with $FAKE_SECRET}"
for ((i = 0; i < 300; i++)); do
    [[ $does == ends:* && $i -ge 5 ]] && { say ended; exit "${does#*:}"; }
    sleep 0.1
done"""


@pytest.fixture
def cluster(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """``cluster(KEY=value, …)`` gives the environment of a launcher among commands that only
    pretend; ``None`` leaves a variable out.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {
        "scontrol": SCONTROL,
        "srun": SRUN,
        "ssh": SSH,
        "fake-python": PYTHON,
    }.items():
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
            "FAKE_TRAINER": "ends:0",
            "FAKE_SERVER": "runs",
            "STOP_SECONDS": "20",
            **changes,
        }
        return {key: value for key, value in values.items() if value is not None}

    return environment


def launch(script: str, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(REPOSITORY / script), *arguments]
    return subprocess.run(
        command, env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )


def happened(env: dict[str, str]) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return Path(env["FAKE_LOG"]).read_text(encoding="utf-8").splitlines()
    return []


def wait_for(condition: Callable[[], Any], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def ran(env: dict[str, str], host: str) -> tuple[str, str, list[str]]:
    """R1_RECIPES_PROCESSES, no_proxy and the words of the command that a host got."""
    processes, proxy, *words, _ = (
        Path(f"{env['FAKE_LOG']}.{host}").read_text(encoding="utf-8").split("\0")
    )
    return processes, proxy, words


def train_words(rank: int, machines: int, main: str, port: int, more: list[str]) -> list[str]:
    """The flags of a training host's command, for 8 GPUs each; in any order, as ``launch`` takes
    them.
    """
    where = (
        f"--num_machines {machines} --num_processes {8 * machines} --machine_rank {rank} "
        f"--main_process_ip {main}"
    )
    flags = f"--config_file {CONFIG} {where} --main_process_port {port}".split()
    return [
        *sorted(zip(flags[::2], flags[1::2], strict=True)),
        "-m",
        "r1_recipes.grpo",
        RECIPE,
        *more,
    ]


def trained(words: list[str]) -> list[Any]:
    assert words[:2] == ["-m", "accelerate.commands.launch"]
    module = words.index("-m", 2)
    return [*sorted(zip(words[2:module:2], words[3:module:2], strict=True)), *words[module:]]


def server_words(host: str, port: int) -> list[str]:
    ports = f"--vllm_server_port {port + 1} --vllm_group_port {port + 2} --vllm_server_timeout 1200"
    return f"--use_vllm true --vllm_mode server --vllm_server_host {host} {ports}".split()


def variables_of(script: str) -> dict[str, str]:
    """Two training hosts and a server, by Slurm or by name."""
    return (
        SLURM
        if script != HOSTS
        else {"HOSTS": "me@node2 node3", "SERVER_HOST": "node1", "GPUS_PER_NODE": "8"}
    )


BOTH = pytest.mark.parametrize("script", [TRAIN_WITH_SERVER, HOSTS])
OVERRIDES = ["--max_steps", "3", "--system_prompt", 'it\'s so: $HOME "and" * more']


@BOTH
def test_a_run_with_a_server_is_one_command_for_each_host(cluster: Callable, script: str) -> None:
    env = cluster(
        **variables_of(script),
        SERVER_FLAGS='--gpu-memory-utilization 0.8 --speculative-config {"method":"ngram"}',
    )
    done = launch(script, RECIPE, CONFIG, *OVERRIDES, env=env)
    assert done.returncode == 0, done.stderr
    port = 29500 if script == HOSTS else 10009  # 10000 + 7003 % 7000 * 3
    shared = server_words("node1", port)
    flags = ["--", "--gpu-memory-utilization", "0.8", "--speculative-config", '{"method":"ngram"}']
    assert ran(env, "node1")[1:] == (
        ",node1",
        ["-m", "r1_recipes.vllm_server", RECIPE, *shared, *OVERRIDES, *flags],
    )
    # The name to log in by is no part of an address.
    for rank, host in enumerate(["me@node2" if script == HOSTS else "node2", "node3"]):
        processes, proxy, words = ran(env, host)
        assert (processes, proxy) == ("16", ",node1")
        assert trained(words) == train_words(rank, 2, "node2", port, [*shared, *OVERRIDES])


def test_a_colocated_job_trains_on_every_node(cluster: Callable) -> None:
    env = cluster(**SLURM)
    done = launch(TRAIN, RECIPE, CONFIG, *OVERRIDES, env=env)
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        processes, _, words = ran(env, f"node{rank + 1}")
        assert (processes, trained(words)) == (
            "24",
            train_words(rank, 3, "node1", 10009, OVERRIDES),
        )


def test_a_cloud_runs_the_same_commands(cluster: Callable) -> None:
    """The ``run`` of the SkyPilot file, in the environment that SkyPilot gives a node."""
    task = yaml.safe_load((REPOSITORY / "launch/skypilot.yaml").read_text(encoding="utf-8"))
    node = {
        "NUM_NODES": "2",
        "NUM_GPUS_PER_NODE": "8",
        "NODE_RANK": "1",
        "NODE_IPS": "10.0.0.1\n10.0.0.2",
    }
    env = cluster(FAKE_HOST="node2") | {f"SKYPILOT_{name}": value for name, value in node.items()}
    given = task["envs"] | {"CONFIG": CONFIG, "OVERRIDES": "--max_steps 3", "PYTHON": env["PYTHON"]}
    subprocess.run(
        ["bash", "-c", task["run"]], env=env | given, cwd=REPOSITORY, check=True, timeout=60
    )
    processes, _, words = ran(env, "node2")
    assert (processes, trained(words)) == (
        "16",
        train_words(1, 2, "10.0.0.1", 29500, ["--max_steps", "3"]),
    )


def test_skypilot_reads_the_file_for_clouds() -> None:
    sky = pytest.importorskip(
        "sky", reason="SkyPilot is too large for the dev extra (460 MB): pip install skypilot"
    )
    task = sky.Task.from_yaml(str(REPOSITORY / "launch/skypilot.yaml"))
    assert task.num_nodes == 2 and {"RECIPE", "CONFIG", "METHOD"} <= set(task.envs)


@pytest.mark.parametrize(
    "recipe",
    [path for path in RECIPES if method_of(path) == "grpo"],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_a_recipe_goes_from_one_machine_to_a_cluster_as_it_is(recipe: Path) -> None:
    """What the launcher adds says where completions come from, and nothing else."""
    with environment({}):
        here = load_recipe([str(recipe), *ON_CPU], "grpo").settings
        if here.get("load_in_4bit"):  # whose adapters no engine can be sent
            with pytest.raises(RecipeError, match="load_in_4bit: "):
                load_recipe([str(recipe), *ON_CPU, *server_words("node1", 29500)], "grpo")
            return
        there = load_recipe([str(recipe), *ON_CPU, *server_words("node1", 29500)], "grpo").settings
    changed = {key for key in there if there[key] != here.get(key)}
    server = {
        "vllm_mode",
        "vllm_server_host",
        "vllm_server_port",
        "vllm_group_port",
        "vllm_server_timeout",
    }
    # A server generates an episode's last turn whole, before TRL cuts it.
    follows = {"use_vllm", "vllm_max_model_length"}
    assert changed - follows == server - {key for key in server if here.get(key) == there[key]}
    assert there["vllm_mode"] == "server" and changed <= server | follows


@pytest.mark.parametrize(
    ("script", "arguments", "changes", "message"),
    [
        (
            TRAIN,
            [RECIPE, CONFIG],
            {"SLURM_GPUS_ON_NODE": None},
            "SLURM_GPUS_ON_NODE: is not set. Fix: submit this script with sbatch",
        ),
        (
            TRAIN,
            [RECIPE],
            {},
            "the accelerate config is missing. Fix: sbatch … slurm/train.sbatch RECIPE CONFIG",
        ),
        (
            TRAIN_WITH_SERVER,
            [RECIPE, CONFIG],
            {"FAKE_NODES": "node1"},
            "--nodes: must be 2 or more, one for the server, got 1. Fix: ",
        ),
        (
            HOSTS,
            [RECIPE, CONFIG],
            {"HOSTS": None},
            'HOSTS: must be names of hosts. Fix: HOSTS="node1 node2"',
        ),
        (
            HOSTS,
            [RECIPE, CONFIG],
            {"GPUS_PER_NODE": None},
            "GPUS_PER_NODE: must be the number of training processes on each host. Fix: ",
        ),
        (HOSTS, [], {}, "the recipe is missing. Fix: launch/hosts.sh RECIPE CONFIG"),
        (
            HOSTS,
            [RECIPE, CONFIG],
            {"PASS_ENV": "HOME NO_SUCH"},
            "PASS_ENV: must be names of variables that are set here, got 'NO_SUCH'",
        ),
    ],
)
def test_what_cannot_be_launched_is_refused_by_name(
    cluster: Callable,
    script: str,
    arguments: list[str],
    changes: dict[str, str | None],
    message: str,
) -> None:
    env = cluster(**{**variables_of(script), **changes})
    done = launch(script, *arguments, env=env)
    assert message in done.stderr and done.returncode != 0 and not happened(env)


@BOTH
def test_the_server_ends_when_training_has_ended(cluster: Callable, script: str) -> None:
    env = cluster(**variables_of(script))
    done = launch(script, RECIPE, CONFIG, env=env)
    assert done.returncode == 0, done.stderr
    log = happened(env)
    ends = [
        log.index(line) for line in log if line.startswith("trainer") and line.endswith("ended")
    ]
    assert len(ends) == 2 and max(ends) < log.index("server node1 told") < log.index(
        "server node1 stopped"
    )


@BOTH
def test_training_ends_when_the_server_has_ended(cluster: Callable, script: str) -> None:
    env = cluster(**variables_of(script), FAKE_SERVER="ends:0", FAKE_TRAINER="runs")
    done = launch(script, RECIPE, CONFIG, env=env)
    # However well it ended: training was not done yet.
    assert done.returncode == 1 and "the server on node1 ended" in done.stderr
    assert not any(line.startswith("trainer") and line.endswith("ended") for line in happened(env))


@pytest.mark.parametrize("trainer", ["runs", "hangs"])
@pytest.mark.parametrize("script", [TRAIN, HOSTS])
def test_one_host_that_fails_ends_the_others(cluster: Callable, script: str, trainer: str) -> None:
    places = SLURM if script == TRAIN else {"HOSTS": "node1 node2", "GPUS_PER_NODE": "8"}
    # Those that hang are killed 30 s after STOP_SECONDS.
    env = cluster(**places, FAKE_TRAINER=f"other-hosts:{trainer}", STOP_SECONDS="-25")
    began = time.monotonic()
    done = launch(script, RECIPE, CONFIG, env=env)
    assert done.returncode == 7 and time.monotonic() - began < 20
    if script == HOSTS:
        assert "training on node1 ended with status 7; training is told to stop" in done.stderr
        assert ("trainer node2 stopped" in happened(env)) == (trainer == "runs")


@contextlib.contextmanager
def started(env: dict[str, str], script: str) -> Any:
    """A launcher whose three hosts have begun."""
    with subprocess.Popen(
        ["bash", str(REPOSITORY / script), RECIPE, CONFIG], env=env, cwd=REPOSITORY
    ) as process:
        try:
            wait_for(lambda: len(happened(env)) == 3)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("trainer", ["runs", "child"])
@BOTH
def test_a_stop_lets_training_finish_its_step_before_the_server_goes(
    cluster: Callable, script: str, trainer: str
) -> None:
    """``child``: the process outlives its launcher, as accelerate leaves a single one behind when
    it gets SIGTERM.
    """
    env = cluster(**variables_of(script), FAKE_TRAINER=trainer)
    with started(env, script) as process:
        if script == HOSTS:
            process.send_signal(signal.SIGTERM)
        else:
            for task in Path(env["FAKE_LOG"] + ".tasks").read_text().split():
                os.kill(int(task), signal.SIGTERM)
        assert process.wait(30) != 0
    log = happened(env)
    assert (
        sum(line.startswith("trainer") and line.endswith("stopped") for line in log) == 2
        and log[-1] == "server node1 stopped"
    )


def test_hosts_learn_of_the_end_of_a_launcher_that_was_killed(cluster: Callable) -> None:
    env = cluster(**variables_of(HOSTS), FAKE_TRAINER="runs")
    with started(env, HOSTS):
        pass
    wait_for(lambda: sum(line.endswith(" stopped") for line in happened(env)) == 3)


def test_variables_are_passed_on_but_not_shown(cluster: Callable) -> None:
    secret = "it's a $secret"
    env = cluster(**variables_of(HOSTS), PASS_ENV="FAKE_SECRET", FAKE_SECRET=secret)
    done = launch(HOSTS, RECIPE, CONFIG, env=env)
    assert f"trainer node3 began with {secret}" in happened(env)
    assert "secret" not in done.stdout + done.stderr + Path(env["FAKE_LOG"] + ".ssh").read_text(
        encoding="utf-8"
    )


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
    scripts = sorted(
        str(path.relative_to(REPOSITORY))
        for folder in ("launch", "slurm")
        for path in (REPOSITORY / folder).iterdir()
        if path.suffix != ".yaml"
    )
    done = subprocess.run(
        [Path(sys.executable).with_name("shellcheck"), *scripts],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("method", "recipe", "config", "logged"),
    [
        ("grpo", RECIPE, "ddp", "rewards/accuracy/mean"),
        ("grpo", RECIPE, "fsdp2", "rewards/accuracy/mean"),
        ("sft", "recipes/r1/1_cold_start_sft.yaml", "fsdp2", "mean_token_accuracy"),
    ],
)
def test_two_hosts_train_together(
    cluster: Callable, tmp_path: Path, method: str, recipe: str, config: str, logged: str
) -> None:
    """The launcher's own command on 127.0.0.1 and 127.0.0.2: one process each, gloo, on the CPU."""
    run = tmp_path / "run"
    env = cluster(
        HOSTS="127.0.0.1 127.0.0.2",
        GPUS_PER_NODE="1",
        PYTHON=sys.executable,
        PORT=str(free_ports(3)),
        METHOD=method,
    )
    env |= {
        "PYTHONPATH": str(REPOSITORY / "src"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [
        "bash",
        str(REPOSITORY / HOSTS),
        recipe,
        f"accelerate_configs/{config}.yaml",
        "--smoke",
        "--output_dir",
        str(run),
    ]
    done = subprocess.run(
        command, env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    # What the run itself saw; a launcher that falls back to one process says nothing.
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["hardware"]["processes"] == 2
    (entry,) = metrics(run)
    assert entry["step"] == 1 and logged in entry
    assert (run / "model.safetensors").is_file()
