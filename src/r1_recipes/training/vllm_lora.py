"""LoRA weights for vLLM without touching the base model. Importing it repairs TRL's engine.

TRL 1.16 merges adapters into the bf16 base before each synchronisation and takes them out again
(generation/vllm_generation.py:448-470). Both round, so the frozen base drifts: 1 % after 200
synchronisations, and whoever loads the saved adapters gets another policy than the trained one
(https://github.com/huggingface/trl/issues/6688, open).

Heavy: imports TRL, and so torch.
"""

from collections.abc import Iterator
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch.distributed.fsdp import FSDPModule
from trl.generation.vllm_generation import VLLMGeneration

from r1_recipes.common.errors import RecipeError

_trl_params = VLLMGeneration._iter_named_params


def merged_params(self: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the names and weights that vLLM is sent, adapters added in fp32 and rounded once."""
    for module in self.model.modules():
        # A forward pass without gradients (an evaluation's) leaves FSDP's last layers whole, and
        # TRL sends parts only.
        if isinstance(module, FSDPModule):
            module.reshard()
    if not is_peft_model(self.model):
        yield from _trl_params(self)
        return
    layers = {}
    for name, layer in self.model.named_modules():
        if hasattr(layer, "get_delta_weight"):
            name = self._fix_param_name_to_vllm(name.removeprefix("base_model.model."))
            layers[f"{name}.weight"] = layer
    # What TRL would call. PEFT forwards it to the inner model, so an attribute hides it.
    self.model.merge_adapter = self.model.unmerge_adapter = lambda: None
    try:
        for name, weight in _trl_params(self):
            layer = layers.pop(name, None)
            yield name, weight if layer is None else _with_adapters(layer, weight)
    finally:
        del self.model.merge_adapter, self.model.unmerge_adapter
    if layers:
        raise RecipeError(
            f"lora_target_modules: TRL cannot send {', '.join(layers)} to vLLM, because its weight "
            "is tied to another layer's. Fix: remove it from lora_target_modules"
        )


def _with_adapters(layer: Any, weight: torch.Tensor) -> torch.Tensor:
    total = weight.float()
    for adapter in layer.active_adapters:
        delta = layer.get_delta_weight(adapter).to(weight.device)
        # FSDP 2 has a piece of it in each process.
        total = total + (delta.full_tensor() if hasattr(delta, "full_tensor") else delta).float()
    return total.to(weight.dtype)


VLLMGeneration._iter_named_params = merged_params
