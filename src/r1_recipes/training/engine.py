"""TRL's vLLM engine as recipes need it: adapters sent without touching the base, a bounded batch,
the recipe's seed.

Heavy: imports TRL, and so torch.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy
import torch
from accelerate.utils import is_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import set_seed
from trl.generation.vllm_generation import VLLMGeneration

from r1_recipes.common.errors import RecipeError

# TRL asks for a whole generation batch at once, and fixes vLLM's tokens a pass at 4,096, which must
# not be fewer than the sequences. vLLM queues what is above.
MAX_SEQUENCES = 1024


class Engine(VLLMGeneration):
    """TRL's engine, with ``seed`` for its sampling."""

    def __init__(self, *, seed: int, max_num_seqs: int, **options: Any) -> None:
        self._seed = seed
        super().__init__(max_num_seqs=min(max_num_seqs, MAX_SEQUENCES), **options)

    def _init_vllm(self) -> None:
        if is_peft_model(self.model) and self._dist.fsdp_version == 1:
            raise RecipeError(
                "use_peft: adapters of FSDP 1 cannot be sent to vLLM. Fix: accelerate's "
                "fsdp_version: 2"
            )
        super()._init_vllm()
        if self.mode == "colocate":
            # vLLM draws from NumPy's and torch's global generators of this process, and has just
            # set them (and Python's) to the number of its group of ranks: every recipe's seed would
            # sample the same stream. All ranks of a group must draw alike.
            groups = self.accelerator.num_processes // self.tensor_parallel_size
            group = self.accelerator.process_index // self.tensor_parallel_size
            set_seed((self._seed * groups + group) % 2**32)

    def generate(self, *arguments, **options):
        """Generate; all ranks of a tensor-parallel group draw from the generators of its first,
        however they have come apart since.

        A run that goes on restores those of each rank, and a reward may have drawn from NumPy's.
        """
        if self.mode == "colocate" and self.tensor_parallel_size > 1:
            states = random_states()
            torch.distributed.broadcast_object_list(states, group=self.tp_group, group_src=0)
            set_random_states(states)
        return super().generate(*arguments, **options)

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what vLLM is sent; a layer with adapters is merged in a copy, since bf16 does not
        survive TRL's merge and unmerge.

        See https://github.com/huggingface/trl/issues/6688.
        """
        if not is_peft_model(self.model):
            yield from super()._iter_named_params()
            return
        layers = {
            self._sent_name(name): module
            for name, module in self.model.named_modules()
            if isinstance(module, BaseTunerLayer)
        }
        with _without_merging(self.model):
            for name, weight in super()._iter_named_params():
                layer = layers.pop(name, None)
                yield name, weight if layer is None else self._merged(layer, weight)
        if layers:
            raise RecipeError(
                f"lora_target_modules: vLLM cannot be sent {', '.join(layers)}, whose weight "
                f"is tied to another layer's. Fix: leave it out"
            )

    def _sent_name(self, module: str) -> str:
        return (
            self._fix_param_name_to_vllm(
                module.removeprefix("base_model.model.").replace(".base_layer", "")
            )
            + ".weight"
        )

    def _merged(self, layer: Any, weight: torch.Tensor) -> torch.Tensor:
        """Return a layer's whole ``weight`` with its active adapters, added up in fp32; the layer
        keeps its own parameters.
        """
        base = layer.get_base_layer().weight
        kept = [(module, dict(module._parameters)) for module in layer.modules()]
        try:
            for module, parameters in kept:
                for name, parameter in parameters.items():
                    if parameter is not None:
                        data = weight if parameter is base else self._whole(parameter.data)
                        module._parameters[name] = torch.nn.Parameter(
                            data.to(torch.float32, copy=True), requires_grad=False
                        )
            layer.merge()
            return layer.get_base_layer().weight.data.to(weight.dtype)
        finally:
            layer.merged_adapters.clear()
            for module, parameters in kept:
                module._parameters.update(parameters)

    def _whole(self, piece: Any) -> torch.Tensor:
        """Gather a tensor that FSDP 2 has divided, maybe on the CPU."""
        piece = piece.to(self.accelerator.device)
        return piece.full_tensor() if hasattr(piece, "full_tensor") else piece


def random_states() -> list[Any]:
    """Return the states of the generators of NumPy, torch and this process's GPU (``None`` without
    one).
    """
    return [
        numpy.random.get_state(),
        torch.get_rng_state(),
        torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    ]


def set_random_states(states: list[Any]) -> None:
    """Set the generators to what :func:`random_states` returned."""
    numbers, tensors, device = states
    numpy.random.set_state(numbers)
    torch.set_rng_state(tensors)
    if device is not None:
        torch.cuda.set_rng_state(device)


@contextlib.contextmanager
def _without_merging(model: Any) -> Iterator[None]:
    """Let TRL go through the parameters of a PEFT model, whose own ``merge_adapter`` is that of the
    model inside.
    """
    model.merge_adapter = model.unmerge_adapter = lambda: None
    try:
        yield
    finally:
        del model.merge_adapter, model.unmerge_adapter


@contextlib.contextmanager
def engine_of(trainer: type, seed: int) -> Iterator[None]:
    """Let a trainer of TRL's that is built meanwhile make our engine."""
    with contextlib.ExitStack() as stack:
        for module in {sys.modules[base.__module__] for base in trainer.__mro__}:
            if hasattr(module, "VLLMGeneration"):
                stack.enter_context(
                    attributes_set(module, VLLMGeneration=partial(Engine, seed=seed))
                )
        yield


@contextlib.contextmanager
def attributes_set(owner: object, **values: Any) -> Iterator[None]:
    """Give an object or a module these attributes within the block, and then those that it had."""
    before = {name: getattr(owner, name) for name in values}
    vars(owner).update(values)
    try:
        yield
    finally:
        vars(owner).update(before)
