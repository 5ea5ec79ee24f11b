"""Generate completions, and store them.

A backend generates: Transformers, vLLM in this process, or an OpenAI-compatible server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from r1_recipes.completions.openai import OpenAIBackend
from r1_recipes.completions.transformers import TransformersBackend
from r1_recipes.completions.types import Backend
from r1_recipes.completions.vllm import VLLMBackend
from r1_recipes.models.tokenizer import load_tokenizer, recipe_format
from r1_recipes.prompts import ResponseFormat
from r1_recipes.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_format(
    recipe: Recipe, backend: str
) -> tuple[PreTrainedTokenizerBase | None, ResponseFormat]:
    """Return the tokenizer and the format that reads the backend's completions.

    The tokenizer is ``None`` if a server has it.
    """
    if backend != "openai":
        return load_tokenizer(recipe)
    # The server's chat template writes the prefill. Completions come without it, so the format puts
    # it in front before it reads them.
    return None, recipe_format(recipe)


def get_backend(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase | None, backend: str, rows: Any = None
) -> Backend:
    """Load the recipe's model and return the backend that generates with it.

    ``tokenizer`` comes from :func:`load_format`. With tools or environments, the backend plays
    episodes of ``rows``.
    """
    from r1_recipes.extras.agents.build import agent

    tools, environments = agent(recipe, tokenizer)
    has_tools = tools or environments
    single: Backend
    if tokenizer is None:
        single = OpenAIBackend(recipe)
    elif backend == "vllm":  # the length of an episode is not known in advance
        single = VLLMBackend(
            recipe, tokenizer, None if has_tools or rows is None else rows["prompt"]
        )
    else:
        single = TransformersBackend(recipe, tokenizer)
    if not has_tools:
        return single
    from r1_recipes.extras.agents.episodes import EpisodeBackend

    training = recipe.training
    return EpisodeBackend(
        single,
        tools,
        environments,
        rows,
        training.max_tool_calling_iterations,
        training.max_completion_length,
        training.generation_batch_size,
    )
