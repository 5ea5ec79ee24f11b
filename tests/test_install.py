"""Every install command that the project names resolves, `make install` adds to what is there, and
the wheel is whole.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import REPOSITORY

EXTRAS = set(
    tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
)
PINS = [
    Requirement(line)
    for line in (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
# Published as source alone; every other package has a wheel, so that nobody needs a Rust compiler.
SOURCE_ONLY = ("cellpylib", "deepspeed", "pycosat", "zss")
EVERYTHING = ["pyproject.toml", "--all-extras", "-c", "constraints.txt"]


def texts() -> dict[str, str]:
    """Everything a user reads commands in: documents, recipes, launchers, and the source with its
    error texts.
    """
    roots = [
        path
        for path in REPOSITORY.iterdir()
        if path.name[0] != "." and path.name not in ("tests", "outputs", "build", "dist")
    ]
    files = [path for root in roots for path in (root.rglob("*") if root.is_dir() else [root])]
    kinds = (".md", ".yaml", ".py", ".sh", ".slurm", ".toml", ".txt", "")
    found = [
        path
        for path in files
        if path.is_file() and path.suffix in kinds and ".egg-info" not in str(path)
    ]
    return {
        str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8", errors="replace")
        for path in found
    }


def commands() -> list[tuple[str, str, list[str]]]:
    """The file, the command, and what it installs, of each ``pip install …``, ``make install …``
    and ``install_hint(…)``.
    """
    found = []
    for file, text in texts().items():
        for match in re.finditer(
            r"\bpip install(?! +git\+)((?: +(?:'[^'\s]*'|[\w.\[\]<>=,/-]*[\w\]]))+)", text
        ):
            words = shlex.split(match[1])
            if (
                file != "Makefile" and "{" not in match[0]
            ):  # the Makefile's own lines run in these tests; a template is install_hint's
                found.append(
                    (
                        file,
                        match[0],
                        [word for word in words if word[0] != "-" and word != "constraints.txt"],
                    )
                )
        for pattern in (
            r"\bmake install(?: EXTRAS=([\w,-]*\w))?",
            r"""\binstall_hint\(["']([\w-]+)["']\)""",
        ):
            found += [
                (file, match[0], [f".[{match[1] or 'demo,dev'}]"])
                for match in re.finditer(pattern, text)
            ]
    return found


def extras_of(target: str) -> list[str]:
    return re.findall(r"[\w-]+", target) if target.startswith(".") else []


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
def pip() -> list[str]:
    if importlib.util.find_spec("pip") is None:
        pytest.skip("this environment has no pip")
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    # Small, and needed below; a mirror on disk may hold the common ones.
    if run(
        *command, "--no-deps", "--retries", "0", "--timeout", "15", "lm-format-enforcer"
    ).returncode:
        pytest.skip("pip cannot reach the package registry")
    return command


@pytest.fixture(scope="module")
def uv(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    pytest.importorskip("uv", reason="uv is not installed: make install")
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--no-header",
        "--no-annotate",
    ]
    probe = tmp_path_factory.mktemp("uv") / "probe.in"
    probe.write_text("iniconfig", encoding="utf-8")
    if run(*command, "--refresh", str(probe), UV_HTTP_TIMEOUT="15", UV_HTTP_RETRIES="0").returncode:
        pytest.skip("uv cannot reach the package registry")
    return command


def test_every_command_names_extras_that_exist_and_the_tested_versions():
    found = commands()
    assert {
        "README.md",
        "recipes/r1/r1_zero.yaml",
        "src/r1_recipes/common/chat_client.py",
        "Makefile",
    } <= {file for file, *_ in found}
    assert [
        (file, command)
        for file, command, targets in found
        for target in targets
        if not {*extras_of(target)} <= EXTRAS
    ] == []
    pinned = {canonicalize_name(pin.name) for pin in PINS}
    unpinned = [
        (file, command)
        for file, command, targets in found
        if command.startswith("pip") and "-c constraints.txt" not in command
        if any(
            target.startswith(".") or canonicalize_name(Requirement(target).name) in pinned
            for target in targets
        )
    ]
    assert unpinned == []


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("python", "platform"),
    [
        ("3.11", "x86_64-manylinux_2_31"),
        ("3.14", "x86_64-manylinux_2_31"),
        ("3.11", "macos"),
        ("3.14", "macos"),
    ],
)
def test_all_extras_at_once_resolve_to_the_pins(uv, python, platform):
    """Each package at one version; so every smaller combination resolves too."""
    wheels = [
        "--only-binary",
        ":all:",
        *(word for name in SOURCE_ONLY for word in ("--no-binary", name)),
    ]
    place = ["--python-version", python, "--python-platform", platform]
    done = run(
        *uv, *EVERYTHING, *wheels, *place, MACOSX_DEPLOYMENT_TARGET="14.0"
    )  # torch has no older build
    assert done.returncode == 0, done.stderr
    pins = {
        str(pin).split(";")[0].strip()
        for pin in PINS
        if pin.marker is None or pin.marker.evaluate({"python_version": python})
    }
    # A build of torch pins its own nvidia-* and cuda-*.
    assert [
        line
        for line in done.stdout.split()
        if line not in pins and not line.startswith(("nvidia-", "cuda-"))
    ] == []


@pytest.mark.e2e
def test_the_other_packages_that_a_document_names_fit_beside_the_pins(uv, tmp_path):
    others = tmp_path / "others.in"
    packages = {
        target for _, _, targets in commands() for target in targets if not target.startswith(".")
    }
    others.write_text("\n".join(packages), encoding="utf-8")
    done = run(*uv, *EVERYTHING, str(others), "--python-version", "3.11")
    assert packages and done.returncode == 0, done.stderr


