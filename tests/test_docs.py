"""What the documents point to is there, and what the code has is in them."""

import dataclasses
import re
import runpy

import pytest

from r1_recipes.prompts import FORMATS
from r1_recipes.rewards import REWARDS, reward_parameters
from tests.conftest import REPOSITORY

DOCUMENTS = sorted(
    path for folder in (".", "docs", "recipes") for path in (REPOSITORY / folder).glob("*.md")
)


def text_of(document):
    return document.read_text(encoding="utf-8")


def test_relative_links_lead_somewhere():
    links = [
        (document.name, link)
        for document in DOCUMENTS
        for link in re.findall(r"\]\(([^)#:]+)[)#]", text_of(document))
        if not (document.parent / link).exists()
    ]
    assert links == []


def code(document):
    """A document's fenced blocks, without comments."""
    blocks = re.findall(r"^```.*?^```", text_of(document), re.DOTALL | re.MULTILINE)
    return [[re.sub(r"(^|\s+)#.*", "", line) for line in block.splitlines()] for block in blocks]


@pytest.mark.parametrize(
    "chinese",
    [path for path in DOCUMENTS if path.name.endswith(".zh.md")],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_a_chinese_document_has_the_code_of_its_twin(chinese):
    assert code(chinese) == code(chinese.with_name(chinese.name.replace(".zh.md", ".md")))


def test_measured_figures_are_those_of_the_results():
    """README, the headers of the recipes for two cores, and the counts that the chart draws."""
    known = {*re.findall(r"\d+\.\d", text_of(REPOSITORY / "docs" / "results.md"))}
    texts = {
        path.name: re.sub(r"\n# {8,}", " ", path.read_text(encoding="utf-8"))
        for path in (REPOSITORY / "recipes" / "cpu").rglob("*.yaml")
    }
    texts |= {name: text_of(REPOSITORY / name) for name in ("README.md", "README.zh.md")}
    said = {
        (name, figure)
        for name, text in texts.items()
        for line in re.findall("^.*(?:[Mm]easured|实测).*$", text, re.MULTILINE)
        for figure in re.findall(r"(?<![\d.])\d+\.\d(?![\d.])", line)
    }
    chart = runpy.run_path(str(REPOSITORY / "tools" / "chart.py"))["RUNS"]
    drawn = {
        (title, f"{100 * right / rows:.1f}")
        for title, (rows, seeds) in chart.items()
        for right in sum(seeds, ())
    }
    assert {name for name, _ in said} >= {"README.md", "README.zh.md", "agent_2_grpo.yaml"}
    assert sorted(each for each in said | drawn if each[1] not in known) == []


def test_every_key_reward_and_format_is_documented():
    from r1_recipes.data import MAPPERS
    from r1_recipes.recipe.types import (
        EvaluateRecipeArguments,
        GenerateRecipeArguments,
        GRPORecipeArguments,
    )

    text = "\n".join(map(text_of, (REPOSITORY / "docs").glob("*.md")))
    ours = (GRPORecipeArguments, EvaluateRecipeArguments, GenerateRecipeArguments)
    keys = {field.name for kind in ours for field in dataclasses.fields(kind)}
    names = {*keys, *MAPPERS, *REWARDS, *reward_parameters(REWARDS), *FORMATS}
    assert sorted(name for name in names if f"`{name}`" not in text) == []


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_recipe_and_the_reward_of_readme_work(tmp_path, monkeypatch, name):
    from r1_recipes.recipe import load_recipe
    from r1_recipes.rewards import get_reward_funcs

    text = text_of(REPOSITORY / name)
    (recipe,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    module = f"rewards_of_{name.replace('.', '_')}"
    (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(recipe.replace("my_rewards", module), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    loaded = load_recipe(["mine.yaml"], "grpo")
    right, own = get_reward_funcs(loaded.script.reward_funcs, loaded.script.response_format)
    texts = ["2 + 2 = 4.\nSo \\boxed{4}.", "5\n5"]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    assert right(completions=completions, solution=["4", "4"]) == [1.0, 0.0]
    assert own(completions=completions) == [1.0, 0.5]


@pytest.mark.parametrize("name", ["your_data.md", "your_data.zh.md"])
def test_the_mapper_of_the_guide_works(tmp_path, monkeypatch, name):
    from r1_recipes.data import get_mapper

    blocks = re.findall(r"```python\n(.*?)```", text_of(REPOSITORY / "docs" / name), re.DOTALL)
    (source,) = (block for block in blocks if "my_mapper.py" in block)
    module = f"quiz_of_{name.replace('.', '_')}"
    (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    own = re.search(r"mapper: my_mapper\.py:(\w+)", source)[1]
    mapper = get_mapper(f"{module}:{own}")
    assert mapper({"item": "3 + 4 = 7"}) == {"question": "3 + 4?", "solution": "7"}
