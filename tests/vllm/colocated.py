"""GRPO with vLLM in the same process, on the CPU: ``python -m tests.vllm.colocated SYNC RECIPE
[--key value …]``.

SYNC is how the trainer's weights reach the engine:

- ``reload``: through vLLM's own ``reload_weights``, which takes weights under their names in a
checkpoint and packs them for its kernels.
- ``none``: not at all, which shows what the tests would see if the weights got lost.

TRL 1.16 loads them into the engine's parameters one by one. vLLM 0.31 has packed those for the
CPU's kernels where it can (bf16 needs AMX or the like), and what is packed has no ``weight_loader``
left: an AttributeError, at the first synchronisation.
"""

from __future__ import annotations

import sys
from typing import Any

from trl.generation import vllm_generation

from r1_recipes import grpo
from r1_recipes.recipe import load
from r1_recipes.training import vllm_lora  # noqa: F401  the repaired engine, before it is changed


def _reload(self: Any) -> None:
    runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
    # Clones: the trainer goes on to change its own.
    runner.reload_weights(
        weights_iterator=(
            (name, parameter.clone()) for name, parameter in self._iter_named_params()
        )
    )
    # Tied to the embedding, the output layer has no weights of its own to be reloaded, and would
    # keep the packed copy of the old ones.
    head = runner.model.lm_head
    head.quant_method.process_weights_after_loading(head)
    self.llm.reset_prefix_cache()


def main() -> None:
    """Run the recipe with weights that are synchronised as the first word says."""
    how, *words = sys.argv[1:]
    vllm_generation.VLLMGeneration.sync_weights = {"reload": _reload, "none": lambda self: None}[
        how
    ]
    # A run without a GPU goes without vLLM, or is refused, since TRL's way fails there.
    load.follow_machine = lambda *arguments: {}
    engine = vllm_generation.LLM
    # In the trainer's precision, so that both compute the same; and compiling the model would take
    # most of the test.
    vllm_generation.LLM = lambda *args, **options: engine(
        *args, **options, dtype="float32", enforce_eager=True
    )
    grpo.main(words)


if __name__ == "__main__":
    main()