@pytest.mark.e2e
@pytest.mark.skipif(
    not os.environ.get("CI"),
    reason="pip fetches about 1 GB of wheels to read their metadata: set CI=true",
)
def test_pip_itself_resolves_the_gpu_install(pip):
    """What users type; torch by its version, so that no newer one is fetched. uv resolves the same
    above, without the wheels.
    """
    done = run(
        *pip, "-c", "constraints.txt", "-e", ".[demo,dev,vllm]", "torch==2.13.0", seconds=600
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture
def clone(tmp_path):
    """A folder with the Makefile whose .venv/bin/python writes down what it is asked."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@" >>calls\n', encoding="utf-8")
    python.chmod(0o755)

    def make(*words: str, **env: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        calls = tmp_path / "calls"
        calls.write_text("", encoding="utf-8")
        done = run("make", *words, folder=tmp_path, MAKEFLAGS="", MAKELEVEL="", **env)
        return done, re.findall(r"-e (\S+)", calls.read_text(encoding="utf-8"))

    return make


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_alone_lists_the_targets_and_installs_nothing(clone):
    done, installed = clone()
    named = set(re.findall(r"make ([a-z][\w-]*)", done.stdout))
    assert installed == [] and {"demo", "install", "check", "test", "menu", "grpo"} <= named, (
        done.stderr
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_install_adds_extras_and_installs_nothing_twice(clone, tmp_path):
    assert clone("install")[1] == [".[demo]", ".[dev]"]
    assert clone("install", "EXTRAS=demo,dev,vllm")[1] == [".[vllm]"]
    assert clone("install", "EXTRAS=demo,dev,vllm")[1] == clone("install")[1] == []
    os.utime(tmp_path / "constraints.txt", (2e9, 2e9))
    assert clone("install", "-j4")[1] == [
        ".[demo]",
        ".[dev]",
        ".[vllm]",
    ]  # what is there follows the pins


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_demo_installs_its_extra_alone_and_a_wrong_one_is_named(clone):
    assert clone("demo")[1] == [".[demo]"]
    assert clone("install", "EXTRAS=demo, qlora")[1] == [".[qlora]"]
    done, installed = clone("install", "EXTRAS=vlm")
    assert (
        done.returncode
        and installed == []
        and "EXTRAS: vlm is no extra of pyproject.toml" in done.stderr
    )


CPU_BUILD = "--extra-index-url https://download.pytorch.org/whl/cpu torch=="


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("gpu", "words", "cpu_builds"),
    [
        (False, ["demo"], 1),
        (False, ["install"], 2),
        (True, ["demo"], 0),
        (True, ["install"], 0),
        (False, ["install", "EXTRAS=vllm"], 0),
        (False, ["install", "EXTRAS=demo,dev,vllm"], 0),
        (False, ["install", "TORCH_INDEX="], 0),
    ],
)
def test_without_a_gpu_make_takes_the_cpu_build_of_torch(clone, tmp_path, gpu, words, cpu_builds):
    tools = tmp_path / "tools"
    tools.mkdir()
    smi = tools / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\nexit {0 if gpu else 9}\n", encoding="utf-8")
    smi.chmod(0o755)
    # On a machine with a GPU its device files would be seen, whatever nvidia-smi says.
    if not gpu and list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has an NVIDIA GPU")
    done, installed = clone(*words, PATH=f"{tools}:{os.environ['PATH']}")
    calls = (tmp_path / "calls").read_text(encoding="utf-8")
    assert done.returncode == 0 and installed, done.stderr
    assert calls.count(CPU_BUILD) == cpu_builds
    assert ("TORCH_INDEX=" in done.stdout) == (cpu_builds > 0)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_vllm_replaces_a_cpu_build_of_torch_and_a_later_install_keeps_that(clone, tmp_path):
    python = tmp_path / ".venv" / "bin" / "python"
    shows = '\ncase "$*" in *"pip show torch"*) echo "Version: 2.13.0+cpu" ;; esac\n'
    python.write_text(python.read_text(encoding="utf-8") + shows, encoding="utf-8")
    clone("install", "EXTRAS=vllm")
    calls = tmp_path / "calls"
    assert "uninstall -y torch" in calls.read_text(encoding="utf-8")
    clone("install")
    assert "uninstall" not in calls.read_text(encoding="utf-8")
    assert CPU_BUILD not in calls.read_text(encoding="utf-8")


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
            if path.suffix in (".yaml", ".jsonl", ".jinja")
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
from r1_recipes.pipeline import _load, read_pipeline
assert __file__.startswith(sys.argv[1])
for name in ("demo", "r1_mini", "agent"):
    pipeline = read_pipeline(Path("pipelines", name))
    recipes = [_load(pipeline, Path("outputs"), stage)[0] for stage in pipeline.stages if stage.recipe]
    assert len(recipes) > 1 and all(str(recipe.path).startswith(sys.argv[1]) for recipe in recipes)
    assert all(shipped(Path(recipe.script.chat_template)).is_file() for recipe in recipes if recipe.script.chat_template)
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
        (["recipes"], "gsm8k_qwen05b "),
        (["init", "my data.csv"], "wrote     my_data.yaml"),
    ):
        done = run(command, *words, folder=empty, **environment)
        assert done.returncode == 0 and said in done.stdout, done.stderr
