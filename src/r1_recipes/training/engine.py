"""TRL's vLLM engine with three changes: exact merged adapters, a bounded batch, the recipe's seed.

This module is heavy: it imports TRL, and so torch.
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
from torch.distributed.fsdp import FSDPModule
from transformers import set_seed
from trl.generation.vllm_generation import VLLMGeneration

from r1_recipes.common.errors import RecipeError

# TRL requests a whole generation batch at once, and fixes vLLM's tokens per pass at 4,096, which
# must not be fewer than the sequences. vLLM queues further sequences.
MAX_SEQUENCES = 1024


class Engine(VLLMGeneration):
    """TRL's engine, with ``seed`` for its sampling."""

    def __init__(self, *, seed: int, max_num_seqs: int, **options: Any) -> None:
        self._seed = seed
        super().__init__(max_num_seqs=min(max_num_seqs, MAX_SEQUENCES), **options)

    def _init_vllm(self) -> None:
        if is_peft_model(self.model) and self._dist.fsdp_version == 1:
            raise RecipeError(
                "use_peft: TRL cannot send adapters of FSDP 1 to vLLM. Fix: fsdp_version: 2 in the "
                "accelerate config"
            )
        super()._init_vllm()
        if self.mode == "colocate":
            # vLLM samples with this process's global generators of NumPy and torch. It has just
            # seeded them with the number of its group of ranks, so all recipe seeds would give the
            # same samples. All ranks of a group must have the same seed.
            groups = self.accelerator.num_processes // self.tensor_parallel_size
            group = self.accelerator.process_index // self.tensor_parallel_size
            set_seed((self._seed * groups + group) % 2**32)

    def generate(self, *arguments, **options):
        """Generate completions.

        All ranks of a tensor-parallel group use the random state of its first rank. Their states
        may differ, because a resumed run restores each rank's state and a reward may use NumPy's
        generator.
        """
        if self.mode == "colocate" and self.tensor_parallel_size > 1:
            states = random_states()
            torch.distributed.broadcast_object_list(states, group=self.tp_group, group_src=0)
            set_random_states(states)
        return super().generate(*arguments, **options)

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the parameters that vLLM is sent.

        A layer with adapters is merged in a copy, because TRL's merge and unmerge would change bf16
        weights (https://github.com/huggingface/trl/issues/6688).
        """
        for module in self.model.modules():
            # A forward pass without gradients (an evaluation's) leaves the last layers whole, and
            # TRL sends parts only.
            if isinstance(module, FSDPModule):
                module.reshard()
        if not is_peft_model(self.model):
            yield from super()._iter_named_params()
            return
        layers = {}
        for name, module in self.model.named_modules():
            if isinstance(module, BaseTunerLayer):
                base = name.removeprefix("base_model.model.").replace(".base_layer", "")
                layers[f"{self._fix_param_name_to_vllm(base)}.weight"] = module
        with _without_merging(self.model):
            for name, weight in super()._iter_named_params():
                layer = layers.pop(name, None)
                yield name, weight if layer is None else self._merged(layer, weight)
        if layers:
            raise RecipeError(
                f"lora_target_modules: TRL cannot send {', '.join(layers)} to vLLM, because its "
                f"weight is tied to another layer's. Fix: remove it from lora_target_modules"
            )

    def _merged(self, layer: Any, weight: torch.Tensor) -> torch.Tensor:
        """Return a layer's full ``weight`` with its active adapters, added in fp32.

        The layer keeps its own parameters.
        """
        base = layer.get_base_layer().weight
        saved = [(module, dict(module._parameters)) for module in layer.modules()]
        try:
            for module, parameters in saved:
                for name, parameter in parameters.items():
                    if parameter is not None:
                        data = weight if parameter is base else self._whole(parameter.data)
                        data = data.to(torch.float32, copy=True)
                        module._parameters[name] = torch.nn.Parameter(data, requires_grad=False)
            layer.merge()
            return layer.get_base_layer().weight.data.to(weight.dtype)
        finally:
            layer.merged_adapters.clear()
            for module, parameters in saved:
                module._parameters.update(parameters)

    def _whole(self, piece: Any) -> torch.Tensor:
        """Return the full tensor of a piece that FSDP 2 has sharded, maybe on the CPU."""
        piece = piece.to(self.accelerator.device)
        return piece.full_tensor() if hasattr(piece, "full_tensor") else piece


def random_states() -> list[Any]:
    """Return the generator states of NumPy, torch and this process's GPU (``None`` without one)."""
    return [
        numpy.random.get_state(),
        torch.get_rng_state(),
        torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    ]


def set_random_states(states: list[Any]) -> None:
    """Set the generators to states that :func:`random_states` returned."""
    numbers, tensors, device = states
    numpy.random.set_state(numbers)
    torch.set_rng_state(tensors)
    if device is not None:
        torch.cuda.set_rng_state(device)


@contextlib.contextmanager
def _without_merging(model: Any) -> Iterator[None]:
    """Let TRL iterate over a PEFT model's parameters without merging the adapters.

    TRL would call ``merge_adapter``, which PEFT forwards to the inner model.
    """
    model.merge_adapter = model.unmerge_adapter = lambda: None
    try:
        yield
    finally:
        del model.merge_adapter, model.unmerge_adapter


@contextlib.contextmanager
def engine_of(trainer: type, seed: int) -> Iterator[None]:
    """Make a TRL trainer that is built in this block use :class:`Engine`."""
    with contextlib.ExitStack() as stack:
        # Some trainers import the engine when they are built.
        modules = {sys.modules[VLLMGeneration.__module__]}
        modules |= {sys.modules[base.__module__] for base in trainer.__mro__}
        for module in modules:
            if hasattr(module, "VLLMGeneration"):
                stack.enter_context(
                    attributes_set(module, VLLMGeneration=partial(Engine, seed=seed))
                )
        yield


@contextlib.contextmanager
def attributes_set(owner: object, **values: Any) -> Iterator[None]:
    """Set attributes of an object or module in this block, and restore them afterwards."""
    before = {name: getattr(owner, name) for name in values}
    vars(owner).update(values)
    try:
        yield
    finally:
        vars(owner).update(before)
