"""Where a model's weights are."""

from __future__ import annotations

from pathlib import Path

from r1_recipes.common.errors import RecipeError, first_line, install_hint, unknown_name
from r1_recipes.models.embedded import EMBEDDED


def model_path(name: str, hub: str, revision: str | None = None) -> str:
    """Return a model id that Transformers can load: itself, the snapshot that ModelScope downloads, or an embedded model's folder."""
    prefix, _, embedded = name.partition(":")
    if prefix == "embedded":
        if embedded not in EMBEDDED:
            raise RecipeError("model_name_or_path: " + unknown_name("embedded model", embedded, EMBEDDED))
        return str(EMBEDDED[embedded]())
    if hub != "modelscope" or Path(name).exists():
        return name
    try:
        from modelscope import snapshot_download
    except ImportError as error:
        raise RecipeError(f"hub: modelscope cannot be used here ({error}): {install_hint('modelscope')}") from error
    try:
        # ModelScope's default branch is 'master'; 'main' is what TRL's model_revision defaults to.
        return snapshot_download(name, revision=None if revision in (None, "main") else revision)
    except Exception as error:
        raise RecipeError(f"model_name_or_path: {name!r} cannot be loaded from ModelScope: {first_line(error)}") from error
