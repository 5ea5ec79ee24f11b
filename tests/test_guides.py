"""Every command of README and of the guides, in the order in which they stand, with a tiny model."""

import importlib
import re
import shlex
import subprocess
import sys

import pytest

from r1_recipes import __main__
from tests.conftest import REPOSITORY

# Pages whose examples need files of their own: tests/extras/test_init.py, tests/e2e/test_agents.py,
# tests/core/rewards/test_elsewhere.py.
OWN = ("your_data", "agents", "elsewhere")
PAGES = [
    path.relative_to(REPOSITORY).as_posix()
    for path in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")))
    if not path.stem.endswith((*OWN, ".zh")) and "```bash" in path.read_text(encoding="utf-8")
]
# Installations, servers, and other projects' programs.
ELSEWHERE = ("make ", "source ", "git ", "vllm ", "nvidia-smi ", ".venv/", "lighteval ", "pip ")
ELSEWHERE += ("transformers ", "mkdir ", "bash ", "curl ", "hf ", "apt-get ", "python benchmarks/")
pytestmark = pytest.mark.slow


def commands(page):
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    lines = [
        line
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    lines += re.findall(r"`((?:python -m r1_recipes\.|r1-recipes )[^`…]+ [^`…]+)`", text)
    split = [shlex.split(line, comments=True) for line in lines if not line.startswith(ELSEWHERE)]
    # RECIPE, FILE and recipes/NAME.yaml stand for something.
    return [
        words for words in split if words and not {"RECIPE", "FILE", "recipes/NAME.yaml"} & {*words}
    ]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs(page, tmp_path, monkeypatch, tiny_model):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(REPOSITORY / "recipes")
    rows = "".join(f"What is {number} + {number}?,{2 * number}\n" for number in range(40))
    (tmp_path / "my_data.csv").write_text("question,answer\n" + rows)
    for number, words in enumerate(commands(page)):
        if "llama.cpp/" in " ".join(words[:2]):  # another project's
            continue
        if words[0] == "python" and words[1].endswith(".py"):  # what init wrote
            done = subprocess.run(
                [sys.executable, *words[1:]], capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, done.stderr
            continue
        name, *rest = words[1:] if words[0] == "r1-recipes" else words[words.index("-m") + 1 :]
        name = name.removeprefix("r1_recipes.")
        if name == "report":  # of runs that somebody has made
            for run in {run for run in rest if not (tmp_path / run).exists()}:
                call("grpo", "recipes/cpu/demo_2_grpo.yaml", "--smoke", "--output_dir", run)
        elif name not in ("init", "recipes", "show", "adapters"):
            models = ("outputs/", "Qwen/", "BEFORE", "AFTER", "embedded:")
            rest = [str(tiny_model) if word.startswith(models) else word for word in rest]
            rest += ["--smoke"]
            rest += {"preflight": ["--no-model"], "evaluate": ["--num_samples", "1"]}.get(
                name, ["--output_dir", f"run_{number}"]
            )
        if name != "adapters":  # which has tests of its own
            call(name, *rest)


def call(name, *words):
    module, _, function = __main__.COMMANDS[name][0].partition(":")
    try:
        getattr(importlib.import_module(f"r1_recipes.{module}"), function)(words)
    except SystemExit as end:
        assert not end.code, (name, words)
