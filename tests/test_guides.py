"""Every command of README and of the pages that have no test of their own, in the order in which
they stand, with a tiny model.
"""

import importlib.util
import re
import shlex
import subprocess
import sys

import pytest

from r1_recipes import __main__
from tests.conftest import REPOSITORY

PAGES = (
    "README.md",
    "docs/flat_reward.md",
    "docs/first_hour.md",
    "docs/one_gpu.md",
    "docs/recipes.md",
    "docs/losses.md",
)
# Run elsewhere: the pipelines in tests/core/test_pipeline.py, installations in
# tests/test_install.py, a server in tests/vllm.
ELSEWHERE = ("make ", "source ", "git clone ", "vllm serve", "nvidia-smi ")
pytestmark = pytest.mark.slow


def commands(page):
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    lines = [
        line
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines()
    ]
    lines += re.findall(r"`((?:python -m r1_recipes\.|r1-recipes )[^`…]+ [^`…]+)`", text)
    split = [shlex.split(line, comments=True) for line in lines if not line.startswith(ELSEWHERE)]
    return [
        words for words in split if not {"RECIPE", "FILE"} & {*words}
    ]  # those stand for something


@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs(page, tmp_path, monkeypatch, tiny_model):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(REPOSITORY / "recipes")
    rows = "".join(f"What is {number} + {number}?,{2 * number}\n" for number in range(40))
    (tmp_path / "my_data.csv").write_text("question,answer\n" + rows)
    found = commands(page)
    for number, words in enumerate(found):
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
        elif name not in ("init", "recipes", "show"):
            rest = [
                str(tiny_model) if word.startswith(("outputs/", "Qwen/")) else word for word in rest
            ] + ["--smoke"]
            rest += {"preflight": ["--no-model"], "evaluate": ["--num_samples", "1"]}.get(
                name, ["--output_dir", f"run_{number}"]
            )
        call(name, *rest)
    assert found


def call(name, *words):
    module = __main__.commands()[name][0]
    if importlib.util.find_spec(module).submodule_search_locations:
        module += ".__main__"
    try:
        importlib.import_module(module).main(words)
    except SystemExit as end:
        assert not end.code, (name, words)
