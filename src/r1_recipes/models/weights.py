"""Where a model's weights are: a hub, a folder, or what an extra carries."""

import os
from pathlib import Path

from r1_recipes.common import extras
from r1_recipes.common.errors import RecipeError, first_line, install_hint, nearest, unknown_name


def model_path(
    name: str, hub: str, revision: str | None = None, key: str = "model_name_or_path"
) -> str:
    """Return a model id that Transformers can load: itself, the snapshot that ModelScope downloads,
    or an embedded model's folder.

    A RecipeError names ``key``.
    """
    if name.startswith("embedded:"):
        embedded = extras.installed()["model"]
        if name not in embedded:
            raise RecipeError(f"{key}: " + unknown_name("embedded model", name, embedded))
        try:
            return str(extras.load(embedded[name])())
        except OSError as error:
            told = (
                f"{key}: {name}: its place cannot be written: {error.strerror} ({error.filename})"
            )
            raise RecipeError(
                f"{told}. Fix: XDG_CACHE_HOME=FOLDER, one that can be written"
            ) from error
    if Path(name).exists():
        return name
    _check_local(name, key)
    if hub != "modelscope":
        _check_hub(name, revision, key)
        return name
    try:
        from modelscope import snapshot_download

        # ModelScope's default branch is 'master'; 'main' is what TRL's model_revision defaults to.
        return snapshot_download(name, revision=None if revision in (None, "main") else revision)
    except Exception as error:  # the package, the network, no such model
        fix = (
            install_hint("modelscope")
            if isinstance(error, ImportError)
            else "the name that it has there, or --hub huggingface"
        )
        raise RecipeError(
            f"{key}: {name!r} cannot be loaded from ModelScope: {first_line(error)} Fix: {fix}"
        ) from error


def _check_local(name: str, key: str) -> None:
    """Refuse at once a folder that is not there: a hub would be asked for it, for more than a
    minute where there is none.
    """
    path = Path(name)
    # A hub id has one slash at most, and no user is called outputs.
    if name.startswith((".", "/", "~")) or len(path.parts) > 2 or path.parts[:1] == ("outputs",):
        close = nearest(
            path.name, [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        )
        hint = f" Did you mean {path.parent / close[0]}?" if close else ""
        raise RecipeError(
            f"{key}: {name}: no such folder (looked from {Path.cwd()}).{hint} Fix: a folder "
            f"with a model, or a hub id"
        )


def _check_hub(name: str, revision: str | None, key: str) -> None:
    """Refuse in seconds a model that is not in the cache, where no hub answers: Transformers tries
    each of its files again and again.
    """
    import httpx
    from huggingface_hub import constants, get_session, try_to_load_from_cache

    try:
        cached = isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
        if not cached and not constants.HF_HUB_OFFLINE:
            get_session().head(constants.ENDPOINT, timeout=10)
    except httpx.HTTPError as error:
        told = (
            f"{key}: {name!r} is not on this machine, and {constants.ENDPOINT} does not answer "
            f"({first_line(error)[:-1]})"
        )
        raise RecipeError(
            f"{told}. Fix: a local folder, HF_ENDPOINT=URL of a mirror, or "
            f"embedded:SmolLM2-135M-Instruct"
        ) from error
    except ValueError:  # no id that a hub could have; loading says so without asking
        return


def cannot_load(name: str, error: Exception) -> RecipeError:
    """The error for a model whose files cannot be read, with the file where it is its
    permissions.
    """
    closed = [str(file) for file in sorted(Path(name).glob("*")) if not os.access(file, os.R_OK)]
    if closed:
        found, fix = (
            f"{closed[0]}: Permission denied",
            f"let its owner run chmod -R a+rX {name}, or name a copy of yours",
        )
    else:
        found, fix = (
            first_line(error)[:-1],
            "a folder that holds a whole model (config.json, weights, tokenizer), or another id",
        )
    return RecipeError(f"model_name_or_path: {name!r} cannot be loaded ({found}). Fix: {fix}")
