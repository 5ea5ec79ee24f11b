"""Models that are not there or cannot be read: one line, at once, about the model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from transformers import GenerationConfig

from r1_recipes.common.errors import RecipeError
from r1_recipes.models.load import model_path, repair_generation_config

pytestmark = pytest.mark.slow


def test_a_generation_config_that_cannot_be_saved_is_refused_before_the_run():
    model = SimpleNamespace(generation_config=GenerationConfig(do_sample=False, temperature=0.6))
    repair_generation_config(model)
    model.generation_config.validate(strict=True)
    model.generation_config.length_penalty = 0.9  # of beams
    with pytest.raises(ValueError, match="`length_penalty`"):
        repair_generation_config(model)


@pytest.mark.parametrize(
    "name", ["outputs/demo/grop", "outputs/grpo", "./demo", "/no/such/model", "~/model", "a/b/c"]
)
def test_a_missing_folder_is_not_searched_on_a_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outputs" / "demo" / "grpo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "get_session", None)
    with pytest.raises(RecipeError, match=r"model_name_or_path: .*: no such folder"):
        model_path(name, "huggingface")
    with pytest.raises(RecipeError, match=r"^teacher_model_name_or_path: "):
        model_path(name, "huggingface", key="teacher_model_name_or_path")
