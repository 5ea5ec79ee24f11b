"""Every recipe in recipes/: its header says what it is, it parses without a warning, and preflight
finds no error. tests/acceptance/test_10_recipes.py trains one step with each.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from r1_recipes.recipe import load_recipe
from tests.conftest import RECIPES, REPOSITORY, method_of

pytestmark = pytest.mark.usefixtures("offline")
NAMES = {path: path.relative_to(REPOSITORY / "recipes").as_posix() for path in RECIPES}
EACH = pytest.mark.parametrize("path", RECIPES, ids=NAMES.get)


def settings_of(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@EACH
def test_the_header_is_complete(path: Path) -> None:
    before = re.split(r"^(?=[^#\s])", path.read_text(encoding="utf-8"), maxsplit=1, flags=re.M)[0]
    comments = [line for line in before.splitlines() if line.startswith("#")]
    assert len(comments) <= 15 and len(comments[0]) > 10
    named = (
        {"Run"} if path.parent.name == "benchmarks" else {"Follows", "Hardware", "Run", "Expect"}
    )
    assert named <= set(re.findall(r"^# (\w+):", before, re.M))
    assert f"recipes/{NAMES[path]}" in before
    for config in re.findall(r"--config_file (\S+)", before):
        assert (REPOSITORY / config).is_file()


@EACH
def test_it_parses_without_a_warning(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    method, on_cpu = method_of(path), ["--use_cpu", "true"]
    if method not in ("generate", "evaluate"):
        on_cpu += ["--bf16", "false", "--tf32", "none"]
    if method in ("grpo", "distill"):
        on_cpu += ["--use_vllm", "false"]
    recipe = load_recipe([str(path), *on_cpu], method)
    assert recipe.warnings == []
    assert method == "evaluate" or recipe.training.output_dir


@pytest.mark.parametrize("key", ["output_dir", "hub_model_id"])
def test_no_two_recipes_share_a_folder_or_a_hub_id(key: str) -> None:
    values = [value for path in RECIPES if (value := settings_of(path).get(key))]
    assert len(values) == len(set(values))


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in RECIPES if method_of(path) in ("grpo", "sft")], ids=NAMES.get
)
def test_preflight_finds_no_error(path: Path) -> None:
    from r1_recipes.extras.preflight import __main__ as preflight

    preflight.main([str(path), "--smoke", "--no-model", "--brief"])
