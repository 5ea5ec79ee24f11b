"""Models that are not there or cannot be read: one line, at once, about the model."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.models.load import model_path

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
    with pytest.raises(RecipeError, match=r"model_name_or_path: .*: no such folder"):
        model_path(name, "huggingface")
    with pytest.raises(RecipeError, match=r"^teacher_model_name_or_path: "):
        model_path(name, "huggingface", key="teacher_model_name_or_path")
