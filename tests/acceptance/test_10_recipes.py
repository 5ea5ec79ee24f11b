"""Every recipe that ships takes one step with a tiny model, by the command of its header."""

import re
import shutil

import pytest
import yaml

from conftest import PYTHON, ROOT, read

FILES = {str(path.relative_to(ROOT / "recipes")): path for path in sorted((ROOT / "recipes").rglob("*.yaml"))}
METHODS = ["grpo", "sft", "generate", "evaluate", "distill", "reward"]


def methods(path):
    """The command that the header names comes first; without a header the others are tried."""
    named = re.findall(rf"r1[_-]recipes[. ]({'|'.join(METHODS)})\b", read(path))
    return named[:1] or METHODS


def smoke(commands, folder, name):
    for method in methods(FILES[name]):
        output = [] if method == "evaluate" else ["--output_dir", folder / name.replace("/", "_")]
        result = commands(method, FILES[name], "--smoke", *output)
        if result.code == 0:
            break
    if output:
        shutil.rmtree(output[1], ignore_errors=True)
    return result


@pytest.fixture(scope="module")
def results(commands, tmp_path_factory, request):
    """All recipes at once, JOBS at a time; only those that were chosen with -k."""
    chosen = [item.callspec.params["name"] for item in request.session.items if getattr(item, "originalname", "") == "test_recipe"]
    folder = tmp_path_factory.mktemp("recipes")
    return dict(zip(chosen, commands.every(lambda name: smoke(commands, folder, name), chosen), strict=True))


@pytest.mark.parametrize("name", FILES)
def test_recipe(results, name):
    if results[name].code == 2 and not shutil.which("bwrap") and "bwrap" in results[name].text:
        pytest.skip("bubblewrap is not installed")
    results[name].ok()


@pytest.mark.quick
def test_recipes_are_listed_where_they_lie(commands):
    """What the checkout has is what `r1-recipes recipes` lists, in short names."""
    listed = commands.process([PYTHON, "-m", "r1_recipes", "recipes"]).ok().out
    assert not [name for name in FILES if name.removesuffix(".yaml") not in listed]


@pytest.mark.quick
def test_every_configuration_of_accelerate_is_shown(commands):
    for path in sorted((ROOT / "accelerate_configs").glob("*.yaml")):
        assert yaml.safe_load(commands.process([PYTHON, "-m", "r1_recipes", "show", f"accelerate_configs/{path.stem}"]).ok().out) == yaml.safe_load(read(path))
