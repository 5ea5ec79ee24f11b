"""The vLLM server that a recipe trains with in ``vllm_mode: server``: its command line, derived
from the recipe.

``python -m r1_recipes.vllm_server recipes/NAME.yaml [--key value …] [--print] [-- FLAG …]``

Overrides are those of the training command. What follows ``--`` goes to ``vllm serve`` as it is,
after everything else, and so wins. The recipe's ``vllm_gpu_memory_utilization`` is a colocated
engine's share; a server takes TRL's own default for servers.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from r1_recipes.common import console, gpu
from r1_recipes.common.errors import RecipeError, install_hint
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.models.weights import model_path
from r1_recipes.recipe import load_recipe


def main(argv: Sequence[str] | None = None) -> None:
    """Become the server, or with ``--print`` write its command; exit with 2 if the recipe cannot be
    served.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    with console.reported_errors():
        if not argv or {"-h", "--help"} & set(argv):
            console.say(__doc__.strip())
            raise SystemExit(0 if argv else 2)
        command = server_command([word for word in argv if word != "--print"])
        if "--print" in argv:
            # TRL's trainers set the server's weights through endpoints that vLLM has in development
            # mode alone.
            console.say(f"VLLM_SERVER_DEV_MODE=1 {shlex.join(command)}")
            return
        if find_spec("vllm") is None:
            raise RecipeError(
                f"vLLM is not installed; {install_hint('vllm')}, or --print shows the "
                f"command for another machine"
            )
        if "bfloat16" in command and gpu.lacks_bf16():
            raise RecipeError(
                "bf16: this GPU has no bf16, which needs compute capability 8.0. Fix: --fp16 "
                "true --bf16 false, in training too"
            )
    os.execve(
        command[0], command, {"VLLM_NO_USAGE_STATS": "1", **os.environ, "VLLM_SERVER_DEV_MODE": "1"}
    )


def server_command(argv: Sequence[str]) -> list[str]:
    """Derive the server's command by TRL's own ``build_command``, which adds what its trainers need
    of a server.
    """
    cut = argv.index("--") if "--" in argv else len(argv)
    words, flags = list(argv[:cut]), list(argv[cut + 1 :])
    if not words or words[0].startswith("-"):
        raise RecipeError(f"the recipe comes first, got {shlex.join(argv) or 'nothing'}")
    method = (
        "distill"
        if {"teacher_model_name_or_path", "distill_with"} & read_yaml(Path(words[0])).keys()
        else "grpo"
    )
    # The command says nothing of where it was derived: with use_cpu, Transformers takes bf16 and
    # fp16 where there is no GPU, too.
    recipe = load_recipe([*words, "--use_cpu", "true"], method)
    model, training = recipe.model, recipe.training
    if model.load_in_4bit or model.load_in_8bit:
        why = (
            "a server cannot be sent quantized weights "
            "(https://github.com/huggingface/trl/issues/4973)"
        )
        raise RecipeError(
            f"{recipe.path}: load_in_4bit and load_in_8bit: {why}; leave them out, or train "
            f"with --use_vllm false"
        )
    if training.vllm_server_base_url:
        raise RecipeError(
            f"{recipe.path}: vllm_server_base_url: the server listens by vllm_server_host "
            f"and vllm_server_port; write these"
        )
    from trl.scripts.vllm_serve import ScriptArguments, build_command

    host = training.vllm_server_host
    arguments = ScriptArguments(
        model=model_path(model.model_name_or_path, recipe.script.hub, model.model_revision),
        revision=model.model_revision if model.model_revision != "main" else None,
        tensor_parallel_size=training.vllm_tensor_parallel_size,
        # On the machine itself its own name may mean a loopback address, where no other machine
        # could reach it.
        host=host if host in ("localhost", "::1") or host.startswith("127.") else "0.0.0.0",
        port=training.vllm_server_port,
        # What the trainer computes in, so that sampled and trained log probabilities are as close
        # as they can be.
        dtype="bfloat16"
        if training.bf16
        else "float16"
        if training.fp16
        else model.dtype or "auto",
        max_model_len=training.vllm_max_model_length,
        trust_remote_code=training.trust_remote_code,
        vllm_model_impl=training.vllm_model_impl,
    )
    # A flag that is typed comes later, and wins.
    return build_command(arguments, ["--seed", str(training.seed), *flags])


if __name__ == "__main__":
    main()
