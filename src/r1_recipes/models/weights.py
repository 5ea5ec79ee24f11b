"""Find a model's weights: on a hub, in a folder, or in an extra."""

import shutil
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.common.plugins import NAMES, load

_PROCESSOR_FILES = (
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)


def model_path(
    name: str, hub: str, revision: str | None = None, key: str = "model_name_or_path"
) -> str:
    """Return a model id that Transformers can load.

    It is the name itself, the snapshot that ModelScope downloads, or an embedded model's folder.

    Raises:
        RecipeError: There is no such folder or embedded model; the message names ``key``.
    """
    if name.startswith("embedded:"):
        if name not in NAMES["model"]:
            raise RecipeError(f"{key}: " + unknown_name("embedded model", name, NAMES["model"]))
        return str(load("model", name)())
    path = Path(name)
    if path.exists():
        return name
    # Transformers would look for a missing folder on the hub, for minutes without a network. A hub
    # id has at most one slash, and no user on the hub is called outputs.
    if name.startswith((".", "/", "~")) or len(path.parts) > 2 or path.parts[:1] == ("outputs",):
        raise RecipeError(
            f"{key}: {name}: no such folder (searched from {Path.cwd()}). Fix: a folder with a "
            "model, or a hub id"
        )
    if hub == "modelscope":
        from modelscope import snapshot_download

        # TRL's model_revision defaults to 'main', but ModelScope's default branch is 'master'.
        return snapshot_download(name, revision=None if revision in (None, "main") else revision)
    return name


def auto_class(config: Any) -> Any:
    """Return the auto class that keeps all of a checkpoint, also its vision tower."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText  # heavy

    pictures = (config.architectures or [""])[0].endswith("ForConditionalGeneration")
    return AutoModelForImageTextToText if pictures else AutoModelForCausalLM


def copy_processor(config: Any, folder: Path, source: str) -> None:
    """Copy the processor's files of a model that reads pictures.

    A run on text saves only the tokenizer, and vLLM does not load such a model without the rest.
    """
    from transformers.utils import cached_file  # heavy

    for name in _PROCESSOR_FILES if hasattr(config, "vision_config") else ():
        found = cached_file(
            source,
            name,
            revision=config._commit_hash,  # that of the weights is in the cache
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        if found:
            shutil.copyfile(found, folder / name)  # not its mode, which may be read-only


def repair_generation_config(model: Any) -> None:
    """Make the generation config consistent.

    Transformers refuses to save sampling values with ``do_sample: false``, and would do so after
    the last step.
    """
    config: Any = getattr(model, "generation_config", None)
    try:
        if config is not None:
            config.validate(strict=True)
    except ValueError:
        config.do_sample = True
