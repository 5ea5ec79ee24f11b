"""The batch files for several nodes: the command that each node gets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow
SLURM = {"SLURM_JOB_ID": "7003", "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_GPUS_ON_NODE": "8"}
RECIPE, CONFIG = "recipes/gsm8k_qwen05b.yaml", "accelerate_configs/zero2.yaml"
OVERRIDES = ["--max_steps", "3", "--system_prompt", 'it\'s so: $HOME "and" * more']
PORT = 10009  # 10000 + 7003 % 7000 * 3
FAKES = {
    "scontrol": "printf '%s\\n' node1 node2 node3",
    # One task for each node; it ends when the first that ends by itself does.
    "srun": """relative=0
while [[ $1 == --* ]]; do
    [[ $1 == --relative=* ]] && relative=${1#*=}
    shift
done
nodes=(node1 node2 node3) number=0
trap 'kill $(jobs -p); exit 143' TERM
for host in "${nodes[@]:relative}"; do
    FAKE_HOST=$host SLURM_PROCID=$number "$@" &
    ((number += 1))
done
wait -n""",
    # Python on a node: writes down its words; a server runs until it is told to end.
    "fake-python": """host=${FAKE_HOST:-node1}
printf '%s\\0' "$R1_RECIPES_PROCESSES" "$@" >"$FAKE_LOG.$host"
sleep 1
[[ $2 == r1_recipes.vllm_server ]] && sleep 20
exit 0""",
}


@pytest.fixture
def cluster(tmp_path):
    """``cluster(script, KEY=value)`` runs a batch file among commands that only pretend, and gives
    the words that each node got.
    """
    for name, text in FAKES.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)

    def launch(script, **variables):
        env = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "PYTHON": str(tmp_path / "fake-python"),
            "FAKE_LOG": str(tmp_path / "log"),
            "STOP_SECONDS": "1",
        }
        done = subprocess.run(
            ["bash", f"slurm/{script}", RECIPE, CONFIG, *OVERRIDES],
            env={**env, **SLURM, **variables},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return [
            (tmp_path / f"log.node{number}").read_text(encoding="utf-8").split("\0")[:-1]
            for number in (1, 2, 3)
        ]

    return launch


def training(words):
    """The launcher's flags, in any order, and what follows them."""
    assert words[1:3] == ["-m", "accelerate.commands.launch"]
    module = words.index("-m", 3)
    return dict(zip(words[3:module:2], words[4:module:2], strict=True)), words[module:]


def flags(rank, machines, main):
    return {
        "--config_file": CONFIG,
        "--num_machines": str(machines),
        "--num_processes": str(8 * machines),
        "--machine_rank": str(rank),
        "--main_process_ip": main,
        "--main_process_port": str(PORT),
    }


def test_a_run_with_a_server_is_one_command_for_each_host(cluster):
    server, *trainers = cluster(
        "train_with_server.sbatch", SERVER_FLAGS="--gpu-memory-utilization 0.8"
    )
    ports = f"--vllm_server_port {PORT + 1} --vllm_group_port {PORT + 2} --vllm_server_timeout 1200"
    shared = f"--use_vllm true --vllm_mode server --vllm_server_host node1 {ports}".split()
    serving = ["-m", "r1_recipes.vllm_server", RECIPE, *shared, *OVERRIDES]
    assert server[1:] == [*serving, "--", "--gpu-memory-utilization", "0.8"]
    for rank, words in enumerate(trainers):
        assert words[0] == "16"
        after = ["-m", "r1_recipes.grpo", RECIPE, *shared, *OVERRIDES]
        assert training(words) == (flags(rank, 2, "node2"), after)


def test_a_colocated_job_trains_on_every_node(cluster):
    for rank, words in enumerate(cluster("train.sbatch")):
        assert words[0] == "24"
        after = ["-m", "r1_recipes.grpo", RECIPE, *OVERRIDES]
        assert training(words) == (flags(rank, 3, "node1"), after)


def test_shellcheck_finds_nothing():
    scripts = [
        str(path)
        for folder in ("slurm", "recipes/pipelines")
        for path in sorted((REPOSITORY / folder).glob("*"))
        if path.suffix != ".yaml"
    ]
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
