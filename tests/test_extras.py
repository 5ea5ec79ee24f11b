"""Extras plug in by name: without one, without all, and with another package's."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import r1_recipes
from r1_recipes.common import extras
from r1_recipes.common.errors import RecipeError
from tests.conftest import REPOSITORY

SOURCE = Path(r1_recipes.__file__).parent
EXTRAS = sorted(path.parent.name for path in (SOURCE / "extras").glob("*/__init__.py"))
# What every recipe of the card needs; no torch, so that a start takes a second.
USES_THE_CORE = textwrap.dedent(
    """
    from r1_recipes.__main__ import commands
    from r1_recipes.data import get_mapper, load_rows
    from r1_recipes.rewards import get_reward_funcs

    row = get_mapper("gsm8k")({"question": "What is 35 + 37?", "answer": "<<35+37=72>>\\n#### 72"})
    for reward in get_reward_funcs(["accuracy", "format", "tag_count"], "boxed"):
        values = reward(prompts=[[]], completions=["\\\\boxed{72}"], completion_ids=[[1]], solution=[row["solution"]])
        print(reward.__name__, values)
    assert "grpo" in commands() and load_rows
    """
)
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


@pytest.mark.parametrize("name", EXTRAS)
def test_the_core_does_without_each_extra(name, without):
    done = run(["-c", USES_THE_CORE], without([name]))
    assert done.returncode == 0, done.stderr
    assert "accuracy [1.0]" in done.stdout


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


@pytest.mark.nightly
def test_the_core_s_own_tests_pass_without_any_extra(without):
    """The folders of a row's way; the others train, or read every recipe, which takes minutes."""
    env = without(EXTRAS)
    shutil.rmtree(Path(env["PYTHONPATH"]) / "r1_recipes" / "extras")
    folders = ("common", "completions", "data", "metrics", "prompts", "rewards", "runs")
    words = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-m", "not slow and not e2e"]
    done = run([*words, *(f"tests/core/{folder}" for folder in folders)], env)
    assert done.returncode == 0, done.stdout[-4000:]
    # It was the copy that was tested, and what it lacks is said by name.
    assert {f"needs the extra {name}" for name in ("agents", "countdown")} <= set(
        re.findall("needs the extra [a-z]+", done.stdout)
    )


PACKAGE = {
    "pyproject.toml": """
        [build-system]
        requires = ["setuptools"]
        build-backend = "setuptools.build_meta"
        [project]
        name = "sentences"
        version = "1"
        [project.entry-points.r1_recipes]
        sentences = "sentences:PLUGIN"
        [tool.setuptools]
        packages = ["sentences"]
    """,
    "sentences/__init__.py": """
        PLUGIN = {
            "reward": {"sentences": "sentences.rewards:sentences"},
            "mapper": {"riddle": "sentences.mappers:Riddle"},
            "command": {"sentences": ("sentences.count", "count a text's sentences")},
        }
    """,
    "sentences/rewards.py": """
        def sentences(completions, **columns):
            return [float(text.count(".")) for text in completions]
    """,
    "sentences/mappers.py": """
        from r1_recipes.data import Mapper, register_mapper


        @register_mapper("riddle")
        class Riddle(Mapper):
            columns = ("riddle", "word")
    """,
    "sentences/count.py": """
        import sys

        print(sys.argv[1].count("."))
    """,
}


@pytest.fixture(scope="module")
def installed_package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    for name, text in PACKAGE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    words = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--target",
        folder / "site",
        folder,
    ]
    subprocess.run([sys.executable, *map(str, words)], check=True)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(SOURCE.parent)])}


def test_another_package_adds_a_reward_a_mapper_and_a_command(installed_package):
    program = (
        "from r1_recipes.data import get_mapper; from r1_recipes.rewards import get_reward_funcs\n"
        "print(get_reward_funcs(['sentences'])[0](completions=['One. Two.']), "
        "get_mapper('riddle')({'riddle': '?', 'word': 'egg'}))"
    )
    done = run(["-c", program], installed_package)
    assert done.stdout == "[2.0] {'question': '?', 'solution': 'egg'}\n", done.stderr
    done = run(["-m", "r1_recipes", "sentences", "One. Two. Three."], installed_package)
    assert done.stdout == "3\n", done.stderr
    assert (
        "count a text's sentences" in run(["-m", "r1_recipes", "--help"], installed_package).stdout
    )


@pytest.mark.parametrize(
    ("plugin", "key"),
    [({"rewards": {}}, "rewards"), ({"reward": {"code": "mine:code"}}, "code")],
    ids=["no such kind", "a name twice"],
)
def test_a_plugin_that_cannot_be_used_is_named(plugin, key, monkeypatch):
    monkeypatch.setattr(extras, "_packages", lambda: [("mine:PLUGIN", plugin)])
    extras.installed.cache_clear()
    try:
        with pytest.raises(RecipeError, match=f"mine:PLUGIN.*{key}"):
            extras.installed()
    finally:
        extras.installed.cache_clear()
