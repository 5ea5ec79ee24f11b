"""What is secret by its name is used and never written."""

import dataclasses

from r1_recipes.common.files import HIDDEN, masked, masked_words
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
