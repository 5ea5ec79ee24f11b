"""Mistakes are refused with exit 2, before a model is loaded, and the message names the key and what would be right."""

import shutil

import pytest
import yaml

from conftest import HERE, TINY, recipe

MISTAKES = yaml.safe_load((HERE / "mistakes.yaml").read_text().replace("TINY", str(TINY)))
pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def results(commands, lab):
    """The outcome of every mistake, with a model whose weights cannot be loaded; the files that some need lie beside the recipes."""
    shutil.copytree(TINY, lab / "unloadable")
    (lab / "unloadable/model.safetensors").write_bytes(b"cut")
    (lab / "list.yaml").write_text("- seed\n- 1\n")
    (lab / "torn.yaml").write_text("seed: [1, 2\nmapper: {")
    (lab / "twice.yaml").write_text(recipe(lab, "once").read_text() + "seed: 2\n")
    (lab / "empty.jsonl").write_text("")
    calls = []
    for number, mistake in enumerate(MISTAKES.values()):
        method = mistake.get("command", "grpo")
        changes = {"model_name_or_path": "./unloadable"} | mistake.get("set", {})
        path = lab / mistake["recipe"] if "recipe" in mistake else recipe(lab, f"mistake{number}", method, **changes)
        calls.append((method, path, *mistake.get("args", []), {"cwd": lab}))
    return dict(zip(MISTAKES, commands.each(calls), strict=True))


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(results, lab, name):
    result = results[name]
    result.refused(*MISTAKES[name]["says"])
    said = [line for line in result.text.splitlines() if line.startswith("error")]
    assert len(said) == 1, result.text  # one line, however the rest of the output looks
    assert not list(lab.glob("mistake*/model.safetensors"))


def test_a_refusal_takes_seconds(commands, lab):
    result = commands.python("grpo", recipe(lab, "slow", learning_rat=1), cwd=lab)
    result.refused("learning_rate")
    assert result.seconds < 60  # 5 on an idle machine


def test_an_ignored_key_is_said(commands, lab):
    result = commands("grpo", recipe(lab, "ignored", cosine_max_len=10, max_steps=1), cwd=lab)
    result.ok().says("cosine_max_len")
