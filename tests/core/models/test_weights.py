"""Models that are not there or cannot be read: one line, at once, about the model."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from r1_recipes.common import files
from r1_recipes.common.errors import RecipeError
from r1_recipes.models.weights import model_path
from r1_recipes.recipe import load_recipe
from r1_recipes.runs import run_dir

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "name", ["outputs/demo/grop", "outputs/grpo", "./demo", "/no/such/model", "~/model", "a/b/c"]
)
def test_a_missing_folder_is_not_searched_on_a_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outputs" / "demo" / "grpo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "get_session", None)
    with pytest.raises(RecipeError, match=r"model_name_or_path: .*: no such folder") as error:
        model_path(name, "huggingface")
    with pytest.raises(RecipeError, match=r"^teacher_model_name_or_path: "):
        model_path(name, "huggingface", key="teacher_model_name_or_path")
    assert ("Did you mean outputs/demo/grpo?" in str(error.value)) == (name == "outputs/demo/grop")


def test_a_hub_that_does_not_answer_is_one_line_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    began = time.monotonic()
    with pytest.raises(
        RecipeError,
        match=r"'nobody/nothing' is not on this machine, and http://127\.0\.0\.1:9 does not answer "
        r"\(.*Fix: ",
    ):
        model_path("nobody/nothing", "huggingface", "main")
    assert time.monotonic() - began < 10
    # What is in the cache needs no hub.
    monkeypatch.setattr(
        huggingface_hub, "try_to_load_from_cache", lambda *args, **options: "config.json"
    )
    assert model_path("nobody/nothing", "huggingface") == "nobody/nothing"


def denied(*args: object, **options: object) -> None:
    raise PermissionError(13, "Permission denied", "/home/other/model.safetensors")


def test_a_model_that_cannot_be_read_is_called_so(
    write_recipe: Callable[..., str],
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "run").mkdir()
    recipe = load_recipe([write_recipe("grpo")], "grpo")
    monkeypatch.setattr(files, "digest", denied)
    with pytest.raises(
        RecipeError,
        match=rf"model_name_or_path: {tiny_model}: .*Permission denied.* Fix: ask its owner",
    ):
        run_dir.claim(run_dir.Run(recipe, tmp_path / "run", []))
