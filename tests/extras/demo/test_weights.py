"""The embedded model where what it needs is missing."""

import importlib.util

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.demo.weights import smollm2_checkpoint


def test_the_embedded_model_without_gguf_names_the_extra_before_anything_is_downloaded(
    tmp_path, monkeypatch
):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "gguf" else found(name, *a)
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(
        RecipeError, match=r"^embedded:SmolLM2-135M-Instruct: .*gguf.* Fix: pip install .*\[demo\]"
    ) as error:
        smollm2_checkpoint()
    assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []
