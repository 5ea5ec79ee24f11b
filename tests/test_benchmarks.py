"""The GPU benchmark, tiny and on the CPU: it runs to its end, and says what it could not measure."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY


def gpu(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "gpu.py"), *words]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.e2e
def test_the_gpu_benchmark_runs_without_a_gpu_and_says_so() -> None:
    done = gpu("--tiny", "--", "--seed", "7")
    assert done.returncode == 0, done.stderr[-4000:]
    for line in (
        "left out: the GPU: none was used, so nothing here says how fast one is",
        "left out: generation with vLLM: vLLM is not installed",
        "--tiny: a random model on invented sums; the figures mean nothing",
    ):
        assert line in done.stdout.splitlines()
    # Three steps, of which two are the warm-up; no memory of a GPU's; what is left of a step when generation and rewards are taken off.
    number = r"(\d+\.\d\d)"
    found = re.search(
        rf"^\| Transformers \| 1 \| {number} \| {number} \| {number} \| {number} \| ([\d,]+) \|  \|$", done.stdout, re.MULTILINE
    )
    step, generation, rewards, training = (float(value) for value in found.groups()[:4])
    assert step == pytest.approx(generation + rewards + training, abs=0.03) and generation > 0
    assert "| 3 to 3 | 0.000 | 0.000 | 0.000 | " in done.stdout
    # A random model is right nowhere, before or after.
    for name in ("before", "after"):
        assert f"| {name} | 4 | 0.0 % | 0.0 % | 0.0 % | 0.0 % |" in done.stdout


def test_the_gpu_benchmark_asks_for_what_it_needs() -> None:
    done = gpu("--model", "x")
    assert done.returncode == 2 and "--model, --train and --test are needed, or --tiny" in done.stderr
