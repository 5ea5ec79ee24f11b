"""The vLLM server that a recipe trains with in ``vllm_mode: server``: its command line, derived from the recipe.

``python -m r1_recipes.vllm_server recipes/NAME.yaml [--key value …] [--print] [-- FLAG …]``

Overrides are those of the training command, so that both are started with the same words. What follows ``--`` goes to ``vllm serve`` as
it is, after everything else, and so wins. The recipe's ``vllm_gpu_memory_utilization`` is for an engine that shares the trainer's GPUs; the
server, which shares them with nobody, takes TRL's default.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError, install_hint
from r1_recipes.models.weights import model_path
from r1_recipes.recipe import load_recipe
from r1_recipes.recipe.text import read_yaml

if TYPE_CHECKING:
    from r1_recipes.recipe.load import Recipe

logger = logging.getLogger("r1_recipes.vllm_server")  # under `python -m` this module is called __main__

# TRL's trainers set the server's weights through endpoints that vLLM has in development mode alone.
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1"}
_EVERYWHERE = "0.0.0.0"


def main(argv: Sequence[str] | None = None) -> None:
    """Become the server, or with ``--print`` write its command; exit with 2 if the recipe cannot be served."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or {"-h", "--help"} & set(argv):
        console.say(__doc__.strip())
        raise SystemExit(0 if argv else 2)
    shown = "--print" in argv
    with console.reported_errors():
        command = server_command([word for word in argv if word != "--print"])
        if not shown and find_spec("vllm") is None:
            hint = install_hint("vllm")
            raise RecipeError(f"{argv[0]}: vLLM is not installed; {hint}, or --print shows the command for another machine")
    if shown:
        console.say(" ".join(f"{name}={value}" for name, value in ENVIRONMENT.items()) + " " + shlex.join(command))
        return
    logger.info("%s", shlex.join(command))
    os.execve(command[0], command, {**os.environ, **ENVIRONMENT})


def server_command(argv: Sequence[str]) -> list[str]:
    """Derive the server's command by TRL's own ``build_command``, which adds what its trainers need of a server.

    Args:
        argv: the recipe's path, overrides as ``--key value``, and after ``--`` flags of ``vllm serve``.

    Raises:
        RecipeError: the recipe cannot be read, is none of a method that generates, or trains quantized weights.
    """
    cut = argv.index("--") if "--" in argv else len(argv)
    words, flags = list(argv[:cut]), list(argv[cut + 1 :])
    # The command says nothing of where it was derived: with use_cpu, Transformers takes bf16 and fp16 where there is no GPU, too.
    recipe = load_recipe([*words, "--use_cpu", "true", "--strict_hardware", "false"], _method(words))
    model, training = recipe.model, recipe.training
    if model.load_in_4bit or model.load_in_8bit:
        raise RecipeError(
            f"{recipe.path}: load_in_4bit and load_in_8bit: a server cannot be sent quantized weights "
            "(https://github.com/huggingface/trl/issues/4973); leave them out, or train with --use_vllm false"
        )
    from trl.scripts.vllm_serve import ScriptArguments, build_command

    host, port = _address(recipe)
    # What the trainer computes in, so that sampled and trained log probabilities are as close as they can be.
    dtype = "bfloat16" if training.bf16 else "float16" if training.fp16 else model.dtype or "auto"
    arguments = ScriptArguments(
        model=model_path(model.model_name_or_path, recipe.script.hub, model.model_revision),
        revision=model.model_revision if model.model_revision != "main" else None,
        tensor_parallel_size=training.vllm_tensor_parallel_size,
        host=host,
        port=port,
        dtype=dtype,
        max_model_len=training.vllm_max_model_length,
        trust_remote_code=training.trust_remote_code,
        vllm_model_impl=training.vllm_model_impl,
    )
    return build_command(arguments, flags)


def _method(words: Sequence[str]) -> str:
    try:
        return "distill" if "teacher_model_name_or_path" in read_yaml(Path(words[0])) else "grpo"
    except (RecipeError, IndexError):  # load says what is wrong with the file
        return "grpo"


def _address(recipe: Recipe) -> tuple[str, int]:
    """Derive host and port to listen on from where the trainer looks for the server."""
    training = recipe.training
    host, port = training.vllm_server_host, training.vllm_server_port
    if training.vllm_server_base_url:
        try:
            url = urlsplit(training.vllm_server_base_url)
            host, port = url.hostname, url.port
        except ValueError as error:
            raise RecipeError(f"{recipe.path}: vllm_server_base_url: {training.vllm_server_base_url!r}: {error}") from error
        if not host or not port:
            raise RecipeError(f"{recipe.path}: vllm_server_base_url: found {training.vllm_server_base_url!r}; http://HOST:PORT")
    return (host if _is_loopback(host) else _EVERYWHERE), port


def _is_loopback(host: str) -> bool:
    """Whether only this machine can mean it; a machine's own name may be loopback on the machine itself, and does not count."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


if __name__ == "__main__":
    main()
