"""Extras plug in by name: without one, without all, and with another package's."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import r1_recipes
from tests.conftest import REPOSITORY

SOURCE = Path(r1_recipes.__file__).parent
EXTRAS = sorted(path.parent.name for path in (SOURCE / "extras").glob("*/__init__.py"))
# Every module of the core, heavy ones too, and the flagship's settings.
IMPORTS_THE_CORE = textwrap.dedent(
    """
    import importlib, pkgutil
    import r1_recipes
    from r1_recipes.recipe import load_recipe

    for module in pkgutil.walk_packages(r1_recipes.__path__, "r1_recipes."):
        if not module.name.startswith("r1_recipes.extras."):
            importlib.import_module(module.name)
    load_recipe(["recipes/gsm8k_qwen05b.yaml"], "grpo")
    """
)


@pytest.fixture
def without(tmp_path):
    """Copy the package without some of its extras; return the environment that uses the copy."""

    def remove(names):
        shutil.copytree(
            SOURCE,
            tmp_path / "r1_recipes",
            ignore=shutil.ignore_patterns("__pycache__"),
            symlinks=True,
        )
        for name in names:
            shutil.rmtree(tmp_path / "r1_recipes" / "extras" / name)
        shipped = tmp_path / "r1_recipes" / "shipped"
        for link in [path for path in shipped.iterdir() if path.is_symlink()]:
            link.unlink()
            link.symlink_to(REPOSITORY / link.name)
        return {**os.environ, "PYTHONPATH": str(tmp_path)}

    return remove


def run(words, env):
    return subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, env=env, capture_output=True, text=True
    )


@pytest.mark.e2e
def test_the_flagship_trains_without_any_extra(without, tmp_path):
    env = without(EXTRAS)
    done = run(["-c", IMPORTS_THE_CORE], env)
    assert done.returncode == 0, done.stderr
    done = run(
        [
            "-m",
            "r1_recipes.grpo",
            "recipes/gsm8k_qwen05b.yaml",
            "--smoke",
            "--output_dir",
            str(tmp_path / "run"),
        ],
        env,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "metrics.jsonl").is_file()
    # What needs one says which.
    asked = ["--environment", "guess_number"]
    done = run(
        [
            "-m",
            "r1_recipes.grpo",
            "recipes/gsm8k_qwen05b.yaml",
            "--smoke",
            *asked,
            "--output_dir",
            str(tmp_path / "other"),
        ],
        env,
    )
    assert done.returncode == 2 and "agents" in done.stderr
    done = run(["-m", "r1_recipes.preflight", "recipes/gsm8k_qwen05b.yaml"], env)
    assert done.returncode == 2 and "preflight" in done.stderr
