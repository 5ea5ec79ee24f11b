"""What is secret by its name is used and never written."""

import dataclasses

import pytest

from r1_recipes.common.files import HIDDEN, masked, masked_words
from r1_recipes.recipe.load import load_recipe
from r1_recipes.recipe.types import argument_types

SECRET = ("token", "hub_token", "hf-token", "auth_token", "OPENAI_API_KEY", "aws_secret_access_key")
PLAIN = ("max_prompt_tokens", "eos_token", "pad_token", "pad_token_id", "image_token", "keep")


def test_secrets_are_recognised_by_name_at_any_depth():
    for names, shown in ((SECRET, HIDDEN), (PLAIN, "abc")):
        for name in names:
            assert masked({"options": [{name: "abc"}]}) == {"options": [{name: shown}]}, name
    methods = ("grpo", "sft", "distill", "reward", "generate", "evaluate")
    kinds = {kind for method in methods for kind in argument_types(method)}
    keys = {f.name for kind in kinds for f in dataclasses.fields(kind)}
    assert {key for key in keys if masked("abc", key) == HIDDEN} == {"hub_token"}


def test_a_command_line_shows_no_secret():
    words = ["a.yaml", "--hub_token", "abc", "--seed=1", "--hub-token=abc", "--hub", "huggingface"]
    shown = ["a.yaml", "--hub_token", HIDDEN, "--seed=1", f"--hub-token={HIDDEN}", *words[-2:]]
    assert masked_words(words) == shown


@pytest.mark.parametrize("method", ["sft", "grpo"])
def test_a_recipe_has_its_secrets_and_its_record_has_not(write_recipe, method):
    path = write_recipe(method, model_init_kwargs={"token": "abc"})
    recipe = load_recipe([path, "--hub_token", "abc"], method)
    assert recipe.training.hub_token == recipe.training.model_init_kwargs["token"] == "abc"
    assert recipe.settings["model_init_kwargs"] == {"token": HIDDEN}
    assert "hub_token" not in recipe.settings
