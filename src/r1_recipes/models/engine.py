"""Check from a model's configuration whether it fits vLLM's engine and the GPU."""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.models.tokenizer import from_pretrained
from r1_recipes.models.weights import auto_class
from r1_recipes.recipe.engine import Shortage, engine_problem, longest_sequence
from r1_recipes.recipe.types import Recipe, namespace_value

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dimensions:
    parameters: int
    cache: int  # values per token in the KV cache, as ``cache_of`` counts them
    window: int | None  # the model's longest context, in tokens


def cache_of(config: Any) -> int:
    """Return how many values a token needs in the KV cache, at the least.

    Only layers with full attention count. Layers with a sliding window or a state of fixed size
    hold a bounded part of a sequence, and are left out.
    """
    types = getattr(config, "layer_types", None)
    layers = config.num_hidden_layers if types is None else types.count("full_attention")
    # MLA stores one compressed vector for all heads, and the part with positions.
    if getattr(config, "kv_lora_rank", None):
        return int(layers * (config.kv_lora_rank + config.qk_rope_head_dim))
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * layers * (getattr(config, "num_key_value_heads", None) or heads) * width)


def empty_model(recipe: Recipe) -> tuple[Any, Any]:
    """Return the model's configuration, and the model without weights."""
    import torch
    from transformers.modeling_utils import set_zero3_state

    config = from_pretrained("AutoConfig", recipe)
    dtype = config.dtype
    if recipe.model.dtype not in (None, "auto"):
        dtype = getattr(torch, recipe.model.dtype)
    # Without this state, ZeRO-3 would allocate and distribute the weights.
    with set_zero3_state(), torch.device("meta"):
        return config, auto_class(config).from_config(
            config, dtype=dtype, trust_remote_code=recipe.training.trust_remote_code
        )


def dimensions_of(config: Any, model: Any) -> Dimensions:
    """Return the dimensions of a model, which may have no weights."""
    text = config.get_text_config()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Dimensions(parameters, cache_of(text), getattr(text, "max_position_embeddings", None))


def dimensions(recipe: Recipe) -> Dimensions | None:
    """Return the dimensions of the recipe's model, or None if Transformers cannot build it.

    Loading the model reports the reason better.
    """
    try:
        return dimensions_of(*empty_model(recipe))
    # The name is an adapter's folder, the architecture is unknown, or the hub does not answer.
    except Exception as error:
        logger.debug("the size of %s is unknown: %s", recipe.model.model_name_or_path, error)
        return None


def gpu_memory() -> int | None:
    """Return the memory of this process's GPU in bytes, or None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)


def room_problem(recipe: Recipe, size: Dimensions, length: int | None) -> Shortage | None:
    """Return why the engine would not start on this machine's GPU, or None.

    Without ``length``, the engine must hold the model's longest context.
    """
    total = gpu_memory()
    length = length or size.window
    if total is None or length is None:
        return None
    return engine_problem(
        length=length,
        share=recipe.training.vllm_gpu_memory_utilization,
        total=total,
        parameters=size.parameters,
        cache=size.cache,
        parallel=recipe.training.vllm_tensor_parallel_size,
    )


def check_room(where: str, shortage: Shortage | None) -> None:
    """Raise if an engine certainly does not fit the GPU. Warn if it may not fit."""
    if shortage and shortage.certain:
        raise RecipeError(f"{where} {shortage.message}")
    if shortage:
        logger.warning("%s vLLM may not start: %s", where, shortage.message)


def fit_engine(recipe: Recipe, size: Dimensions | None, *, pictures: bool) -> Shortage | None:
    """Leave ``vllm_max_model_length`` to vLLM where the computed length does not apply.

    Return why a colocated engine would not fit the GPU, or None.
    """
    training = recipe.training
    if not namespace_value(recipe, "use_vllm") or size is None:
        return None
    length = training.vllm_max_model_length
    if length is not None and length == longest_sequence(partial(namespace_value, recipe)):
        exceeds_window = size.window is not None and length > size.window
        if exceeds_window and training.vllm_mode == "server":
            raise RecipeError(
                f"{recipe.path}: max_completion_length: prompt and completion can have {length} "
                f"tokens, but the model's context has {size.window}, and vLLM's server refuses "
                "what may exceed it. Fix: a smaller max_completion_length or max_prompt_tokens"
            )
        if exceeds_window:
            logger.warning(
                "max_completion_length: prompt and completion can have %d tokens, but the model's "
                "context has %d, so longer completions are cut there. "
                "Fix: a smaller max_completion_length",
                length,
                size.window,
            )
        elif pictures:
            logger.info(
                "vllm_max_model_length: prompt and completion have %d tokens, but pictures add "
                "tokens, so vLLM uses the model's whole context",
                length,
            )
        if pictures or exceeds_window:
            training.vllm_max_model_length = length = None
    if namespace_value(recipe, "distill_with") == "gold":
        length = length or training.max_length  # as TRL's trainer does
    return room_problem(recipe, size, length) if training.vllm_mode == "colocate" else None
