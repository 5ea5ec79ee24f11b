"""What a model's configuration says before its weights are loaded."""

import logging
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.models.tokenizer import from_pretrained
from r1_recipes.models.weights import auto_class
from r1_recipes.recipe.rules import longest_sequence
from r1_recipes.recipe.types import Recipe

logger = logging.getLogger(__name__)


def window_of(config: Any) -> int | None:
    """Return the model's longest context in tokens."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


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


def gpu_memory() -> int | None:
    """Return the memory of this process's GPU in bytes, or None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)


def fit_engine(recipe: Recipe, *, pictures: bool) -> None:
    """Leave ``vllm_max_model_length`` to vLLM where the computed length does not apply."""
    training = recipe.training
    length = training.vllm_max_model_length
    if length is None or length != longest_sequence(recipe):
        return
    window = window_of(from_pretrained("AutoConfig", recipe))
    exceeds_window = window is not None and length > window
    if exceeds_window and training.vllm_mode == "server":
        raise RecipeError(
            f"{recipe.path}: max_completion_length: prompt and completion can have {length} "
            f"tokens, but the model's context has {window}, and vLLM's server refuses "
            "what may exceed it. Fix: a smaller max_completion_length or max_prompt_tokens"
        )
    if exceeds_window:
        logger.warning(
            "max_completion_length: prompt and completion can have %d tokens, but the model's "
            "context has %d, so longer completions are cut there. "
            "Fix: a smaller max_completion_length",
            length,
            window,
        )
    if pictures or exceeds_window:  # pictures add tokens
        training.vllm_max_model_length = None
