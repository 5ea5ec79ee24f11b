"""Start the vLLM server that a recipe trains with in vllm_mode: server.

    python -m r1_recipes.vllm_server recipes/NAME.yaml [--key value ...] [--print] [-- FLAG ...]

Use the overrides of the training command. --print shows the command without running it. Flags
after -- are passed to `vllm serve`. They come last, so they win. The server takes TRL's default
share of the GPU: the recipe's vllm_gpu_memory_utilization is that of a colocated engine.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import read_yaml
from r1_recipes.models.load import model_path
from r1_recipes.recipe import load_recipe


def main(argv: Sequence[str] | None = None) -> None:
    """Replace this process by the server, or print its command with ``--print``.

    Exit with 2 if the recipe cannot be served.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    with console.reported_errors():
        if not argv or {"-h", "--help"} & set(argv):
            console.say(__doc__.strip())
            raise SystemExit(0 if argv else 2)
        command = server_command([word for word in argv if word != "--print"])
        if "--print" in argv:
            # TRL's trainers send weights to endpoints that vLLM has only in development mode.
            console.say(f"VLLM_SERVER_DEV_MODE=1 {shlex.join(command)}")
            return
        if find_spec("vllm") is None:
            raise RecipeError(
                "vLLM is not installed. Fix: pip install -c constraints.txt -e '.[vllm]'"
            )
    os.execve(
        command[0], command, {"VLLM_NO_USAGE_STATS": "1", **os.environ, "VLLM_SERVER_DEV_MODE": "1"}
    )


def server_command(argv: Sequence[str]) -> list[str]:
    """Return the server's command, from TRL's ``build_command``, which adds what trainers need."""
    cut = argv.index("--") if "--" in argv else len(argv)
    words, flags = argv[:cut], argv[cut + 1 :]
    of_teacher = "teacher_model_name_or_path" in read_yaml(Path(words[0]))
    # The command must not depend on this machine: with use_cpu, Transformers accepts bf16 and fp16
    # without a GPU too. Nor on this process being alone: the launchers say how many will train.
    count = int(os.environ.get("R1_RECIPES_PROCESSES", 1))
    recipe = load_recipe(
        [*words, "--use_cpu", "true"], "distill" if of_teacher else "grpo", world_size=count
    )
    model, training = recipe.model, recipe.training
    from trl.scripts.vllm_serve import ScriptArguments, build_command

    # A machine's own name may stand for a loopback address there, which others cannot reach.
    url = urlsplit(training.vllm_server_base_url or "")  # it goes before host and port
    host = url.hostname or training.vllm_server_host
    local = host in ("localhost", "127.0.0.1")
    # The trainer's precision: log-probabilities of sampling and training are as close as possible.
    dtype = "bfloat16" if training.bf16 else "float16" if training.fp16 else model.dtype or "auto"
    arguments = ScriptArguments(
        model=model_path(model.model_name_or_path, recipe.script.hub, model.model_revision),
        revision=model.model_revision,
        tensor_parallel_size=training.vllm_tensor_parallel_size,
        host=host if local else "0.0.0.0",
        port=url.port or training.vllm_server_port,
        dtype=dtype,
        max_model_len=training.vllm_max_model_length,
        trust_remote_code=training.trust_remote_code,
        vllm_model_impl=training.vllm_model_impl,
    )
    return build_command(arguments, ["--seed", str(training.seed), *flags])


if __name__ == "__main__":
    main()
