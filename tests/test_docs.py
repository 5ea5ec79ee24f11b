"""What the documents point to is there, and what they list is what the code has."""

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from r1_recipes.formats import FORMATS
from r1_recipes.rewards import REWARDS, reward_parameters

REPOSITORY = Path(__file__).parents[1]
DOCUMENTS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")), REPOSITORY / "recipes" / "README.md"]
RECIPES = sorted((REPOSITORY / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_every_key_reward_and_format_is_documented():
    from r1_recipes.arguments import GRPORecipeArguments

    text = (REPOSITORY / "docs" / "recipes.md").read_text(encoding="utf-8")
    keys = [f.name for f in dataclasses.fields(GRPORecipeArguments)]
    for name in (*keys, *REWARDS, *reward_parameters(REWARDS), *FORMATS):
        assert f"`{name}`" in text, name


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_says_what_it_is_and_stands_in_the_menu(path):
    header = path.read_text(encoding="utf-8").split("\n\n")[0]
    for heading in ("Follows:", "Hardware:", "Run:", "Override:", "Expect:", "Arithmetic:"):
        assert heading in header, heading
    assert f"recipes/{path.name}" in header
    assert f"({path.name})" in (REPOSITORY / "recipes" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_unsharded_recipes_keep_fp32_weights(path):
    """AdamW steps of 1e-6 vanish in bf16 weights; only ZeRO and FSDP keep an fp32 copy."""
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    sharded = re.search(r"accelerate_configs/(zero|fsdp)", path.read_text(encoding="utf-8"))
    assert sharded or recipe.get("use_peft") or recipe["dtype"] == "float32"
