"""The wheel is whole, and works outside the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow


def run(
    *command: str, folder: Path = REPOSITORY, seconds: int = 240, **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(
        command,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=seconds,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pip", reason="this environment has no pip")
    folder = tmp_path_factory.mktemp("wheel")
    source, ignored = folder / "source", shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "recipes", "accelerate_configs"):
        shutil.copytree(REPOSITORY / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source / name)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(folder),
        ".",
    ]
    done = run(*build, folder=source)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_every_file_of_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    source = REPOSITORY / "src"
    wanted = {
        path.relative_to(source).as_posix()
        for path in (source / "r1_recipes").rglob("*")
        if path.is_file()
    }
    for name in ("recipes", "accelerate_configs"):
        files = [
            path
            for path in (REPOSITORY / name).rglob("*.*")
            if path.suffix in (".yaml", ".jsonl", ".jinja", ".sh", ".py")
        ]
        wanted |= {
            f"r1_recipes/shipped/{path.relative_to(REPOSITORY).as_posix()}" for path in files
        }
    assert {path for path in wanted if "__pycache__" not in path} - held == set()


def test_the_wheel_works_outside_the_repository(wheel, tmp_path):
    """The command, recipes by name, the paths that they name, and init, from an empty folder."""
    installed, empty = tmp_path / "installed", tmp_path / "empty"
    empty.mkdir()
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(installed)]
    assert run(sys.executable, "-m", "pip", "install", *options, str(wheel)).returncode == 0
    (empty / "my data.csv").write_text(
        "question;answer\n" + "Wie viel ist 1 + 0,5?;1,5\n" * 20, encoding="utf-8"
    )
    script = """
import sys
from pathlib import Path
from r1_recipes import __file__, __main__
from r1_recipes.common.files import shipped
from r1_recipes.data.sources import load_rows
from r1_recipes.recipe import load_recipe
assert __file__.startswith(sys.argv[1])
recipe = load_recipe(["recipes/cpu/agent_2_grpo.yaml"], "grpo")  # as a pipeline names it
assert str(recipe.path).startswith(sys.argv[1])
assert shipped(Path(recipe.script.chat_template)).is_file()
assert len(load_rows("recipes/cpu/r1_mini/general.jsonl", "train")) > 10
sys.argv[1:] = ["grpo", "gsm8k_qwen05b", "--smoke"]
__main__.main()
"""
    environment = {"PYTHONPATH": str(installed), "HF_HUB_OFFLINE": "1"}
    done = run(sys.executable, "-c", script, str(installed), folder=empty, **environment)
    assert done.returncode == 0, done.stderr
    command = str(installed / "bin" / "r1-recipes")
    for words, said in (
        (["--help"], "init "),
        (["recipes"], "pipelines/demo.sh "),
        (["init", "my data.csv"], "wrote     my_data.yaml"),
    ):
        done = run(command, *words, folder=empty, **environment)
        assert done.returncode == 0 and said in done.stdout, done.stderr
