"""The scripts of `make demo` and its kind: their commands name recipes and keys that exist, and the
demo runs to its table and stops nowhere the second time.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from r1_recipes.models.smoke import build_tiny_model
from r1_recipes.recipe import load_recipe
from tests.conftest import REPOSITORY, metrics

SCRIPTS = sorted((REPOSITORY / "recipes" / "pipelines").glob("*.sh"))
pytestmark = pytest.mark.slow


def run(script: Path, folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", script, *words],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_command_of_a_script_can_be_read(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "python"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nfor word; do printf "%s\\t" "$word"; done; echo\n')
    fake.chmod(0o755)
    done = run(script, tmp_path, "--seed", "7", PATH=f"{fake.parent}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    commands = [line.rstrip("\t").split("\t")[1:] for line in done.stdout.splitlines()]
    assert commands[0][0] == "r1_recipes.sft" and len(commands) > 2
    monkeypatch.chdir(tmp_path)
    outputs = set()
    for module, path, *words in commands:
        method = module.removeprefix("r1_recipes.")
        if method in ("sft", "grpo", "generate"):
            recipe = load_recipe([path, *words], method)
            # A stage starts from what an earlier one left.
            start = recipe.script.dataset_name or "", recipe.model.model_name_or_path
            assert {
                name.removesuffix("/dataset") for name in start if "outputs/" in name
            } <= outputs
            assert recipe.training.seed == 7
            outputs.add(recipe.training.output_dir)
        if method == "evaluate":
            models = re.findall(r"--model (\S+)", shlex.join(words))
            assert {name for name in models if name.startswith("outputs/")} <= outputs


@pytest.mark.e2e
def test_the_demo_runs_to_its_table_and_again_ends_at_once(tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "r1-recipes" / "SmolLM2-135M-Instruct", {})
    # A random model's groups are all wrong, and preflight would end the script here.
    (tmp_path / "outputs" / "demo" / "grpo").mkdir(parents=True)
    words = ["--max_steps", "1", "--unfrozen_parameters", ".", "--save_strategy", "no"]
    settings = {
        "PROBLEMS": "2",
        "XDG_CACHE_HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY / "src"),
    }
    script = REPOSITORY / "recipes" / "pipelines" / "demo.sh"
    for _ in range(2):
        done = run(script, tmp_path, *words, **settings)
        assert done.returncode == 0, done.stderr
        assert "| outputs/demo/grpo |" in done.stdout
        assert (tmp_path / "outputs" / "demo" / "report.html").exists()
    assert len(metrics(tmp_path / "outputs" / "demo" / "grpo")) == 1
