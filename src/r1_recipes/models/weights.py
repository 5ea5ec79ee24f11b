"""Find a model's weights: on a hub, in a folder, or in an extra."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line, install_hint, nearest, unknown_name
from r1_recipes.common.names import NAMES, load

logger = logging.getLogger(__name__)

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
    Raise RecipeError, which names ``key``, if the model cannot be found.
    """
    if name.startswith("embedded:"):
        if name not in NAMES["model"]:
            raise RecipeError(f"{key}: " + unknown_name("embedded model", name, NAMES["model"]))
        try:
            return str(load("model", name)())
        except OSError as error:
            raise RecipeError(
                f"{key}: {name}: cannot be written to the cache: {error.strerror} "
                f"({error.filename}). Fix: XDG_CACHE_HOME=FOLDER, a folder that you may write"
            ) from error
    if Path(name).exists():
        return name
    _check_local(name, key)
    if hub != "modelscope":
        _check_hub(name, revision, key)
        return name
    try:
        from modelscope import snapshot_download

        # TRL's model_revision defaults to 'main', but ModelScope's default branch is 'master'.
        return snapshot_download(name, revision=None if revision in (None, "main") else revision)
    except Exception as error:  # the package, the network or the model is missing
        fix = "the model's name on ModelScope, or --hub huggingface"
        if isinstance(error, ImportError):
            fix = install_hint("modelscope")
        raise RecipeError(
            f"{key}: {name!r} cannot be loaded from ModelScope: {first_line(error)} Fix: {fix}"
        ) from error


def auto_class(config: Any) -> Any:
    """Return the auto class that keeps all of a checkpoint, also its vision tower."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText  # heavy

    pictures = (config.architectures or [""])[0].endswith("ForConditionalGeneration")
    return AutoModelForImageTextToText if pictures else AutoModelForCausalLM


def copy_processor(config: Any, folder: Path, *sources: str) -> None:
    """Copy the processor's files of a model that reads pictures, unless the folder has one.

    A run on text saves only the tokenizer, and vLLM does not load such a model without the rest.
    Take the first of the sources that has any; without sources, the one that the configuration
    came from. Warn if there is none: the other processes wait for the weights, which matter more.
    """
    has_one = any((folder / file).exists() for file in _PROCESSOR_FILES)
    if has_one or not hasattr(config, "vision_config"):
        return
    from transformers.utils import cached_file  # heavy

    cause = "it has none"
    for source in sources or (config.name_or_path,):
        for file in _PROCESSOR_FILES:
            try:
                # The commit of the configuration: it is in the cache, and no other one fits.
                found = cached_file(
                    source,
                    file,
                    revision=config._commit_hash,
                    _raise_exceptions_for_missing_entries=False,
                )
                if found:
                    shutil.copyfile(found, folder / file)  # not its mode, which may be read-only
            except Exception as error:  # permissions, network, disk
                cause = first_line(error)[:-1]
        if any((folder / file).exists() for file in _PROCESSOR_FILES):
            return
    logger.warning(
        "%s: the model's processor could not be copied (%s), and vLLM needs it. Fix: copy %s",
        folder,
        cause,
        _PROCESSOR_FILES[1],
    )


def _check_local(name: str, key: str) -> None:
    """Refuse a missing folder at once.

    Otherwise Transformers would look for it on the hub, for more than a minute without a network.
    """
    path = Path(name)
    # A hub id has at most one slash, and no user on the hub is called outputs.
    if name.startswith((".", "/", "~")) or len(path.parts) > 2 or path.parts[:1] == ("outputs",):
        siblings = path.parent.iterdir() if path.parent.is_dir() else ()
        close = nearest(path.name, [file.name for file in siblings])
        hint = f" Did you mean {path.parent / close[0]}?" if close else ""
        raise RecipeError(
            f"{key}: {name}: no such folder (searched from {Path.cwd()}).{hint} Fix: a folder "
            f"with a model, or a hub id"
        )


def _check_hub(name: str, revision: str | None, key: str) -> None:
    """Refuse in seconds a model that is not in the cache if the hub does not answer.

    Transformers would try each of its files again and again.
    """
    import httpx
    from huggingface_hub import constants, get_session, try_to_load_from_cache

    try:
        cached = isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
        if not cached and not constants.HF_HUB_OFFLINE:
            get_session().head(constants.ENDPOINT, timeout=10)
    except httpx.HTTPError as error:
        raise RecipeError(
            f"{key}: {name!r} is not on this machine, and {constants.ENDPOINT} does not answer "
            f"({first_line(error)[:-1]}). Fix: a local folder, HF_ENDPOINT=URL of a mirror, or "
            "embedded:SmolLM2-135M-Instruct"
        ) from error
    except ValueError:  # not a valid hub id: loading reports it without a request
        return


def cannot_load(name: str, error: Exception) -> RecipeError:
    """Return the error for a model whose files cannot be read.

    It names the file if its permissions are the cause.
    """
    unreadable = [
        str(file) for file in sorted(Path(name).glob("*")) if not os.access(file, os.R_OK)
    ]
    if unreadable:
        cause = f"{unreadable[0]}: Permission denied"
        fix = f"ask its owner to run chmod -R a+rX {name}, or use your own copy"
    else:
        cause = first_line(error)[:-1]
        fix = "a folder with a complete model (config.json, weights, tokenizer), or another id"
    return RecipeError(f"model_name_or_path: {name!r} cannot be loaded ({cause}). Fix: {fix}")


def repair_generation_config(model: Any) -> None:
    """Make the generation config consistent.

    Transformers refuses to save sampling values with ``do_sample: false``, and would do so after
    the last step.
    """
    config = getattr(model, "generation_config", None)
    if config is None:
        return
    try:
        config.validate(strict=True)
    except ValueError as error:
        config.do_sample = True
        logger.warning(
            "the model's generation_config.json contradicts itself (%s), so it is saved with "
            "do_sample: true",
            first_line(error)[:-1],
        )
