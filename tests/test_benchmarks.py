"""The GPU benchmark, tiny and on the CPU: it runs to its end and says what it did not measure."""

import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_the_gpu_benchmark_runs_without_a_gpu_and_says_so(tmp_path):
    offline = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    words = ["benchmarks/gpu.py", "--tiny", "--output", str(tmp_path / "out"), "--", "--seed", "7"]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=REPOSITORY,
        env={**os.environ, **offline, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "out" / "results.md").read_text(encoding="utf-8") == done.stdout
    assert "left out: the GPU: " in done.stdout and "left out: generation with vLLM" in done.stdout
    assert "| Transformers | 1 | " in done.stdout
    for name in ("before", "after"):  # a random model is right nowhere
        assert f"| {name} | 4 | 0.0 % | 0.0 % | " in done.stdout
