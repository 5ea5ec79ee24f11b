"""A model in vLLM's engine: how large it is, which sequences it takes, and whether the GPU has
room; from its configuration alone.
"""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.models.tokenizer import from_pretrained
from r1_recipes.recipe.engine import Shortage, engine_problem, longest_sequence
from r1_recipes.recipe.types import Recipe, namespace_value

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dimensions:
    parameters: int
    cache: int  # values of one token in the KV cache, as ``cache_of`` counts
    window: int | None  # tokens that the model was made for


def cache_of(config: Any) -> int:
    """Return the values of one token in the KV cache, over the layers that attend to all tokens:
    what is certain to be needed.

    Layers with a sliding window or a state of fixed size keep a bounded part of a sequence, and are
    left out.
    """
    kinds = getattr(config, "layer_types", None)
    layers = config.num_hidden_layers if kinds is None else kinds.count("full_attention")
    if getattr(
        config, "kv_lora_rank", None
    ):  # MLA keeps one compressed vector for all heads, and the part with positions
        return int(layers * (config.kv_lora_rank + config.qk_rope_head_dim))
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * layers * (getattr(config, "num_key_value_heads", None) or heads) * width)


def empty_model(recipe: Recipe) -> tuple[Any, Any]:
    """Return the model's configuration, and the model without its weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.modeling_utils import set_zero3_state

    config = from_pretrained("AutoConfig", recipe)
    pictures = (config.architectures or [""])[0].endswith("ForConditionalGeneration")
    auto_class = AutoModelForImageTextToText if pictures else AutoModelForCausalLM
    dtype = (
        config.dtype if recipe.model.dtype in (None, "auto") else getattr(torch, recipe.model.dtype)
    )
    with (
        set_zero3_state(),
        torch.device("meta"),
    ):  # or ZeRO-3 would allocate and share out the weights
        return config, auto_class.from_config(
            config, dtype=dtype, trust_remote_code=recipe.training.trust_remote_code
        )


def dimensions_of(config: Any, model: Any) -> Dimensions:
    """Count a model, which may have no weights."""
    text = config.get_text_config()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Dimensions(parameters, cache_of(text), getattr(text, "max_position_embeddings", None))


def dimensions(recipe: Recipe) -> Dimensions | None:
    """Count the recipe's model; None if Transformers cannot build it, which loading it will say
    better.
    """
    try:
        return dimensions_of(*empty_model(recipe))
    except (
        Exception
    ) as error:  # an adapter's folder, an unknown architecture, a hub that does not answer
        logger.debug("the size of %s is unknown: %s", recipe.model.model_name_or_path, error)
        return None


def gpu_memory() -> int | None:
    """Return the bytes of the GPU that this process has, None without one."""
    import torch

    return (
        int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
        if torch.cuda.is_available()
        else None
    )


def room_problem(recipe: Recipe, size: Dimensions, length: int | None) -> Shortage | None:
    """Return why the engine would not start on this machine's GPU; ``length`` None: it takes the
    model's window.
    """
    total, length, settings = gpu_memory(), length or size.window, recipe.training
    if total is None or length is None:
        return None
    parallel, share = settings.vllm_tensor_parallel_size, settings.vllm_gpu_memory_utilization
    return engine_problem(
        length=length,
        share=share,
        total=total,
        parameters=size.parameters,
        cache=size.cache,
        parallel=parallel,
    )


def check_room(where: str, short: Shortage | None) -> None:
    """Refuse an engine that certainly has no room; warn of one that may have none."""
    if short and short.certain:
        raise RecipeError(f"{where} {short.message}")
    if short:
        logger.warning("%s vLLM may not start: %s", where, short.message)


def fit_engine(recipe: Recipe, size: Dimensions | None, *, pictures: bool) -> Shortage | None:
    """Leave the length to vLLM where the recipe's own arithmetic does not hold; return what a
    colocated engine has no room for.
    """
    training = recipe.training
    if not namespace_value(recipe, "use_vllm") or size is None:
        return None
    length = training.vllm_max_model_length
    reckoned = length is not None and length == longest_sequence(partial(namespace_value, recipe))
    over = size.window is not None and length is not None and length > size.window
    if reckoned and over:
        logger.warning(
            "max_completion_length: prompt and completion are up to %d tokens, but the model "
            "was made for %d: longer completions are cut "
            "there. Fix: a smaller max_completion_length",
            length,
            size.window,
        )
    elif reckoned and pictures:
        text = (
            "vllm_max_model_length: prompt and completion are %d tokens, but pictures are "
            "tokens, too: vLLM takes the model's window"
        )
        logger.info(text, length)
    if reckoned and (pictures or over):
        training.vllm_max_model_length = length = None
    if namespace_value(recipe, "distill_with") == "gold":
        length = length or training.max_length  # as its trainer does
    return room_problem(recipe, size, length) if training.vllm_mode == "colocate" else None
